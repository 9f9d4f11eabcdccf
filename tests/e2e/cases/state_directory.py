"""A state directory that is full or cannot be written: commands fail whole, and the daemon goes on."""

import os

from harness import *
from harness.daemon import Daemon


class Small:
    """A filesystem of some pages that can be filled or made read-only."""

    def __init__(self, box):
        self.box, self.path = box, box.path("small")
        os.mkdir(self.path)
        done = box.run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", self.path, expect=None)
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


main()
