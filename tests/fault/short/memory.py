"""Greedy clients of a daemon in a memory cgroup: it is not killed, and serves others."""

import struct

from harness import *
from harness.wire import *

LIMIT = 512 * MIB
SIZE = 4 * GIB


def served(box):
    daemon = Confined(box, MemoryGroup(box, LIMIT))
    daemon.start()
    group = daemon.group
    uri = daemon.create("v", box.file("cache", GIB), box.file("origin", SIZE))
    return group, daemon, uri


def check_served(group, daemon, uri, version):
    daemon.check_alive()
    client = Client(uri)
    check_equal(client.write_blocks(0, 64, version), 64, "blocks acknowledged to a client that behaves")
    client.flush()
    client.check_block(63, version)
    check_equal(group.kills(), 0, "processes that the kernel killed")
    daemon.check_alive()


def push(wire, *requests):
    """Sends as many of the requests as are taken."""
    wire.socket.settimeout(0.2)
    try:
        for command, offset, length, data in requests:
            wire.request(command, offset, length, data)
    except (TimeoutError, ConnectionError):
        pass


@test
def prefetches(box):
    group, daemon, uri = served(box)
    wires = [opened(daemon.nbd, "v")[0] for _ in range(16)]
    for number, wire in enumerate(wires):
        places = [(number * 256 + index) * 2 * MIB % SIZE for index in range(256)]
        push(wire, *((CACHE, place, 2 * MIB, b"") for place in places))
    check_served(group, daemon, uri, 1)


@test
def reads_whose_replies_are_not_read(box):
    group, daemon, uri = served(box)
    wires = [opened(daemon.nbd, "v")[0] for _ in range(64)]
    for number, wire in enumerate(wires):
        push(wire, *((READ, (number * 8 + index) * 4 * MIB % SIZE, 16 * MIB, b"") for index in range(8)))
    check_served(group, daemon, uri, 1)


@test
def writes_that_are_half_sent(box):
    group, daemon, uri = served(box)
    head = struct.pack(">IHHQQI", REQUEST_MAGIC, 0, WRITE, 1, GIB, 32 * MIB)
    wires = [opened(daemon.nbd, "v")[0] for _ in range(64)]
    for wire in wires:
        wire.socket.settimeout(0.5)
        try:
            wire.send(head + bytes(31 * MIB))
        except TimeoutError:
            pass
    check_served(group, daemon, uri, 1)


@test
def requests_that_wait_for_a_hung_origin(box):
    daemon = Confined(box, MemoryGroup(box, LIMIT))
    daemon.start()
    group = daemon.group
    origin = Disk(box, "origin", SIZE)
    uri = daemon.create("v", box.file("cache", GIB), origin.name)
    origin.faults("hang read")
    wires = [opened(daemon.nbd, "v")[0] for _ in range(100)]
    for number, wire in enumerate(wires):
        push(wire, *((READ, (number * 16 + index) * MIB % SIZE, MIB, b"") for index in range(16)))
    check_served(group, daemon, uri, 1)
    origin.heal()
    for wire in wires:
        wire.close()
    check_served(group, daemon, uri, 2)


main()
