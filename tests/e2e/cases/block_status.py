"""The map that a client gets of a volume is the truth: holes, cached and dirty blocks."""

import json
import os
import random
import time

from harness import *
from harness.wire import *

SIZE = 64 * MIB
HOLE = 3
CACHED, DIRTY = 1, 2


def holes_of(path):
    """For each block of a file whether it is in a hole."""
    holes = [True] * (SIZE // BLOCK)
    with open(path, "rb") as file:
        end = 0
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:
                return holes
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            for block in range(start // BLOCK, -(-end // BLOCK)):
                holes[block] = False


def sparse(box, name):
    """An origin with data here and there; its path and its content."""
    path = box.file(name, SIZE)
    content = bytearray(SIZE)
    with open(path, "r+b") as file:
        for place, length in ((0, MIB), (5 * MIB, 64 * KIB), (20 * MIB, 8 * MIB), (SIZE - MIB, MIB)):
            data = random_bytes((name, place), length)
            content[place : place + length] = data
            file.seek(place)
            file.write(data)
    if not any(holes_of(path)):
        skip("the filesystem of the tests does not tell its holes")
    return path, content


class Maps:
    """A client that asks for both maps of a volume."""

    def __init__(self, daemon, name):
        self.wire = ExtendedWire(daemon.nbd)
        _, ids = self.wire.open(name, "base:allocation", "forebay:state")
        check_equal(sorted(ids), ["base:allocation", "forebay:state"], "the contexts")
        self.ids = [ids["base:allocation"], ids["forebay:state"]]

    def take(self):
        """For each block its flags in both contexts."""
        maps = ([], [])
        for blocks, context in zip(maps, self.ids):
            at = 0
            while at < SIZE:
                for length, flags in self.wire.status(at, SIZE - at)[context]:
                    check(length % BLOCK == 0, f"an extent of {length} bytes")
                    blocks += [flags] * (length // BLOCK)
                    at += length
            check_equal(at, SIZE, "the end of the map")
        return maps

    def compare(self, daemon, origin, content):
        """Fails unless the maps are the truth about a volume that nobody uses."""
        for attempt in range(50):
            dirty = daemon.dirty("v")
            allocation, state = self.take()
            holes = holes_of(origin)
            if dirty == daemon.dirty("v") == sum(flags & DIRTY != 0 for flags in state):
                break
            # Writeback goes on.
            time.sleep(0.1)
        else:
            raise Failure(f"{dirty} blocks are dirty, {sum(flags & DIRTY != 0 for flags in state)} in the map")
        for block, (flags, above) in enumerate(zip(allocation, state)):
            check(above in (0, CACHED, CACHED | DIRTY), f"block {block} has the state {above}")
            expected = HOLE if holes[block] and not above else 0
            check_equal(flags, expected, f"the allocation of block {block}, whose state is {above}")
            if flags:
                data = content[block * BLOCK : (block + 1) * BLOCK]
                check(not any(data), f"block {block} is reported as a hole and has data")
        return allocation, state


@test
def the_map_is_the_truth_after_any_writes_discards_and_drains(box):
    origin, content = sparse(box, "origin")
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 128 * MIB), origin)
    maps = Maps(daemon, "v")
    wire = maps.wire
    maps.compare(daemon, origin, content)
    numbers = random.Random(34)
    for round in range(40):
        place = numbers.randrange(SIZE // 512) * 512
        length = min(numbers.choice((512, 4096, 20 * KIB, MIB)), SIZE - place)
        kind = numbers.randrange(6)
        if kind <= 1:
            data = random_bytes(round, length)
            check_equal(wire.ask(WRITE, place, length, data)[0], 0, "a write")
            content[place : place + length] = data
        elif kind == 2:
            check_equal(wire.ask(ZEROES, place, length)[0], 0, "zeroes")
            content[place : place + length] = bytes(length)
        elif kind == 3:
            check_equal(wire.ask(TRIM, place, length)[0], 0, "a discard")
            # It may have kept the data of the blocks at its edges.
            content[place : place + length] = wire.ask(READ, place, length)[1]
        elif kind == 4:
            check_equal(wire.ask(READ, place, length), (0, bytes(content[place : place + length])), "a read")
        else:
            check_equal(wire.ask(FLUSH)[0], 0, "a flush")
        if round % 10 == 9:
            daemon.cli("flush", "v")
            check_equal(daemon.dirty("v"), 0, "dirty blocks after a drain")
        maps.compare(daemon, origin, content)
    allocation, state = maps.take()
    check(HOLE in allocation and 0 in allocation and CACHED in state, "the maps say nothing")
    daemon.restart()
    check_equal(Maps(daemon, "v").take()[1], state, "the states after a restart")


@test
def dirty_data_over_a_hole_is_data(box):
    origin, content = sparse(box, "origin")
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 128 * MIB), origin)
    maps = Maps(daemon, "v")
    for length in (BLOCK, 512):
        place = 40 * MIB + length
        data = b"\x01" * length
        check_equal(maps.wire.ask(WRITE, place, length, data)[0], 0, "a write")
        content[place : place + length] = data
        _, state = maps.compare(daemon, origin, content)
        check_equal(state[place // BLOCK], CACHED | DIRTY, "the state of a written block")
        check(holes_of(origin)[place // BLOCK], "the write has reached the origin already")
    ((length, flags),) = maps.wire.status(30 * MIB, 20 * MIB, REQ_ONE)[maps.ids[0]]
    check_equal((length, flags), (10 * MIB, HOLE), "the first extent alone")


@test
def deferred_writes_are_dirty_in_ram(box):
    origin, content = sparse(box, "origin")
    daemon = box.daemon()
    settings = ("--ram", "64M", "--durability", "deferred", "--defer", "60s")
    daemon.create("v", box.file("cache", 128 * MIB), origin, *settings)
    maps = Maps(daemon, "v")
    places = [40 * MIB, 41 * MIB + 4 * KIB, 21 * MIB]
    for place in places:
        data = b"\x02" * BLOCK
        check_equal(maps.wire.ask(WRITE, place, BLOCK, data)[0], 0, "a write")
        content[place : place + BLOCK] = data
    allocation, state = maps.take()
    for place in places:
        check_equal(state[place // BLOCK], CACHED | DIRTY, "the state of a deferred block")
        check_equal(allocation[place // BLOCK], 0, "the allocation of a deferred block")
    check_equal(sum(flags & DIRTY != 0 for flags in state), len(places), "dirty blocks in the map")
    check(holes_of(origin)[places[0] // BLOCK], "the write has reached the origin already")
    check_equal(maps.wire.ask(FLUSH)[0], 0, "a flush")
    maps.compare(daemon, origin, content)
    check_equal(maps.wire.ask(READ, 45 * MIB, BLOCK), (0, bytes(BLOCK)), "a read of a hole")
    _, state = maps.take()
    check_equal(state[45 * MIB // BLOCK], CACHED, "the state of a block that was read into RAM")
    daemon.cli("flush", "v")
    allocation, state = maps.take()
    check(not any(flags & DIRTY for flags in state), "a block is dirty after a drain")
    for place in places:
        check_equal(allocation[place // BLOCK], 0, "the allocation of a block that was written")


@test
def real_clients_see_the_holes(box):
    need("nbdinfo", "nbdcopy", "qemu-img")
    origin, content = sparse(box, "origin")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 128 * MIB), origin)
    with ExtendedWire(daemon.nbd) as wire:
        wire.open("v")
        check_equal(wire.ask(WRITE, 10 * MIB, MIB, b"\x03" * MIB)[0], 0, "a write")
    content[10 * MIB : 11 * MIB] = b"\x03" * MIB
    extents = json.loads(box.run("nbdinfo", "--map", "--json", uri).stdout)
    data = [(extent["offset"], extent["length"]) for extent in extents if extent["type"] == 0]
    expected = [(0, MIB), (5 * MIB, 64 * KIB), (10 * MIB, MIB), (20 * MIB, 8 * MIB), (SIZE - MIB, MIB)]
    check_equal(data, expected, "the data that nbdinfo sees")
    extents = json.loads(box.run("nbdinfo", "--map=forebay:state", "--json", uri).stdout)
    dirty = [(extent["offset"], extent["length"]) for extent in extents if extent["type"] == 3]
    check_equal(dirty, [(10 * MIB, MIB)], "the dirty data that nbdinfo sees")
    extents = json.loads(box.run("qemu-img", "map", "--output=json", "--image-opts", f"driver=nbd,path={daemon.nbd},export=v").stdout)
    data = [(extent["start"], extent["length"]) for extent in extents if not extent["zero"]]
    check_equal(data, expected, "the data that qemu-img sees")
    box.run("nbdcopy", uri, box.path("copy"))
    with open(box.path("copy"), "rb") as file:
        check(file.read() == content, "the copy differs")
    used = os.stat(box.path("copy")).st_blocks * 512
    check(used < SIZE // 2, f"the copy of a sparse volume uses {used >> 20} MiB")


main()
