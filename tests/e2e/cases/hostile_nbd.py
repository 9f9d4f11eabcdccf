"""Clients that break the rules of NBD: the daemon stays up, and others go on undisturbed."""

import contextlib
import random
import struct

from harness import *
from harness.wire import *

SIZE = 64 * MIB


class Neighbour:
    """A client that behaves, beside one that does not."""

    def __init__(self, box):
        self.box = box
        self.daemon = box.daemon()
        uri = self.daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))
        self.path = self.daemon.nbd
        self.client = connect(uri)
        self.count = 0

    def check(self):
        """Whether everything still works for it, and for one who comes now."""
        self.daemon.check_alive()
        self.count += 1
        data = random_bytes(self.count, 65536)
        self.client.pwrite(data, 48 * MIB)
        self.client.flush()
        wire, size = opened(self.path, "v")
        with wire:
            check_equal(size, SIZE, "the size that a new client sees")
            check_equal(wire.ask(READ, 48 * MIB, 65536), (0, data), "what a new client reads")

    def memory(self):
        """Bytes of RAM that the daemon holds."""
        with open(f"/proc/{self.daemon.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@test
def ranges_that_cannot_be_are_refused_and_the_stream_goes_on(box):
    neighbour = Neighbour(box)
    wire, size = opened(neighbour.path, "v")
    top = (1 << 64) - 512
    for command, offset, length, data, expected in (
        (READ, size, 512, b"", EINVAL),
        (READ, size - 512, 1024, b"", EINVAL),
        (READ, top, 1024, b"", EINVAL),
        (READ, 0, (1 << 32) - 1, b"", EINVAL),
        (READ, 1, 512, b"", EINVAL),
        (READ, 0, 100, b"", EINVAL),
        (WRITE, size, 512, b"\x01" * 512, ENOSPC),
        (WRITE, size - 512, 1 << 20, b"\x01" * (1 << 20), ENOSPC),
        (WRITE, top, 1024, b"\x01" * 1024, ENOSPC),
        (WRITE, 0, 513, b"\x01" * 513, EINVAL),
        (TRIM, size, 512, b"", EINVAL),
        (ZEROES, size, 512, b"", ENOSPC),
        (ZEROES, top, 1024, b"", ENOSPC),
        (99, 0, 512, b"", EINVAL),
        (0xFFFF, 0, 0, b"", EINVAL),
    ):
        error, _ = wire.ask(command, offset, length, data)
        check_equal(error, expected, f"command {command} at {offset}+{length}")
    check_equal(wire.ask(READ, 0, 512, flags=0x8000)[0], EINVAL, "an unknown flag")
    check_equal(wire.ask(READ, 0, 4096), (0, bytes(4096)), "a read after all that")
    neighbour.check()


@test
def a_huge_length_allocates_nothing(box):
    neighbour = Neighbour(box)
    before = neighbour.memory()
    wires = []
    for _ in range(20):
        wire, _ = opened(neighbour.path, "v")
        wire.request(WRITE, 0, (1 << 32) - 1, b"\x01" * 65536)
        wires.append(wire)
    neighbour.check()
    grown = neighbour.memory() - before
    check(grown < 256 * MIB, f"the daemon has grown by {grown >> 20} MiB")
    for wire in wires:
        wire.close()
    neighbour.check()


@test
def bad_magic_ends_one_connection(box):
    neighbour = Neighbour(box)
    wire, _ = opened(neighbour.path, "v")
    wire.request(READ, 0, 512, magic=0x12345678)
    check(wire.is_closed(), "a request without its magic was taken")
    neighbour.check()
    wire = Wire(neighbour.path)
    wire.receive(18)
    wire.send(struct.pack(">I", 3) + b"NOMAGIC!" + bytes(8))
    check(wire.is_closed(), "an option without its magic was taken")
    neighbour.check()
    wire = Wire(neighbour.path)
    wire.receive(18)
    wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check(wire.is_closed(), "a browser was taken for a client")
    neighbour.check()


@test
def names_that_nobody_has_are_refused(box):
    neighbour = Neighbour(box)
    for name in (b"w", b"V", b"\xff\xfe", b"../v", b"v\0", b"n" * 255, b"n" * 4096, b"n" * 60000):
        wire = Wire(neighbour.path)
        wire.greet()
        wire.send_option(GO, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))
        with contextlib.suppress(EOFError):
            _, kind, _ = wire.option_reply()
            check(kind & 0x80000000, f"the name {name[:20]!r} was taken")
    wire = Wire(neighbour.path)
    wire.greet()
    wire.send_option(EXPORT_NAME, b"nobody")
    check(wire.is_closed(), "EXPORT_NAME of a volume that is not there did not end the connection")
    # Lengths inside the option that are lies.
    for data in (b"", b"\0", struct.pack(">I", 1 << 31) + b"v", struct.pack(">I", 1) + b"v\xff\xff"):
        wire = Wire(neighbour.path)
        wire.greet()
        wire.send_option(GO, data)
        with contextlib.suppress(EOFError):
            check(wire.option_reply()[1] & 0x80000000, f"the data {data!r} were taken")
    neighbour.check()


@test
def a_thousand_options_and_one_without_end(box):
    neighbour = Neighbour(box)
    wire = Wire(neighbour.path)
    wire.greet()
    for number in range(1000):
        wire.send_option(1000 + number, b"x" * (number % 50))
        option, kind, _ = wire.option_reply()
        check_equal((option, kind), (1000 + number, 0x80000001), "the reply to an unknown option")
    check_equal(wire.go("v"), SIZE, "the size after a thousand options")
    wire = Wire(neighbour.path)
    wire.greet()
    wire.send_option(LIST, b"", length=(1 << 32) - 1)
    with contextlib.suppress(OSError):
        for _ in range(64):
            wire.send(bytes(65536))
    wire.close()
    neighbour.check()


@test
def half_of_everything_and_a_close(box):
    neighbour = Neighbour(box)
    before = neighbour.memory()
    for round in range(3):
        # In all fewer than one user has places for.
        idle = [Wire(neighbour.path) for _ in range(40)]
        for number, wire in enumerate(idle):
            if number % 4:
                wire.greet()
            if number % 4 == 2:
                wire.send(b"IHAVEO")
            if number % 4 == 3:
                wire.send_option(GO, b"", length=500)
        neighbour.check()
        for wire in idle:
            wire.close()
    for length in (512, 4096, 1 << 20, 32 << 20):
        for part in (0, 1, 511, 4000, 70000):
            wire, _ = opened(neighbour.path, "v")
            wire.request(WRITE, 0, length, b"\x01" * min(part, length - 1))
            wire.close()
    neighbour.check()
    wire, _ = opened(neighbour.path, "v")
    with wire:
        error, data = wire.ask(READ, 0, MIB)
    check_equal((error, data), (0, bytes(MIB)), "a write that was cut short has left something")
    check(neighbour.memory() - before < 256 * MIB, "the daemon has kept their memory")


@test
def replies_that_nobody_reads(box):
    neighbour = Neighbour(box)
    before = neighbour.memory()
    wires = []
    for _ in range(10):
        wire, _ = opened(neighbour.path, "v")
        wire.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(5000):
                wire.request(READ, 0, MIB)
        wires.append(wire)
    neighbour.check()
    grown = neighbour.memory() - before
    check(grown < 1 * GIB, f"the daemon has grown by {grown >> 20} MiB")
    for wire in wires:
        wire.close()
    neighbour.check()


@test
def random_bytes_at_every_stage(box):
    neighbour = Neighbour(box)
    numbers = random.Random(5)
    for round in range(120):
        with contextlib.suppress(OSError, EOFError, Failure, struct.error):
            wire = Wire(neighbour.path)
            wire.socket.settimeout(0.05)
            if round % 3:
                wire.greet(flags=numbers.choice((0, 1, 2, 3, 0xFFFFFFFF)))
            if round % 3 == 2:
                wire.go("v")
                for _ in range(20):
                    head = numbers.randbytes(24)
                    wire.send(struct.pack(">I", REQUEST_MAGIC) + head)
            wire.send(numbers.randbytes(numbers.randrange(1, 5000)))
            wire.receive(1)
        wire.close()
    neighbour.check()


@test
def many_connections_at_once(box):
    neighbour = Neighbour(box)
    wires = []
    for number in range(400):
        try:
            wires.append(opened(neighbour.path, "v")[0])
        except (OSError, EOFError):
            break
    check(len(wires) >= 100, f"only {len(wires)} clients were let in")
    for wire in wires:
        wire.request(READ, 0, 4096)
    for wire in wires:
        _, error = wire.reply()
        check_equal(error, 0, "a read of one of many")
        wire.receive(4096)
    for wire in wires:
        wire.close()
    neighbour.check()


main()
