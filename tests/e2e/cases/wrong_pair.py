"""Devices that do not belong together, or are not what they should be, are refused untouched."""

import json
import os
import pathlib

from harness import *


def swap(box, daemon, **devices):
    """Changes the devices of volume v in the daemon's memory, as a wrong configuration would."""
    state = pathlib.Path(daemon.state) / "state.json"
    contents = json.loads(state.read_text())
    contents["volumes"][0]["volume"].update(devices)
    state.write_text(json.dumps(contents))


def made(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, random_bytes(1, 16 * MIB))
    client = connect(daemon.create("v", cache, origin))
    daemon.cli("set", "v", "writeback_running=off")
    client.pwrite(b"\x99" * 65536, 0)
    client.flush()
    client.pread(MIB, MIB)
    client.shutdown()
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")
    return daemon, cache, origin


def check_refused(daemon, devices, why):
    before = digest(*devices)
    daemon.start()
    report = daemon.show("v")
    check_equal(report["state"], "failed", f"the state of a volume with {why}")
    check(report["errors"]["last"], f"nothing says why a volume with {why} failed")
    done = daemon.cli("start", "v", expect=None)
    check(done.returncode in (3, 4), f"starting with {why} ended with {done.returncode}")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check_equal(digest(*devices), before, f"the devices, after a start with {why}")


@test
def another_origin_of_the_same_size(box):
    daemon, cache, origin = made(box)
    other = box.file("other", 16 * MIB, random_bytes(2, 16 * MIB))
    swap(box, daemon, origin=other)
    check_refused(daemon, (cache, other), "another origin")
    swap(box, daemon, origin=origin)
    daemon.start()
    check_equal(bytes(connect(daemon.uri("v")).pread(512, 0)), b"\x99" * 512, "the data of the pair")


@test
def an_origin_of_another_size(box):
    daemon, cache, origin = made(box)
    os.truncate(origin, 8 * MIB)
    check_refused(daemon, (cache, origin), "an origin that has shrunk")


@test
def another_cache_device(box):
    daemon, cache, origin = made(box)
    other = box.daemon(name="other")
    foreign = box.file("foreign", 64 * MIB)
    other.create("w", foreign, box.file("theirs", 16 * MIB))
    other.terminate()
    for name, device in (
        ("a cache device of others", foreign),
        ("an empty cache device", box.file("empty", 64 * MIB)),
        ("random bytes for a cache device", box.file("random", 64 * MIB, random_bytes(3, 64 * MIB))),
    ):
        swap(box, daemon, cache=device)
        check_refused(daemon, (device, origin), name)


@test
def a_damaged_cache_device(box):
    daemon, cache, origin = made(box)
    whole = pathlib.Path(cache).read_bytes()
    os.truncate(cache, 1 * MIB)
    check_refused(daemon, (cache, origin), "a cache device that was cut short")
    pathlib.Path(cache).write_bytes(random_bytes(4, 8 * MIB) + whole[8 * MIB :])
    check_refused(daemon, (cache, origin), "a cache device without its first 8 MiB")
    pathlib.Path(cache).write_bytes(whole)
    daemon.start()
    check_equal(bytes(connect(daemon.uri("v")).pread(512, 0)), b"\x99" * 512, "the data of the pair")


@test
def an_origin_that_was_written_elsewhere(box):
    """Clean blocks are dropped; with dirty ones the volume is refused."""
    daemon, cache, origin = made(box)
    with open(origin, "r+b") as file:
        file.seek(MIB)
        file.write(random_bytes("changed", MIB))
    check_refused(daemon, (cache, origin), "dirty blocks over a changed origin")


@test
def clean_blocks_over_a_changed_origin_are_dropped(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, random_bytes(1, 16 * MIB))
    client = connect(daemon.create("v", cache, origin, "--mode", "wt"))
    client.pread(4 * MIB, 0)
    client.shutdown()
    daemon.terminate()
    changed = random_bytes("changed", 16 * MIB)
    pathlib.Path(origin).write_bytes(changed)
    daemon.start()
    found = bytes(connect(daemon.uri("v")).pread(4 * MIB, 0))
    check_equal(first_difference(found, changed[: 4 * MIB]), None, "the first stale byte")


@test
def what_is_on_a_cache_device_is_spared_without_force(box):
    need("mkfs.ext4")
    daemon, cache, origin = made(box)
    daemon.start()
    other = box.file("other", 16 * MIB)
    occupied = box.file("occupied", 64 * MIB)
    box.run("mkfs.ext4", "-q", occupied)
    before = digest(occupied, other)
    done = daemon.create_run("w", occupied, other, expect=4)
    check("ext" in done.stderr and "--force" in done.stderr, f"unclear: {done.stderr}")
    check_equal(digest(occupied, other), before, "the devices after the refusal")
    daemon.create("w", occupied, other, "--force")
    # The cache of a daemon that has gone, with dirty blocks of an origin that is elsewhere.
    daemon.terminate()
    fresh = box.daemon(name="fresh")
    before = digest(cache)
    fresh.create("w", cache, box.file("new", 16 * MIB), expect=4)
    check_equal(digest(cache), before, "a cache with dirty blocks")


main()
