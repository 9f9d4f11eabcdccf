"""Ranges and files of a volume that are pinned, loaded ahead, and evicted."""

import json
import os

from harness import *
from harness.devices import exported

SIZE = 256 * MIB
PINNED = 16 * MIB


def volume(box, *arguments):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", SIZE, random_bytes("origin", SIZE))
    uri = daemon.create("v", cache, origin, *arguments)
    return daemon, uri


def pins(daemon):
    return json.loads(daemon.cli("pin", "v", "--json").stdout)


def scan(uri):
    client = connect(uri)
    for offset in range(0, SIZE, MIB):
        client.pread(MIB, offset)


def misses(daemon):
    requests = daemon.show("v")["requests"]
    return requests["read_misses"] + requests["read_partial"]


@test
def pinned_ranges_stay_cached_through_scans_restarts_and_crashes(box):
    daemon, uri = volume(box)
    daemon.cli("pin", "v", f"1M+{PINNED}", f"{100 * MIB}+4K")
    check_equal(pins(daemon)["cached"], PINNED + 4096, "bytes cached")
    for end in (lambda: None, daemon.restart, daemon.kill):
        end()
        if end == daemon.kill:
            daemon.start()
        for _ in range(2):
            scan(uri)
        found = pins(daemon)
        ranges = [(one["offset"], one["len"]) for one in found["ranges"]]
        check_equal(ranges, [(MIB, PINNED), (100 * MIB, 4096)], "the ranges")
        check_equal(found["cached"], found["pinned"], "bytes cached")
    before, client = misses(daemon), connect(uri)
    for offset in range(MIB, MIB + PINNED, MIB):
        client.pread(MIB, offset)
    check_equal(misses(daemon), before, "misses")
    daemon.cli("unpin", "v", f"{100 * MIB}+4K")
    check_equal(len(pins(daemon)["ranges"]), 1, "ranges")
    check("1048576+16777216" in daemon.cli("pin", "v").stdout, "the range is not printed")
    daemon.cli("unpin", "v", "--all")
    check_equal(pins(daemon)["ranges"], [], "the ranges")
    daemon.cli("delete", "--force", "v")
    check_equal(os.listdir(os.path.join(daemon.state, "pins")), [], "lists of deleted volumes")


@test
def ranges_are_loaded_ahead_and_evicted(box):
    daemon, uri = volume(box)
    daemon.cli("prefetch", "v", "8M+8M")
    before, client = misses(daemon), connect(uri)
    for offset in range(8 * MIB, 16 * MIB, MIB):
        client.pread(MIB, offset)
    check_equal(misses(daemon), before, "misses")
    client.pwrite(b"x" * 4096, 9 * MIB)
    daemon.cli("evict", "v", "8M+4M")
    check_equal(client.pread(4096, 9 * MIB), b"x" * 4096, "the dirty block")
    check_equal(misses(daemon), before, "misses of a dirty block")
    client.pread(4096, 12 * MIB)
    check_equal(misses(daemon), before, "misses beside the range")
    client.pread(4096, 8 * MIB)
    check_equal(misses(daemon), before + 1, "misses of an evicted block")


@test
def what_cannot_be_pinned_is_refused(box):
    daemon, _uri = volume(box)
    for place, word in (
        ("0+1P", "not within"), ("255M+2M", "not within"), ("0+0", "not within"), ("0+60M", "would be pinned"),
        ("/nowhere", "No such file"), ("/", "neither a file"), ("1G", "No such file"), (box.file("f", 4096), "no block device"),
    ):  # fmt: skip
        run = daemon.cli("pin", "v", place, expect=None)
        check(run.returncode in (2, 3) and word in run.stderr, f"{place}: {run.stderr}")
    check_equal(pins(daemon)["ranges"], [], "the ranges")
    daemon.cli("evict", "v", expect=2)
    daemon.cli("unpin", "v", expect=2)


@test
def a_file_is_pinned(box):
    daemon, device = exported(box, size=SIZE)
    uri = daemon.show("v")["export"]["nbd"]
    box.run("mkfs.ext4", "-q", "-F", device)
    mount = box.path("mnt")
    os.mkdir(mount)
    box.run("mount", device, mount)
    box.at_end(box.run, "umount", mount)
    path = os.path.join(mount, "file")
    with open(path, "wb") as file:
        file.write(random_bytes("file", PINNED))
    os.sync()
    daemon.cli("flush", "v")
    daemon.cli("drop", "v")
    daemon.cli("pin", "v", path)
    found = pins(daemon)
    check(PINNED <= found["pinned"] <= PINNED + MIB, f"{found['pinned']} bytes are pinned")
    check_equal(found["cached"], found["pinned"], "bytes cached")
    scan(uri)
    check_equal(pins(daemon)["cached"], found["pinned"], "bytes cached after a scan")
    daemon.cli("unpin", "v", path)
    check_equal(pins(daemon)["pinned"], 0, "bytes pinned")
    run = daemon.cli("pin", "v", box.file("elsewhere", 4096), expect=2)
    check("not on a file system" in run.stderr, run.stderr)


main()
