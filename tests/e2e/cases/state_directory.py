"""A state directory that is full or cannot be written: commands fail whole, and the daemon goes on."""

import json
import os
import pathlib
import threading
import time

from harness import *
from harness.commands import begin, cancel, operations
from harness.daemon import Daemon
from harness.faults import wait_for

FUA = 1  # NBD_CMD_FLAG_FUA


class Small:
    """A filesystem of some pages that can be filled or made read-only."""

    def __init__(self, box):
        self.box, self.path = box, box.path("small")
        os.mkdir(self.path)
        done = box.run("mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", self.path, expect=None)
        if done.returncode != 0:
            skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
        for _ in range(2):
            box.at_end(lambda: box.run("umount", "-l", self.path, expect=None))

    def fill(self):
        with open(f"{self.path}/fill", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def clear(self):
        os.unlink(f"{self.path}/fill")

    def lock(self):
        """What is open stays writable, paths are not: the daemon has its lock open."""
        self.box.run("mount", "--bind", self.path, self.path)
        self.box.run("mount", "-o", "remount,bind,ro", self.path)

    def unlock(self):
        self.box.run("umount", self.path)


def refuses_and_goes_on(box, broken, mended):
    small = Small(box)
    daemon = Daemon(box)
    daemon.state = f"{small.path}/state"
    daemon.start()
    cache, origin, other = box.file("cache", 64 * MIB), box.file("a", 16 * MIB), box.file("b", 16 * MIB)
    third, spare = box.file("c", 16 * MIB), box.file("spare", 64 * MIB)
    recorder = Recorder(daemon.create("a", cache, origin), connections=1, blocks=500)
    daemon.create("b", cache, other)
    daemon.cli("stop", "--force", "b")
    before = {name: daemon.show(name) for name in "ab"}
    broken(small)
    untouched = digest(third, spare)
    for arguments in [
        ("create", "c", "--cache", cache, "--origin", third),
        ("create", "c", "--cache", spare, "--origin", third),
        ("create", "b", "--adopt", "--cache", cache, "--origin", other),
        ("set", "a", "dirty_high=70"),
        ("set", "b", "dirty_high=70"),
        ("stop", "--force", "a"),
        ("start", "b"),
        ("delete", "--force", "a"),
        ("delete", "b"),
        ("delete", "--force", "--discard-dirty", "a"),
        ("delete", "--discard-dirty", "b"),
    ]:
        done = daemon.cli(*arguments, expect=1)
        check_equal(len(done.stderr.splitlines()), 1, f"lines of {arguments}")
        check("cannot write the state" in done.stderr, f"{arguments}: {done.stderr}")
        check_equal(daemon.cli("list", "--names").stdout.split(), ["a", "b"], f"the volumes after {arguments}")
        for name in "ab":
            after = daemon.show(name)
            for field in "state", "settings", "mode", "errors":
                check_equal(after[field], before[name][field], f"{field} of {name} after {arguments}")
    check_equal(digest(third, spare), untouched, "devices of volumes that were not created")
    recorder.write(500)
    recorder.settle()
    recorder.flush()
    recorder.settle()
    mended(small)
    daemon.kill()
    daemon.start()
    recorder.verify(daemon.uri("a"))
    check_equal(daemon.show("b")["state"], "stopped", "the state of b")
    daemon.cli("set", "a", "dirty_high=70")
    daemon.cli("start", "b")
    daemon.cli("delete", "--force", "b")
    daemon.create("c", spare, third)


@test
def a_full_state_directory(box):
    refuses_and_goes_on(box, Small.fill, Small.clear)


@test
def a_state_directory_that_is_read_only(box):
    refuses_and_goes_on(box, Small.lock, Small.unlock)


@test
def a_state_directory_of_others_is_refused_and_nothing_is_overwritten(box):
    if os.geteuid() != 0:
        skip("only root can give directories away")
    daemon = Daemon(box)
    victim = box.file("victim", 9, b"precious!")
    os.mkdir(daemon.state, 0o700)
    for owner, mode, reason in ((12345, 0o700, "12345"), (0, 0o777, "0777"), (0, 0o770, "0770")):
        os.chown(daemon.state, owner, 0)
        os.chmod(daemon.state, mode)
        for arguments in ((), ("--check",)):
            said = box.run(*daemon.command(*arguments), expect=3).stderr
            check("--state-dir" in said and reason in said, said)
    # What others have left there while they could leads nowhere.
    for name in ("state.json.new", "history.jsonl.new", "dirty/v.json.new"):
        os.makedirs(os.path.dirname(f"{daemon.state}/{name}"), exist_ok=True)
        os.symlink(victim, f"{daemon.state}/{name}")
    os.symlink(victim, f"{daemon.state}/events.jsonl")
    os.chmod(daemon.state, 0o700)
    daemon.start()
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)))
    client.pwrite(b"x" * 4096, 0)
    check_equal(daemon.terminate()[0], 0, "the exit code")
    check_equal(pathlib.Path(victim).read_bytes(), b"precious!", "a file of root's")


@test
def clients_do_not_wait_for_a_directory_that_hangs(box):
    need("mkfs.ext4", "fsfreeze", "mount")
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        skip("a file system of its own takes root and loop devices")
    image, point = box.file("image", 64 * MIB), box.path("d-state")
    box.run("mkfs.ext4", "-q", "-F", image)
    os.makedirs(point)
    if box.run("mount", "-o", "loop", image, point, expect=None).returncode != 0:
        skip("no loop device can be mounted")
    box.at_end(box.run, "umount", "-l", point)
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 256 * MIB))
    daemon.cli("set", "v", "writeback_running=off")
    client = connect(uri)
    client.pwrite(b"a" * 4096, 0)
    client.flush()
    times = []

    def write():
        for number in range(1, 20):
            begun = time.monotonic()
            client.pwrite(bytes([number]) * 4096, number * 8 * MIB)
            client.flush()
            client.pwrite(bytes([number]) * 4096, number * 8 * MIB + 4096, FUA)
            times.append(time.monotonic() - begun)

    # On a thread: whatever becomes of the client, the file system is thawed.
    writer = threading.Thread(target=write, daemon=True)
    box.run("fsfreeze", "-f", point)
    try:
        writer.start()
        writer.join(60)
        ended = len(times)
    finally:
        box.run("fsfreeze", "-u", point)
        writer.join(60)
    check_equal(ended, 19, "rounds of writes and flushes that ended while the directory did not answer")
    check(max(times) < 30, f"a flush took {max(times):.1f} s")
    check("cannot be noted in the ledger" in daemon.log(), "the log does not say that nothing can be noted")
    # What was left out is noted once the directory answers, without another flush.
    noted = lambda: json.loads(pathlib.Path(point, "dirty", "v.json").read_text())["dirty"]
    has = lambda at: any(start <= at < start + length for start, length in noted())
    wait_for(lambda: all(has(number * 8 * MIB) for number in range(20)), "everything is noted")
    daemon.kill()
    daemon.start()
    again = connect(daemon.uri("v"))
    for number in range(1, 20):
        check_equal(bytes(again.pread(4096, number * 8 * MIB + 4096)), bytes([number]) * 4096, f"block {number}")
    daemon.terminate()


@test
def a_state_directory_that_does_not_answer_holds_up_no_client_and_no_end(box):
    need("cc")
    library, hangs = box.path("slow.so"), box.path("hangs")
    source = pathlib.Path(__file__).parent.parent / "harness/slow_sync.c"
    box.run("cc", "-shared", "-fPIC", "-o", library, source, "-ldl")
    for begins in None, "set", "stop", "create":
        daemon = Daemon(box, name=begins or "d")
        daemon.within = ["env", f"LD_PRELOAD={library}", f"SLOW_DIR={daemon.state}", f"SLOW_FILE={hangs}"]
        daemon.start()
        devices = [box.file(f"{begins}-{what}", size) for what, size in (("cache", 64 * MIB), ("origin", 16 * MIB))]
        client = connect(daemon.create("v", *devices, "--set", "writeback_running=off"))
        daemon.create("w", devices[0], box.file(f"{begins}-other", 16 * MIB))
        client.pwrite(random_bytes("before", MIB), 0)
        client.flush()
        pathlib.Path(hangs).touch()
        if begins:
            words = {
                "set": ["v", "dirty_high=60"], "stop": ["w"],
                "create": ["x", "--cache", devices[0], "--origin", box.file(f"{begins}-third", 16 * MIB)],
            }[begins]  # fmt: skip
            command = begin(box, daemon, begins, *words)
            wait_for(lambda: operations(daemon) == [begins], "it has begun")
        data = random_bytes(begins, MIB)
        client.pwrite(data, 0)
        client.flush()
        check_equal(bytes(client.pread(MIB, 0)) == data, True, "what was written")
        check_equal(daemon.show("v")["state"], "running", "the state")
        check_equal(len(daemon.cli("list", "--names").stdout.split()), 2, "the volumes")
        client.shutdown()
        code, seconds = daemon.terminate()
        check(code == 1 and seconds < 80, f"it ended with {code} after {seconds:.1f} s")
        check("does not answer" in daemon.log(), "the log does not name the state directory")
        if begins:
            command.communicate(timeout=60)
            check(command.returncode not in (0, None), f"'{begins}' ended with {command.returncode}")
        os.unlink(hangs)
        daemon.start()
        check_equal(daemon.show("v")["state"], "running", "the state after a restart")
        check_equal(bytes(connect(daemon.uri("v")).pread(MIB, 0)) == data, True, "what was flushed")
        daemon.terminate()


@test
def commands_that_wait_for_a_directory_that_hangs_are_given_up(box):
    need("cc")
    library, hangs = box.path("slow.so"), pathlib.Path(box.path("hangs"))
    source = pathlib.Path(__file__).parent.parent / "harness/slow_sync.c"
    box.run("cc", "-shared", "-fPIC", "-o", library, source, "-ldl")
    daemon = Daemon(box)
    daemon.within = ["env", f"LD_PRELOAD={library}", f"SLOW_DIR={daemon.state}", f"SLOW_FILE={hangs}"]
    daemon.start()
    cache, names = box.file("cache", 64 * MIB), ("v", "w", "x")
    for name in names:
        daemon.create(name, cache, box.file(f"origin-{name}", 16 * MIB))
    third = box.file("third", 16 * MIB)
    before, untouched = {name: daemon.show(name) for name in names}, digest(third)
    hangs.touch()
    # Its write has begun. All others wait for their turn.
    first = begin(box, daemon, "set", "v", "dirty_high=60")
    wait_for(lambda: operations(daemon) == ["set"], "the first one has begun")
    writes = lambda: "state" in [
        path.read_text().strip() for path in pathlib.Path(f"/proc/{daemon.process.pid}/task").glob("*/comm")
    ]
    wait_for(writes, "its write has begun")
    others = [
        begin(box, daemon, "set", "w", "dirty_high=60"), begin(box, daemon, "stop", "x"),
        begin(box, daemon, "create", "y", "--cache", cache, "--origin", third),
    ]  # fmt: skip
    wait_for(lambda: len(operations(daemon)) == 4, "the others have begun")
    for command in others:
        cancel(command)
    wait_for(lambda: operations(daemon) == ["set"], "the others have ended")
    cancel(first, expect=5)
    # Without Ctrl-C the time ends it.
    said = daemon.cli("set", "w", "dirty_high=60", expect=1, patience=120).stderr
    check("does not answer" in said and "nothing was changed" in said, f"it said {said}")
    busy = daemon.cli("set", "v", "dirty_high=70", expect=3).stderr
    check("does not answer" in busy, f"the volume is not busy: {busy}")
    hangs.unlink()
    wait_for(lambda: operations(daemon) == [], "the first one has ended")

    def unchanged(when):
        for name in names:
            now = daemon.show(name)
            for field in "state", "settings":
                check_equal(now[field], before[name][field], f"{field} of {name} {when}")
        check_equal(daemon.cli("list", "--names").stdout.split(), list(names), f"the volumes {when}")

    unchanged("once the directory answers")
    check_equal(digest(third), untouched, "the origin of a volume that was not created")
    daemon.kill()
    daemon.start()
    unchanged("after a restart")
    daemon.cli("set", "v", "dirty_high=60")
    daemon.cli("stop", "x")


main()
