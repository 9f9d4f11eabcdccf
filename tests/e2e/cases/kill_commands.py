"""SIGKILL at every step of every command: nothing flushed is lost, and the same command completes it."""

import os
import random
import subprocess
import time

from harness import *

BLOCKS = 64
KEEP = ("--set", "idle=0", "--set", "dirty_age=0")
ROUNDS = int(os.environ.get("FOREBAY_FAULT_ROUNDS", "12"))


class World:
    """A daemon with a volume that commands are about, `v`, and perhaps `keep` on the same cache."""

    def __init__(self, box, name="d", keep=True):
        self.box, self.daemon = box, box.daemon(name=name)
        self.cache = box.file(f"{name}.cache", 64 * MIB)
        self.disk = box.file(f"{name}.disk", 16 * MIB)
        self.others = []
        if keep:
            uri = self.daemon.create("keep", self.cache, box.file(f"{name}.keep", 16 * MIB), *KEEP)
            client = Client(uri)
            client.write_blocks(0, BLOCKS)
            client.flush()
            self.others.append("keep")
        self.version = 0

    def names(self):
        return self.daemon.cli("list", "--names").stdout.split()

    def state(self):
        """The state of `v`; None: there is none."""
        return self.daemon.show("v")["state"] if "v" in self.names() else None

    def create(self):
        return ("create", "v", "--cache", self.cache, "--origin", self.disk, *KEEP)

    def serve(self):
        """Has `v` served with flushed, dirty data of a new version."""
        daemon, state = self.daemon, self.state()
        if state is None:
            daemon.cli(*self.create())
        elif state != "running":
            daemon.cli("start", "v")
        self.version += 1
        client = Client(daemon.uri("v"))
        check_equal(client.write_blocks(0, BLOCKS, self.version), BLOCKS, "blocks acknowledged")
        client.flush()
        client.nbd.shutdown()

    def killed(self, words, delay):
        """Kills the daemon so long after a command has begun; says whether the command was done."""
        command = [self.daemon.binary, "--socket", self.daemon.socket, *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = self.box.spawn(*command, **quiet)
        end = time.perf_counter() + delay
        while time.perf_counter() < end and process.poll() is None:
            pass
        done = process.poll() == 0
        self.daemon.kill()
        process.wait()
        self.daemon.start()
        return done

    def origin_has(self, version):
        with open(self.disk, "rb") as file:
            data = file.read(BLOCKS * BLOCK)
        found = {read_stamp(data[n * BLOCK : (n + 1) * BLOCK], n) for n in range(BLOCKS)}
        check_equal(found, {version}, "the versions on the origin")

    def check(self, what, deleting=False, discarded=False):
        """Nothing flushed is lost: `v` has it all, or is gone and the origin has it, unless it was discarded."""
        daemon, state = self.daemon, self.state()
        for name in self.others:
            client = Client(daemon.uri(name))
            for block in (0, BLOCKS // 2, BLOCKS - 1):
                client.check_block(block, 1)
        check(state in (None, "running", "stopped"), f"{what}: it is {state}: {daemon.last_line()}")
        if state == "stopped" and deleting:
            # That its deletion had gone through is found out when it is wanted again.
            done = verb(daemon, "start", "v")
            state = self.state()
            check_equal(done.returncode, 2 if state is None else 0, f"{what}: start ({done.stderr.strip()})")
        if state is not None and self.version:
            self.run(what, 0, "start", "v")
            client = Client(daemon.uri("v"))
            for block in range(BLOCKS):
                client.check_block(block, self.version)
        elif self.version and not discarded:
            self.origin_has(self.version)

    def run(self, what, code, *words):
        done = verb(self.daemon, *words)
        check_equal(done.returncode, code, f"{what}: {words[0]} ({done.stderr.strip()})")

    def again(self, what, words):
        """The same command once more: it completes what was begun, or finds it done."""
        there = self.state() is not None
        if words[0] == "create":
            self.run(what, 3 if there else 0, *words)
        elif words[0] == "delete":
            self.run(what, 0 if there else 2, *words)
        else:
            check(there, f"{what}: it is gone")
            self.run(what, 0, *words)
            if words[0] == "set":
                settings = self.daemon.show("v")["settings"]
                check_equal(settings["dirty_high"], 70, f"{what}: what was set")
        check_equal("v" in self.names(), words[0] != "delete", f"{what}: whether it is there")

    def renew(self, what):
        """Deletes `v`, whatever was done to it; then it can be made again."""
        if self.state() is not None:
            self.run(what, 0, "delete", "v")
            if self.version:
                self.origin_has(self.version)
        check_equal(self.names(), self.others, f"{what}: the volumes after a delete")
        self.run(what, 0, *self.create())


def gone(world):
    if world.state() is not None:
        world.daemon.cli("delete", "v")


def stopped(world):
    world.serve()
    world.daemon.cli("stop", "v")


def written_back(world):
    world.serve()
    world.daemon.cli("set", "v", "mode=wb", "dirty_high=50")


# What is so before a command is killed, and the command; None: it is that of the world.
COMMANDS = {
    "create": (gone, None),
    "start": (stopped, ("start", "v")),
    "stop": (World.serve, ("stop", "v")),
    "set": (written_back, ("set", "v", "mode=wt", "dirty_high=70")),
    "flush": (World.serve, ("flush", "v")),
    "delete": (World.serve, ("delete", "v")),
    "delete of a stopped volume": (stopped, ("delete", "v")),
    "discard": (World.serve, ("delete", "--discard-dirty", "v")),
}


def kills(world, name, rounds):
    """Kills one command again and again, each time a little later, until it is always done."""
    prepare, words = COMMANDS[name]
    seconds = random.Random(name)
    longest = 0.004
    for number in range(rounds):
        prepare(world)
        command = words or world.create()
        # Anywhere within the command and a little beyond.
        delay = longest * number / rounds + seconds.random() * 0.001
        what = f"{name} killed after {delay * 1000:.1f} ms (round {number})"
        if not world.killed(command, delay):
            longest = max(longest, delay * 1.5 + 0.004)
        deleting, discarded = "delete" in command, "--discard-dirty" in command
        world.check(what, deleting, discarded)
        world.again(what, command)
        world.check(what, deleting, discarded)
        if number % 4 == 3:
            world.renew(what)


@test
def create(box):
    kills(World(box), "create", ROUNDS)


@test
def start(box):
    kills(World(box), "start", ROUNDS)


@test
def stop(box):
    kills(World(box), "stop", ROUNDS)


@test
def set_mode(box):
    kills(World(box), "set", ROUNDS)


@test
def flush(box):
    kills(World(box), "flush", ROUNDS)


@test
def delete(box):
    kills(World(box), "delete", 2 * ROUNDS)


@test
def delete_of_a_stopped_volume(box):
    kills(World(box), "delete of a stopped volume", ROUNDS)


@test
def delete_that_discards(box):
    kills(World(box), "discard", ROUNDS)


@test
def every_command_without_another_volume_on_the_cache(box):
    for name in COMMANDS:
        world = World(box, name.replace(" ", "-"), keep=False)
        kills(world, name, ROUNDS // 3)
        world.daemon.terminate()


main()
