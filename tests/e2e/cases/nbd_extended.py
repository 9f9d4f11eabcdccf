"""Extended headers of NBD: lengths of 64 bits, and clients that get them wrong."""

import contextlib
import json
import random
import struct

from harness import *
from harness.wire import *

SIZE = 20 * GIB


class Served:
    """A volume of 20 GiB, most of it a hole."""

    def __init__(self, box):
        self.daemon = box.daemon()
        self.uri = self.daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))

    def open(self, *contexts):
        """A connection with extended headers."""
        wire = ExtendedWire(self.daemon.nbd)
        check_equal(wire.open("v", *contexts)[0], SIZE, "the size")
        return wire

    def check(self):
        """Whether others are served as before."""
        self.daemon.check_alive()
        with self.open() as wire:
            check_equal(wire.ask(READ, 0, 4096)[0], 0, "a read of a new client")


@test
def one_request_may_be_larger_than_4_gib(box):
    wire = Served(box).open("base:allocation")
    data = random_bytes("some", MIB)
    for place in (0, 5 * GIB, SIZE - MIB):
        check_equal(wire.ask(WRITE, place, MIB, data), (0, b""), "a write")
        check_equal(wire.ask(READ, place, MIB), (0, data), "what was written")
    check_equal(wire.ask(ZEROES, MIB, 10 * GIB), (0, b""), "zeroes over 10 GiB")
    check_equal(wire.ask(READ, 5 * GIB, MIB), (0, bytes(MIB)), "what was zeroed")
    check_equal(wire.ask(TRIM, 0, SIZE - MIB), (0, b""), "a discard of nearly everything")
    check_equal(wire.ask(READ, SIZE - MIB, MIB), (0, data), "what was not discarded")
    check_equal(wire.ask(FLUSH), (0, b""), "a flush")
    ((_, extents),) = wire.status(0, SIZE).items()
    check(0 < sum(length for length, _ in extents) <= SIZE, f"a strange map: {extents}")


@test
def lengths_beyond_every_limit_are_refused_and_the_stream_goes_on(box):
    served = Served(box)
    wire = served.open("base:allocation")
    top = (1 << 64) - 512
    for command, offset, length, expected in (
        (READ, 0, 33 * MIB, EOVERFLOW),
        (READ, 0, 5 * GIB, EOVERFLOW),
        (READ, 0, top, EOVERFLOW),
        (CACHE, 0, 5 * GIB, EOVERFLOW),
        (READ, SIZE, 512, EINVAL),
        (TRIM, 0, SIZE + 512, EINVAL),
        (TRIM, top, 1024, EINVAL),
        (TRIM, 1024, top, EINVAL),
        (ZEROES, 0, SIZE + 512, ENOSPC),
        (ZEROES, 1024, top, ENOSPC),
        (BLOCK_STATUS, 0, SIZE + 512, EINVAL),
        (BLOCK_STATUS, 1024, top, EINVAL),
        (BLOCK_STATUS, 0, 0, EINVAL),
        (99, 0, 512, EINVAL),
    ):
        check_equal(wire.ask(command, offset, length)[0], expected, f"command {command} at {offset}+{length}")
    # A payload is dropped where none belongs, and a write needs one.
    for command in (READ, TRIM, ZEROES, FLUSH, BLOCK_STATUS, 99):
        error, _ = wire.ask(command, 0, 512, b"\x01" * 512, flags=PAYLOAD_LEN)
        check_equal(error, EINVAL, f"command {command} with a payload")
    check_equal(wire.ask(WRITE, 0, 512, flags=0)[0], EINVAL, "a write without a payload")
    check_equal(wire.ask(WRITE, SIZE, 32 * MIB, bytes(32 * MIB))[0], ENOSPC, "a write beyond the end")
    check_equal(wire.ask(READ, 0, 512), (0, bytes(512)), "a read after all that")
    for command in (WRITE, READ, 99):
        wire = served.open()
        wire.request(command, 0, 32 * MIB + 512, flags=PAYLOAD_LEN)
        check(wire.is_closed(), f"command {command} with more than the largest payload was waited for")
    wire = served.open()
    wire.request(READ, 0, 512, magic=REQUEST_MAGIC)
    check(wire.is_closed(), "a compact request was taken among extended ones")
    served.check()


@test
def options_are_refused_where_they_do_not_go_with_extended_headers(box):
    served = Served(box)
    wire = Wire(served.daemon.nbd)
    wire.greet()
    for option, data, expected in (
        (EXTENDED_HEADERS, b"\0", 0x80000003),
        (EXTENDED_HEADERS, b"", 1),
        (EXTENDED_HEADERS, b"", 1),
        (STRUCTURED_REPLY, b"", 0x8000000A),
    ):
        wire.send_option(option, data)
        check_equal(wire.option_reply()[:2], (option, expected), "the reply to an option")
    wire.send_option(EXPORT_NAME, b"v")
    check(wire.is_closed(), "EXPORT_NAME was taken although it cannot be answered")
    served.check()


@test
def random_extended_headers_hurt_nobody(box):
    served = Served(box)
    numbers = random.Random(7)
    for _ in range(60):
        with served.open("base:allocation") as wire:
            wire.socket.settimeout(0.05)
            try:
                for _ in range(20):
                    head = struct.pack(">IHH", EXTENDED_REQUEST_MAGIC, numbers.randrange(64), numbers.randrange(9))
                    length = numbers.choice((0, 512, 4096, numbers.getrandbits(64)))
                    wire.send(head + struct.pack(">QQQ", 1, numbers.getrandbits(numbers.randrange(64)), length))
                    wire.send(numbers.randbytes(numbers.randrange(600)))
                wire.receive(1)
            except (OSError, EOFError, Failure):
                pass
    served.check()


@test
def maps_that_nobody_reads_are_held_back(box):
    served = Served(box)
    wires = [served.open("base:allocation", "forebay:state") for _ in range(10)]
    for wire in wires:
        wire.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(20000):
                wire.request(BLOCK_STATUS, 0, SIZE)
    served.check()
    with served.open("base:allocation") as wire:
        check_equal(wire.status(GIB, 4096), {1: [(4096, 3)]}, "the map that a new client sees")
    for wire in wires:
        wire.close()
    served.check()


@test
def libnbd_negotiates_them(box):
    need("nbdinfo")
    served = Served(box)
    asked = box.run("nbdinfo", "--can", "extended-headers", served.uri, expect=None)
    if asked.returncode not in (0, 2):
        skip("this nbdinfo is older than 1.20 and knows no extended headers")
    check_equal(asked.returncode, 0, "whether libnbd has extended headers")
    extents = json.loads(box.run("nbdinfo", "--map", "--json", served.uri).stdout)
    check_equal(sum(extent["length"] for extent in extents), SIZE, "bytes in the map")


main()
