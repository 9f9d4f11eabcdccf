"""Zeroes that must keep their space: a preallocated origin stays preallocated."""

import os

from harness import *
from harness.wire import *

SIZE = 64 * MIB
NO_HOLE = 2


def preallocated(box, name):
    """A file with space for all of it."""
    path = box.path(name)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
        file.write(b"\xaa" * SIZE)
    return path


def space(path):
    return os.stat(path).st_blocks * 512


def zero(wire, flags):
    """Zeroes of every kind: large, small, with edges that are no whole blocks."""
    for offset, length in ((1 * MIB, 32 * MIB), (40 * MIB, 4096), (48 * MIB + 512, 8 * MIB)):
        check_equal(wire.ask(ZEROES, offset, length, flags=flags)[0], 0, f"zeroes at {offset}")
        check_equal(wire.ask(READ, offset, 4096), (0, bytes(4096)), f"a read at {offset}")


@test
def a_preallocated_origin_keeps_its_space(box):
    origin = preallocated(box, "origin")
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), origin)
    wire, _ = opened(daemon.nbd, "v")
    # Some of it is dirty in the cache: its zeroes are written back later.
    check_equal(wire.ask(WRITE, 2 * MIB, MIB, b"\x01" * MIB)[0], 0, "a write")
    zero(wire, NO_HOLE)
    daemon.cli("flush", "v")
    check(space(origin) >= SIZE, f"the origin has {space(origin)} of {SIZE} bytes left")
    zero(wire, 0)
    daemon.cli("flush", "v")
    check(space(origin) < SIZE, "zeroes that may be a hole made none")
    with open(origin, "rb") as file:
        content = file.read()
    check_equal(content[MIB : 33 * MIB].count(0), 32 * MIB, "zeroes on the origin")
    check_equal(content[:MIB], b"\xaa" * MIB, "the origin before the zeroes")


@test
def a_raw_device_keeps_its_space(box):
    origin = preallocated(box, "origin")
    daemon = box.daemon("--export-raw", f"r={origin}")
    wire, _ = opened(daemon.nbd, "r")
    zero(wire, NO_HOLE)
    check(space(origin) >= SIZE, f"the device has {space(origin)} of {SIZE} bytes left")
    zero(wire, 0)
    check(space(origin) < SIZE, "zeroes that may be a hole made none")
    fast = 1 << 4
    check_equal(wire.ask(ZEROES, 0, MIB, flags=fast)[0], 0, "fast zeroes, as a hole")
    check_equal(wire.ask(ZEROES, 0, MIB, flags=fast | NO_HOLE)[0], ENOTSUP, "nothing is known to be fast")


main()
