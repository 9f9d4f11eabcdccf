"""Discards: over dirty blocks, over terabytes, and of less than a block."""

import os

from harness import *
from harness.devices import exported

TIB = 1 << 40


def allocated(path):
    """Returns the bytes that a file takes on its filesystem."""
    return os.stat(path).st_blocks * 512


@test
def dirty_blocks_are_discarded_without_a_write(box):
    daemon, origin = box.daemon(), box.path("origin")
    with open(origin, "wb") as file:
        file.truncate(64 * MIB)
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), origin))
    daemon.cli("set", "v", "writeback_running=off", "sequential_cutoff=0")
    for at in range(0, 16 * MIB, MIB):
        client.pwrite(random_bytes(at, MIB), at)
    client.flush()
    check_equal(daemon.show("v")["blocks"]["dirty"], 4096, "the dirty blocks before")
    written = daemon.show("v")["bytes"]["cache_written"]
    for _ in range(2):
        client.trim(16 * MIB - 8192, 4096)
    report = daemon.show("v")
    check_equal(report["blocks"]["dirty"], 2, "the dirty blocks")
    check(report["bytes"]["cache_written"] - written < MIB, "a discard was written to the cache")
    check_equal(allocated(origin), 0, "the bytes of the origin")
    for ending in "kill", "terminate":
        client.shutdown()
        getattr(daemon, ending)()
        daemon.start()
        client = connect(daemon.uri("v"))
        for at in range(4096, 16 * MIB - 4096, 512 << 10):
            check_equal(bytes(client.pread(4096, at)), bytes(4096), f"at {at} after {ending}")
        first, last = random_bytes(0, MIB)[:4096], random_bytes(15 * MIB, MIB)[-4096:]
        check_equal(bytes(client.pread(4096, 0)), first, f"the first block after {ending}")
        check_equal(bytes(client.pread(4096, 16 * MIB - 4096)), last, f"the last block after {ending}")
    daemon.cli("flush", "v")
    check(allocated(origin) <= 64 << 10, "zeroes were written to the origin")
    client.shutdown()


@test
def terabytes_are_mapped_and_discarded(box):
    """Were each block looked up, this would take ten minutes."""
    terabytes(box, 8 * TIB)


@test
def a_tier_in_ram_passes_terabytes_too(box):
    terabytes(box, 2 * TIB, "--ram", "16M")


def terabytes(box, size, *arguments):
    origin, place = box.path("origin"), size // 8 * 5
    try:
        with open(origin, "wb") as file:
            file.truncate(size)
    except OSError as error:
        skip(f"no sparse file of {size} bytes here: {error}")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin, *arguments)
    client = connect(uri)
    client.pwrite(b"\x07" * MIB, place)
    runs = [line.split()[:3] for line in box.run("nbdinfo", "--map", uri).stdout.splitlines()]
    data = [[int(start), int(length)] for start, length, kind in runs if kind == "0"]
    check_equal(data, [[place, MIB]], "what is not a hole")
    step = 2 << 30
    for at in range(0, size, step):
        client.trim(step, at)
    check_equal(bytes(client.pread(MIB, place)), bytes(MIB), "what was discarded")
    if not arguments:
        # A tier in RAM sends them on in parts.
        check_equal(daemon.show("v")["requests"]["discards"], size // step, "the discards")
    client.shutdown()


@test
def a_part_of_a_block_is_no_failure(box):
    daemon, device = exported(box, size=64 * MIB)
    report = daemon.show("v")
    before, latency = report["requests"], report["latency"]
    box.run("blkdiscard", "--offset", "4096", "--length", str(MIB), device)
    box.run("blkdiscard", "--offset", "512", "--length", "1024", device)
    report = daemon.show("v")
    check_equal(report["requests"]["discards"] - before["discards"], 1, "the discards")
    check_equal(report["latency"]["discard"]["count"] - latency["discard"]["count"], 1, "the latencies of discards")
    check_equal(report["latency"]["write"]["count"] - latency["write"]["count"], 1, "the writes")
    check_equal(report["requests"]["failed"], before["failed"], "the failed requests")


main()
