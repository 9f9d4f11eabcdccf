"""Bytes that discards cost on a cache with dirty blocks: `fstrim`, a filesystem mounted with `discard`, and a thin origin's size after it."""

import os
import pathlib
import shutil
import time

from harness import *
from harness.devices import exported, mount

SIZE = 6 * GIB
# What is written before a trim, and by each round of files that come and go.
WRITTEN, ROUND, ROUNDS = GIB, 200 * MIB, 20


def files(point, name, size):
    """A folder of files of 64 KiB to 4 MiB."""
    os.mkdir(f"{point}/{name}")
    number, done = 0, 0
    while done < size:
        length = 64 * KIB << number % 7
        pathlib.Path(f"{point}/{name}/{number}").write_bytes(random_bytes(number, length))
        number, done = number + 1, done + length
    sync(point)


def sync(point):
    fd = os.open(point, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    os.sync()


class Counted:
    """What a step has cost."""

    def __init__(self, daemon, origin):
        self.daemon, self.origin = daemon, origin
        self.bytes, self.begun = daemon.show("v")["bytes"], time.monotonic()

    def tell(self, what):
        report = self.daemon.show("v")
        moved = {key: (report["bytes"][key] - self.bytes[key]) / MIB for key in ("user_written", "cache_written", "origin_written")}
        print(
            f"     {what:<34} clients {moved['user_written']:6.0f}, cache {moved['cache_written']:6.0f}, origin {moved['origin_written']:6.0f} MiB "
            f"written; dirty {report['blocks']['dirty'] * BLOCK / MIB:5.0f}, on the origin {os.stat(self.origin).st_blocks * 512 / MIB:5.0f} MiB; "
            f"{time.monotonic() - self.begun:5.1f} s"
        )


def volume(box):
    daemon, device = exported(box, size=SIZE)
    # A larger cache than that of `exported`.
    daemon.cli("delete", "--force", "v")
    for name in "cache-v", "origin-v":
        os.remove(box.path(name))
    made = daemon.create_run("v", box.file("cache", 4 * GIB), box.file("origin", SIZE), "--export", "nbd,fuse")
    daemon.cli("set", "v", "dirty_high=100", "cache_dirty_high=100", "sequential_cutoff=0")
    return daemon, made.stdout.strip(), box.path("origin")


def trim(box, kind):
    daemon, device, origin = volume(box)
    box.run(f"mkfs.{kind}", "-q", device)
    daemon.cli("set", "v", "writeback_running=off")
    point = mount(box, kind, device)
    step = Counted(daemon, origin)
    files(point, "old", WRITTEN)
    step.tell(f"{kind}: files are written")
    shutil.rmtree(f"{point}/old")
    sync(point)
    for number in range(2):
        step = Counted(daemon, origin)
        box.run("fstrim", point)
        step.tell(f"{kind}: fstrim, {number + 1}. time")
        # The filesystem forgets which groups it has trimmed.
        box.run("umount", point)
        mount(box, kind, device)
    daemon.cli("set", "v", "writeback_running=on")
    step = Counted(daemon, origin)
    daemon.cli("flush", "v")
    step.tell(f"{kind}: the flush after it")
    box.run("umount", point)


def discards(box, kind):
    daemon, device, origin = volume(box)
    box.run(f"mkfs.{kind}", "-q", device)
    box.run("mount", "-t", kind, "-o", "discard", device, mount_point(box))
    point = mount_point(box)
    step = Counted(daemon, origin)
    for number in range(ROUNDS):
        files(point, str(number), ROUND)
        if number:
            shutil.rmtree(f"{point}/{number - 1}")
            sync(point)
    step.tell(f"{kind}: files that come and go")
    step = Counted(daemon, origin)
    daemon.cli("flush", "v")
    step.tell(f"{kind}: the flush after it")
    box.run("umount", point)


def mount_point(box):
    os.makedirs(box.path("mnt"), exist_ok=True)
    return box.path("mnt")


@test
def ext4_is_trimmed(box):
    trim(box, "ext4")


@test
def xfs_is_trimmed(box):
    trim(box, "xfs")


@test
def ext4_discards(box):
    discards(box, "ext4")


@test
def xfs_discards(box):
    discards(box, "xfs")


main()
