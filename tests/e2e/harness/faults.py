"""Devices with faults on command, and clients that expect errors but never wait for ever."""

import errno
import os
import time

from .cases import Failure, check
from .data import BLOCK, Recorder, connect, read_stamp, stamp
from .sandbox import MIB

# A guard against hangs; what is promised takes a tenth of it.
PATIENCE = 30
# After this the daemon has seen a new control file.
SEEN = 0.02


class Disk:
    """A file that fails as it is told, see "Faulty devices" in docs/testing.md."""

    def __init__(self, box, name, size, content=b""):
        self.path = box.file(name, size, content)
        self.name = f"faulty:{self.path}"
        self.control = f"{self.path}.faults"

    def faults(self, *rules):
        """Has these faults from now on and no others."""
        with open(f"{self.control}.new", "w") as file:
            file.write("\n".join(rules) + "\n")
        os.rename(f"{self.control}.new", self.control)
        time.sleep(SEEN)

    def heal(self):
        """Has no faults any more."""
        self.faults("# none")

    def read(self, offset, size):
        """What is on it, as someone else would see it."""
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(size)


class Client:
    """A connection whose every request ends within a bounded time."""

    def __init__(self, uri):
        self.nbd = connect(uri)

    def finish(self, cookie, what, patience=PATIENCE):
        """Waits for the end of a request. Raises `nbd.Error` if it failed."""
        end = time.monotonic() + patience
        while not self.nbd.aio_command_completed(cookie):
            if time.monotonic() > end:
                raise Failure(f"{what} was not answered within {patience} s")
            self.nbd.poll(100)

    def start_read(self, offset, size):
        """Starts a read; its data will be in the buffer."""
        import nbd

        buffer = nbd.Buffer(size)
        return self.nbd.aio_pread(buffer, offset), buffer

    def read(self, offset, size=BLOCK, patience=PATIENCE):
        cookie, buffer = self.start_read(offset, size)
        self.finish(cookie, f"a read of {offset}+{size}", patience)
        return bytes(buffer.to_bytearray())

    def start_write(self, data, offset):
        return self.nbd.aio_pwrite(bytearray(data), offset)

    def write(self, data, offset, patience=PATIENCE):
        self.finish(self.start_write(data, offset), f"a write of {offset}+{len(data)}", patience)

    def write_blocks(self, first, number, version=1):
        """Writes stamped blocks, many at a time; returns how many were acknowledged."""
        return sum(error is None for error in self.try_blocks(range(first, first + number), version))

    def try_blocks(self, blocks, version=1, depth=64, patience=PATIENCE):
        """Writes stamped blocks; gives for each its error, or None."""
        pending, errors = [], []
        for block in blocks:
            pending.append(self.start_write(stamp(block, version), block * BLOCK))
            if len(pending) == depth:
                errors.append(self.error_of(pending.pop(0), "a write", patience))
        return errors + [self.error_of(cookie, "a write", patience) for cookie in pending]

    def error_of(self, cookie, what, patience=PATIENCE):
        """The name of the error that a request ended with; None: it succeeded."""
        import nbd

        try:
            self.finish(cookie, what, patience)
        except nbd.Error as error:
            return errno.errorcode.get(error.errnum, error.errnum)
        return None

    def flush(self, patience=PATIENCE):
        self.finish(self.nbd.aio_flush(), "a flush", patience)

    def check_block(self, block, version):
        """Fails unless a block holds exactly this version."""
        found = read_stamp(self.read(block * BLOCK), block)
        check(found == version, f"block {block} has version {found}, not {version}")


def attempt(function, *arguments, **options):
    """The name of the error that a request ends with; None: it succeeds."""
    import nbd

    try:
        function(*arguments, **options)
    except nbd.Error as error:
        return errno.errorcode.get(error.errnum, error.errnum)
    return None


class Survivor(Recorder):
    """A recorder that goes on after errors: a write that failed may be there or not."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.errors = 0
        self.connections = len(self.clients)

    def collect(self, wait=0):
        import nbd

        for client in self.clients:
            if client.aio_in_flight():
                client.poll(wait)
        for block, (client, cookie, version, fua) in list(self.in_flight.items()):
            try:
                if not client.aio_command_completed(cookie):
                    continue
                self.acked[block] = version
                if fua:
                    self.durable[block] = version
            except nbd.Error:
                self.errors += 1
            del self.in_flight[block]

    def try_flush(self):
        """Flushes, with writes in between; whether it succeeded."""
        import nbd

        try:
            self.flush()
        except nbd.Error:
            self.errors += 1
            return False
        return True

    def forget(self):
        """Drops the connections; what was in flight may have been written."""
        self.in_flight.clear()
        self.clients, self.flusher = [], None

    def reconnect(self, uri):
        self.forget()
        self.clients = [connect(uri) for _ in range(self.connections)]
        self.flusher = connect(uri)

    def check_reads(self, uri, may_fail=False):
        """Reads every block while the volume is in use; returns how many gave errors.

        No block is older than acknowledged or newer than submitted. Errors are tolerated where
        nothing was written, or everywhere if it `may_fail`.
        """
        import nbd

        client, failed = Client(uri), 0
        for block in range(self.blocks):
            try:
                data = client.read(self.offset(block))
            except nbd.Error:
                check(may_fail or not self.submitted[block], f"block {block} cannot be read")
                failed += self.submitted[block] > 0
                continue
            version = read_stamp(data, self.first + block, self.seed)
            oldest, newest = self.acked[block], self.submitted[block]
            check(
                oldest <= version <= newest,
                f"block {block} has version {version}; acknowledged was {oldest}, written {newest}",
            )
        return failed


def wait_for(condition, what, patience=PATIENCE):
    """Waits until a condition holds; fails if it never does."""
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise Failure(f"after {patience} s still not so: {what}")
        time.sleep(0.1)


def read_until(client, start, end, condition, what):
    """
    Reads a range again and again until a condition holds. One time may not be enough to have it cached: blocks are filled
    after their reads are answered, and those for which a busy cache device leaves no room in the log are not.
    """

    def read():
        for offset in range(start, end, MIB):
            client.pread(MIB, offset)
        return condition()

    wait_for(read, what)


def verb(daemon, *arguments, patience=2 * PATIENCE):
    """Runs a verb that has to complete, whatever its result; gives that."""
    return daemon.cli(*arguments, expect=None, patience=patience)
