"""An NBD client that may say anything: bytes on a socket, no checks of its own."""

import socket
import struct

from .cases import Failure

GREETING = b"NBDMAGIC" + b"IHAVEOPT"
REQUEST_MAGIC, SIMPLE_REPLY_MAGIC = 0x25609513, 0x67446698
OPTION_REPLY_MAGIC = 0x3E889045565A9

EXPORT_NAME, ABORT, LIST, INFO, GO = 1, 2, 3, 6, 7
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, ZEROES = 0, 1, 2, 3, 4, 5, 6
EINVAL, ENOSPC, ENOTSUP = 22, 28, 95
FIXED_NEWSTYLE, NO_ZEROES = 1, 2

# A server that does not answer for so long never will.
PATIENCE = 30


class Wire:
    """One connection, up to wherever the test takes it."""

    def __init__(self, path, source=None):
        """Connects to the path of a unix socket, or a host and a port, perhaps from another address."""
        self.socket = socket.socket(socket.AF_UNIX if isinstance(path, str) else socket.AF_INET)
        self.socket.settimeout(PATIENCE)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(path)
        self.cookie = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, size):
        """Exactly so many bytes."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except TimeoutError:
                raise Failure("the server does not answer") from None
            if not part:
                raise EOFError("the server has closed the connection")
            data += part
        return bytes(data)

    def is_closed(self):
        """Whether the server ends the connection; whatever it still sends is dropped."""
        try:
            while self.socket.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def greet(self, flags=FIXED_NEWSTYLE | NO_ZEROES):
        """Takes the greeting and answers it."""
        greeting = self.receive(18)
        if greeting[:16] != GREETING:
            raise Failure(f"a strange greeting: {greeting!r}")
        self.send(struct.pack(">I", flags))

    def send_option(self, option, data=b"", length=None):
        """Sends an option; the length may be a lie."""
        length = len(data) if length is None else length
        self.send(b"IHAVEOPT" + struct.pack(">II", option, length) + data)

    def option_reply(self):
        """The next reply to an option: which, its kind and its data."""
        magic, option, kind, length = struct.unpack(">QIII", self.receive(20))
        if magic != OPTION_REPLY_MAGIC:
            raise Failure(f"a strange reply to an option: {magic:#x}")
        return option, kind, self.receive(length)

    def go(self, name):
        """Ends the handshake with a volume; returns its size."""
        name = name if isinstance(name, bytes) else name.encode()
        self.send_option(GO, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))
        size = None
        while True:
            _, kind, data = self.option_reply()
            if kind == 1:
                return size
            if kind != 3:
                raise Failure(f"the volume was refused with {kind:#x}")
            if data[:2] == b"\0\0":
                size = struct.unpack(">Q", data[2:10])[0]

    def request(self, command, offset=0, length=0, data=b"", flags=0, magic=REQUEST_MAGIC):
        """Sends a request without waiting for the reply."""
        self.cookie += 1
        head = struct.pack(">IHHQQI", magic, flags, command, self.cookie, offset, length)
        self.send(head + data)
        return self.cookie

    def reply(self):
        """The next reply: the cookie and the error."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        if magic != SIMPLE_REPLY_MAGIC:
            raise Failure(f"a strange reply: {magic:#x}")
        return cookie, error

    def ask(self, command, offset=0, length=0, data=b"", flags=0):
        """A request and its reply: the error, and the data of a read."""
        cookie = self.request(command, offset, length, data, flags)
        found, error = self.reply()
        if found != cookie:
            raise Failure(f"a reply to request {found} instead of {cookie}")
        return error, self.receive(length) if command == READ and error == 0 else b""


def opened(path, name):
    """A connection that has a volume; also its size."""
    wire = Wire(path)
    wire.greet()
    return wire, wire.go(name)
