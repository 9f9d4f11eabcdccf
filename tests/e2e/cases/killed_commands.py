"""SIGKILL in the middle of any command: the same command, or a plain delete, completes it."""

import random
import subprocess
import time

from harness import *

ROUNDS = 30


def state_of(daemon, name):
    """The state of a volume; None if there is none."""
    done = daemon.cli("show", name, "--json", expect=None)
    if done.returncode == 2:
        return None
    check_equal(done.returncode, 0, f"show: {done.stderr}")
    return daemon.show(name)["state"]


def killed_in(box, daemon, delay, *arguments):
    """Starts a command and kills the daemon a moment later."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = box.spawn(daemon.binary, "--socket", daemon.socket, *arguments, **quiet)
    time.sleep(delay)
    daemon.kill()
    command.wait()
    daemon.start()


def sweep(box, *sharing):
    """Kills in create, set, stop, start, delete and delete --discard-dirty of a volume that has dirty data."""
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    keeper = None
    if sharing:
        keeper = Recorder(daemon.create("keeper", cache, box.file("kept", 16 * MIB)), connections=1, blocks=200)
        keeper.write(300)
        keeper.settle()
        keeper.flush()
        keeper.settle()
    create = ("create", "v", "--cache", cache, "--origin", origin, "--set", "writeback_running=off")
    rng, content = random.Random(4711), b"\0" * MIB
    for turn in range(ROUNDS):
        verb = ("create", "set", "stop", "start", "delete", "discard")[turn % 6]
        if verb == "create":
            if state_of(daemon, "v") is not None:
                daemon.cli("delete", "v")
            arguments = create
        else:
            if state_of(daemon, "v") is None:
                daemon.cli(*create)
            daemon.cli("start", "v")
            client = connect(daemon.uri("v"))
            content = random_bytes(turn, MIB)
            client.pwrite(content, 0)
            client.flush()
            client.shutdown()
            if verb == "start":
                daemon.cli("stop", "v")
            arguments = {
                "set": ("set", "v", "mode=wt", "dirty_high=70"),
                "stop": ("stop", "v"),
                "start": ("start", "v"),
                "delete": ("delete", "v"),
                "discard": ("delete", "--discard-dirty", "v"),
            }[verb]
        killed_in(box, daemon, rng.random() * 0.12, *arguments)
        state = state_of(daemon, "v")
        check(state in (None, "running", "stopped"), f"turn {turn}, {verb}: it is {state}: {daemon.last_line()}")
        if verb in ("set", "stop", "start"):
            check(state is not None, f"turn {turn}: {verb} has deleted it")
            daemon.cli(*arguments)
            daemon.cli("start", "v")
            found = bytes(connect(daemon.uri("v")).pread(MIB, 0))
            check_equal(first_difference(found, content), None, f"turn {turn}, {verb}: the first difference")
            if verb == "set":
                check_equal(daemon.show("v")["settings"]["dirty_high"], 70, "what was set")
                daemon.cli("set", "v", "mode=wb", "dirty_high=50")
        elif verb == "create":
            done = daemon.cli(*create, expect=None)
            check(done.returncode == (0 if state is None else 3), f"turn {turn}: create: {done.stderr}")
        else:
            done = daemon.cli(*arguments, expect=None)
            check(done.returncode == (2 if state is None else 0), f"turn {turn}: {verb}: {done.stderr}")
            check_equal(state_of(daemon, "v"), None, f"turn {turn}: its state after {verb}")
            if verb == "delete":
                with open(origin, "rb") as file:
                    check_equal(first_difference(file.read(MIB), content), None, f"turn {turn}: on the origin")
        if keeper:
            keeper.verify(daemon.uri("keeper"))
    daemon.terminate()


@test
def alone_on_its_cache(box):
    sweep(box)


@test
def beside_another_volume(box):
    sweep(box, "keeper")


main()
