"""SIGKILL at every step of every command: nothing flushed is lost, and the commands still work."""

import os
import random
import subprocess
import time

from harness import *

BLOCKS = 64
KEEP = ("--set", "idle=0", "--set", "dirty_age=0")


class World:
    """A daemon with a volume `keep` and one that commands are about, `v`, on one cache."""

    def __init__(self, box):
        self.box, self.daemon = box, box.daemon()
        self.cache = box.file("cache", 64 * MIB)
        self.disk = box.file("disk", 16 * MIB)
        uri = self.daemon.create("keep", self.cache, box.file("keep.disk", 16 * MIB), *KEEP)
        client = Client(uri)
        client.write_blocks(0, BLOCKS)
        client.flush()
        self.version = 0

    def names(self):
        return self.daemon.cli("list", "--names").stdout.split()

    def create(self):
        return ("create", "v", "--cache", self.cache, "--origin", self.disk, *KEEP)

    def serve(self):
        """Has `v` served with flushed, dirty data of a new version."""
        daemon = self.daemon
        if "v" not in self.names():
            daemon.cli(*self.create())
        elif daemon.show("v")["state"] != "running":
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

    def check(self, what):
        """Nothing flushed is lost, and what was interrupted can be done again."""
        daemon = self.daemon
        client = Client(daemon.uri("keep"))
        for block in (0, BLOCKS // 2, BLOCKS - 1):
            client.check_block(block, 1)
        if "v" in self.names():
            state = daemon.show("v")["state"]
            if state in ("stopped", "failed"):
                done = verb(daemon, "start", "v")
                check_equal(done.returncode, 0, f"{what}: start ({done.stderr.strip()})")
            if self.version:
                client = Client(daemon.uri("v"))
                for block in range(BLOCKS):
                    client.check_block(block, self.version)
        elif self.version:
            self.origin_has(self.version)

    def delete(self, what):
        """Deletes `v` if it is there; then it can be made again."""
        if "v" in self.names():
            done = verb(self.daemon, "delete", "v")
            check_equal(done.returncode, 0, f"{what}: delete ({done.stderr.strip()})")
        check_equal(self.names(), ["keep"], f"{what}: the volumes after a delete")
        if self.version:
            self.origin_has(self.version)
        done = verb(self.daemon, *self.create())
        check_equal(done.returncode, 0, f"{what}: create ({done.stderr.strip()})")


def loop(box, rounds, prepare, words):
    """Kills one command again and again, each time a little later, until it is always done."""
    world = World(box)
    seconds = random.Random(str(words))
    longest = 0.004
    for number in range(rounds):
        prepare(world)
        command = words if isinstance(words, tuple) else words(world)
        # Anywhere within the command and a little beyond.
        delay = longest * number / rounds + seconds.random() * 0.001
        what = f"{command[0]} killed after {delay * 1000:.1f} ms (round {number})"
        if not world.killed(command, delay):
            longest = max(longest, delay * 1.5 + 0.004)
        world.check(what)
        if number % 4 == 3:
            world.delete(what)


ROUNDS = int(os.environ.get("FOREBAY_FAULT_ROUNDS", "12"))


def gone(world):
    if "v" in world.names():
        world.daemon.cli("delete", "v")


def stopped(world):
    world.serve()
    world.daemon.cli("stop", "v")


@test
def create(box):
    loop(box, ROUNDS, gone, lambda world: world.create())


@test
def start(box):
    loop(box, ROUNDS, stopped, ("start", "v"))


@test
def stop(box):
    loop(box, ROUNDS, World.serve, ("stop", "v"))


@test
def set_mode(box):
    def prepare(world):
        world.serve()
        world.daemon.cli("set", "v", "mode=wb")

    loop(box, ROUNDS, prepare, ("set", "v", "mode=wt", "dirty_age=5m"))


@test
def flush(box):
    loop(box, ROUNDS, World.serve, ("flush", "v"))


@test
def delete(box):
    loop(box, 2 * ROUNDS, World.serve, ("delete", "v"))


@test
def delete_of_a_stopped_volume(box):
    loop(box, ROUNDS, stopped, ("delete", "v"))


main()
