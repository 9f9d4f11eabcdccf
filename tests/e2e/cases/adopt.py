"""A volume that only the cache device remembers, or whose devices have moved, is taken over with its dirty blocks."""

import os
import shutil

from harness import *

DIRTY = b"\x77" * 65536


def made(box):
    """A volume with dirty blocks and a setting that is not the default; its daemon is killed."""
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, random_bytes(1, 16 * MIB))
    client = connect(daemon.create("v", cache, origin, "--block-size", "8K"))
    daemon.cli("set", "v", "writeback_running=off")
    client.pwrite(DIRTY, MIB)
    client.flush()
    daemon.kill()
    return daemon, cache, origin


def check_whole(daemon, origin):
    report = daemon.show("v")
    check_equal(report["block_size"], 8192, "the block size")
    check_equal(report["settings"]["writeback_running"], False, "a setting that was changed")
    check_equal(report["blocks"]["dirty"], 8, "dirty blocks")
    check_equal(bytes(connect(daemon.uri("v")).pread(65536, MIB)), DIRTY, "what was flushed")
    daemon.cli("delete", "v")
    with open(origin, "rb") as file:
        file.seek(MIB)
        check_equal(file.read(65536), DIRTY, "the origin after the end")


@test
def the_state_of_the_daemon_is_lost(box):
    daemon, cache, origin = made(box)
    shutil.rmtree(daemon.state)
    daemon.start()
    before = digest(cache, origin)
    done = daemon.create_run("v", cache, origin, expect=4)
    check("--adopt" in done.stderr and "lose" in done.stderr, f"the way out is not named: {done.stderr}")
    check_equal(digest(cache, origin), before, "the devices")
    daemon.create("v", cache, origin, "--adopt")
    check_whole(daemon, origin)


@test
def devices_have_other_names_now(box):
    daemon, cache, origin = made(box)
    moved = [box.path("cache-2"), box.path("origin-2")]
    os.rename(cache, moved[0])
    os.rename(origin, moved[1])
    daemon.start()
    check_equal(daemon.show("v")["state"], "failed", "the state")
    check("?" in daemon.cli("list").stdout, "what is not known is not shown as nothing")
    daemon.create("v", *moved, "--adopt")
    check_whole(daemon, moved[1])


@test
def what_does_not_belong_together_is_not_adopted(box):
    daemon, cache, origin = made(box)
    shutil.rmtree(daemon.state)
    daemon.start()
    other = box.file("other", 16 * MIB, random_bytes(2, 16 * MIB))
    empty = box.file("empty", 64 * MIB)
    before = digest(cache, origin, other, empty)
    for name, *devices in (("v", cache, other), ("w", cache, origin), ("v", empty, origin), ("v", "ram:64M", origin)):
        done = daemon.create_run(name, *devices, "--adopt", expect=None)
        check(done.returncode in (2, 3, 4), f"{name} {devices} ended with {done.returncode}: {done.stderr}")
        check_equal(len(done.stderr.strip().splitlines()), 1, f"lines on stderr: {done.stderr!r}")
    done = daemon.create_run("v", cache, origin, "--adopt", "--mode", "wt", expect=2)
    check_equal(digest(cache, origin, other, empty), before, "the devices")
    daemon.create("v", cache, origin, "--adopt")
    daemon.create_run("v", cache, origin, "--adopt", expect=3)
    check_whole(daemon, origin)


main()
