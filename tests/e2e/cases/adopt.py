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


def copied(box, volumes=("v",)):
    """A daemon with volumes on one cache, and a copy of cache and origins from a moment when all were stopped; dirty blocks are in both."""
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    for number, name in enumerate(volumes):
        client = connect(daemon.create(name, cache, box.file(f"origin-{name}", 16 * MIB, random_bytes(number, 16 * MIB)), "--set", "writeback_running=off"))
        client.pwrite(DIRTY, MIB)
        client.flush()
    for name in volumes:
        daemon.cli("stop", "--force", name)
    copies = {name: shutil.copy(box.path(f"origin-{name}"), box.path(f"copy-{name}")) for name in volumes}
    copy = shutil.copy(cache, box.path("copy"))
    for name in volumes:
        daemon.cli("start", name)
    return daemon, cache, copy, copies


def value(daemon, name):
    return bytes(connect(daemon.uri(name)).pread(65536, MIB))


def write(daemon, name, data):
    client = connect(daemon.uri(name))
    client.pwrite(data, MIB)
    client.flush()


@test
def a_copy_is_used_beside_the_original_under_another_name(box):
    daemon, _, copy, copies = copied(box)
    for _ in range(3):
        write(daemon, "v", b"\x01" * 65536)
    daemon.create("v", copy, copies["v"], "--adopt", "--as", "w", "--force")
    check_equal(value(daemon, "w"), DIRTY, "what the copy holds")
    for number in range(20):
        write(daemon, "w", bytes([number]) * 65536)
    # Neither is taken for an older copy of the other: not after a stop, and not after a crash.
    for end in (daemon.terminate, daemon.kill):
        end()
        daemon.start()
        for name, byte in ("v", 1), ("w", 19):
            check_equal(daemon.show(name)["state"], "running", f"the state of {name}")
            check_equal(value(daemon, name), bytes([byte]) * 65536, f"what {name} holds")
    daemon.cli("delete", "w")
    with open(copies["v"], "rb") as file:
        file.seek(MIB)
        check_equal(file.read(65536), bytes([19]) * 65536, "the origin of the copy after the end")
    check_equal(value(daemon, "v"), b"\x01" * 65536, "what v holds")


@test
def every_volume_of_a_copy_gets_a_name_of_its_own(box):
    daemon, _, copy, copies = copied(box, ("v", "x"))
    daemon.create("v", copy, copies["v"], "--adopt", "--as", "w", "--force")
    daemon.create("x", copy, copies["x"], "--adopt", "--as", "y", "--force")
    write(daemon, "y", b"\x02" * 65536)
    daemon.restart()
    for name, data in ("v", DIRTY), ("w", DIRTY), ("x", DIRTY), ("y", b"\x02" * 65536):
        check_equal(value(daemon, name), data, f"what {name} holds")
    # A device under the name of the other is noticed.
    daemon.terminate()
    cache, hidden = box.path("cache"), box.path("hidden")
    os.rename(cache, hidden)
    os.rename(copy, cache)
    os.rename(hidden, copy)
    daemon.start()
    check_equal({daemon.show(name)["state"] for name in "vwxy"}, {"failed"}, "the states with exchanged devices")
    daemon.terminate()
    os.rename(copy, hidden)
    os.rename(cache, copy)
    os.rename(hidden, cache)
    daemon.start()
    check_equal({daemon.show(name)["state"] for name in "vwxy"}, {"running"}, "the states")


@test
def a_copy_is_not_mistaken_for_the_original(box):
    daemon, cache, copy, copies = copied(box, ("v", "x"))
    daemon.create("other", box.file("cache-2", 64 * MIB), box.file("origin-2", 16 * MIB))
    wrong = box.file("wrong", 16 * MIB, random_bytes(9, 16 * MIB))
    before = digest(copy, *copies.values(), wrong)
    daemon.create("v", copy, copies["v"], "--as", "w", expect=2)
    for name, *words, code in (
        ("v", copy, copies["v"], "--as", "x", 3), ("v", copy, copies["v"], "--as", "other", 3), ("a", copy, copies["v"], "--as", "w", 3),
        ("v", copy, wrong, "--as", "w", 4), ("v", cache, copies["v"], "--as", "w", 3),
    ):  # fmt: skip
        done = daemon.create_run(name, *words[:2], "--adopt", *words[2:], expect=code)
        check_equal(len(done.stderr.strip().splitlines()), 1, f"lines on stderr: {done.stderr!r}")
    daemon.cli("stop", "--force", "v")
    done = daemon.create_run("v", copy, copies["v"], "--adopt", "--force", expect=3)
    check("is a copy of" in done.stderr and "--as" in done.stderr, done.stderr)
    check_equal(digest(copy, *copies.values(), wrong), before, "the copies")
    daemon.cli("start", "v")
    check_equal(value(daemon, "v"), DIRTY, "what v holds")


main()
