"""Data that can be recognised, and models of what a volume may hold."""

import hashlib
import random
import struct
import time

from .cases import Failure, Unanswered, check, skip

BLOCK = 4096
_HEAD = struct.Struct(">8sQQQ")
_MAGIC = b"stamped!"

# A request that takes longer will never be answered. Devices that hang do so for a tenth of it.
PATIENCE = 120


def random_bytes(seed, size):
    """The same bytes for the same seed, quickly."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


def stamp(place, version, seed=0):
    """A block that says where and in which version it was written, in every byte."""
    head = _HEAD.pack(_MAGIC, place, version, seed)
    return head + hashlib.shake_128(head).digest(BLOCK - len(head))


def read_stamp(data, place, seed=0):
    """The version of a block; 0 if it was never written. Fails on anything else."""
    if data == bytes(BLOCK):
        return 0
    magic, found, version, found_seed = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise Failure(f"block {place} holds data that nobody wrote")
    if (found, found_seed) != (place, seed):
        raise Failure(f"block {place} holds block {found} of run {found_seed}")
    if data != stamp(place, version, seed):
        raise Failure(f"block {place} holds parts of several writes")
    return version


def connect(uri):
    """A client on a volume."""
    try:
        import nbd
    except ImportError:
        skip("python3-libnbd is missing (make deps)")
    client = nbd.NBD()
    client.connect_uri(uri)
    return client


def first_difference(found, expected):
    """Where two byte strings differ first; None if they do not."""
    if found == expected:
        return None
    for start in range(0, max(len(found), len(expected)), 512):
        if found[start : start + 512] != expected[start : start + 512]:
            return start
    return None


def check_patience(since, what):
    """Fails if something has been waited for since then that will never come."""
    if time.monotonic() - since > PATIENCE:
        raise Unanswered(f"{what} within {PATIENCE} s")


class Recorder:
    """Writes stamped blocks over several connections and remembers what each may be later.

    No two writes to one block are in flight at once, so each block has one history.
    """

    def __init__(self, uri, connections=3, blocks=4096, seed=1, first=0):
        self.clients = [connect(uri) for _ in range(connections)]
        self.flusher = connect(uri)
        self.blocks, self.seed, self.first = blocks, seed, first
        self.random = random.Random(seed)
        self.submitted = [0] * blocks
        self.acked = [0] * blocks
        self.durable = [0] * blocks
        self.in_flight = {}
        self.flushes = 0

    def reconnect(self, uri):
        """Goes on after a crash; what was in flight is forgotten."""
        connections = len(self.clients)
        self.in_flight.clear()
        self.clients = [connect(uri) for _ in range(connections)]
        self.flusher = connect(uri)

    def offset(self, block):
        return (self.first + block) * BLOCK

    def start_write(self, flags=0):
        """Starts the next version of a random block on a random connection."""
        block = self.random.randrange(self.blocks)
        if block in self.in_flight:
            return
        client = self.random.choice(self.clients)
        version = self.submitted[block] + 1
        self.submitted[block] = version
        cookie = client.aio_pwrite(
            bytearray(stamp(self.first + block, version, self.seed)), self.offset(block), flags=flags
        )
        self.in_flight[block] = (client, cookie, version, flags != 0)

    def collect(self, wait=0):
        """Notes which writes have been acknowledged."""
        for client in self.clients:
            if client.aio_in_flight():
                client.poll(wait)
        for block, (client, cookie, version, fua) in list(self.in_flight.items()):
            if client.aio_command_completed(cookie):
                del self.in_flight[block]
                self.acked[block] = version
                if fua:
                    self.durable[block] = version

    def collect_until(self, most):
        """Waits until no more writes than that are in flight."""
        fewest, since = len(self.in_flight), time.monotonic()
        while len(self.in_flight) > most:
            self.collect(100)
            if len(self.in_flight) < fewest:
                fewest, since = len(self.in_flight), time.monotonic()
            check_patience(since, f"{fewest} writes were not answered")

    def write(self, number, depth=32, flags=0):
        """Writes so many times with so many in flight; does not wait for the last ones."""
        for _ in range(number):
            self.collect_until(depth - 1)
            self.start_write(flags)
            self.collect()

    def settle(self):
        """Waits until nothing is in flight."""
        self.collect_until(0)

    def flush(self):
        """Flushes on a connection that wrote nothing, while writes go on."""
        covered = list(self.acked)
        since = time.monotonic()
        cookie = self.flusher.aio_flush()
        while not self.flusher.aio_command_completed(cookie):
            check_patience(since, f"a flush was not answered, beside {len(self.in_flight)} writes,")
            self.start_write()
            self.collect()
            self.flusher.poll(1)
        self.durable = [max(pair) for pair in zip(self.durable, covered)]
        self.flushes += 1

    def verify(self, uri):
        """Reads everything back: no block is older than promised or newer than submitted."""
        client = connect(uri)
        run = 256
        lost = 0
        for start in range(0, self.blocks, run):
            number = min(run, self.blocks - start)
            data = client.pread(number * BLOCK, self.offset(start))
            for index in range(number):
                block = start + index
                part = bytes(data[index * BLOCK : (index + 1) * BLOCK])
                version = read_stamp(part, self.first + block, self.seed)
                oldest, newest = self.durable[block], self.submitted[block]
                check(
                    oldest <= version <= newest,
                    f"block {block} has version {version}; durable was {oldest}, written {newest}",
                )
                lost += version < self.acked[block]
                # What has been read is what later reads must give.
                self.submitted[block] = self.acked[block] = version
        client.shutdown()
        return lost


class Model:
    """A volume beside a byte array that is told the same."""

    def __init__(self, client, size, seed, content=b""):
        self.client, self.size = client, size
        self.random = random.Random(seed)
        self.bytes = bytearray(size)
        self.bytes[: len(content)] = content

    def range(self, unit=512, longest=256):
        """A random range in units."""
        units = self.size // unit
        start = self.random.randrange(units)
        length = min(self.random.choice((1, 1, 2, 8, 8, 16, longest)), units - start)
        return start * unit, length * unit

    def step(self):
        """One random operation on both."""
        offset, length = self.range()
        match self.random.randrange(10):
            case 0 | 1 | 2 | 3:
                data = self.random.randbytes(length)
                self.client.pwrite(data, offset)
                self.bytes[offset : offset + length] = data
            case 4:
                self.client.zero(length, offset)
                self.bytes[offset : offset + length] = bytes(length)
            case 5:
                self.client.trim(length, offset)
                # What a trim leaves is not promised until it is read, and then it stays.
                data = self.client.pread(length, offset)
                old = self.bytes[offset : offset + length]
                for sector in range(0, length, 512):
                    part = bytes(data[sector : sector + 512])
                    check(
                        part in (bytes(512), bytes(old[sector : sector + 512])),
                        f"a trim of {offset}+{length} brought back other data at {offset + sector}",
                    )
                self.bytes[offset : offset + length] = data
            case _:
                self.check_range(offset, length)

    def check_range(self, offset, length):
        """Reads a range and compares."""
        found = bytes(self.client.pread(length, offset))
        place = first_difference(found, bytes(self.bytes[offset : offset + length]))
        check(place is None, f"a read of {offset}+{length} is wrong from {offset + (place or 0)}")

    def check_all(self):
        """Reads everything and compares."""
        for offset in range(0, self.size, 1 << 20):
            self.check_range(offset, min(1 << 20, self.size - offset))
