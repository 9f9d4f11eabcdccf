"""An NBD client that may say anything: bytes on a socket, no checks of its own."""

import socket
import struct

from .cases import Failure

GREETING = b"NBDMAGIC" + b"IHAVEOPT"
REQUEST_MAGIC, SIMPLE_REPLY_MAGIC = 0x25609513, 0x67446698
EXTENDED_REQUEST_MAGIC, EXTENDED_REPLY_MAGIC = 0x21E41C71, 0x6E8A278C
OPTION_REPLY_MAGIC = 0x3E889045565A9

EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO = 1, 2, 3, 5, 6, 7
STRUCTURED_REPLY, LIST_META_CONTEXT, SET_META_CONTEXT, EXTENDED_HEADERS = 8, 9, 10, 11
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, ZEROES, BLOCK_STATUS = 0, 1, 2, 3, 4, 5, 6, 7
REQ_ONE, PAYLOAD_LEN = 8, 32
OFFSET_DATA, BLOCK_STATUS_EXT, CHUNK_ERROR = 1, 6, 0x8001
EINVAL, ENOSPC, EOVERFLOW, ENOTSUP = 22, 28, 75, 95
FIXED_NEWSTYLE, NO_ZEROES = 1, 2

# A server that does not answer for so long never will.
PATIENCE = 30


class Wire:
    """One connection, up to wherever the test takes it."""

    def __init__(self, path, source=None):
        """Connects to the path of a unix socket, or a host and a port, perhaps from another address."""
        family = socket.AF_INET6 if ":" in path[0] else socket.AF_INET
        self.socket = socket.socket(socket.AF_UNIX if isinstance(path, str) else family)
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

    def start_tls(self, context):
        """Encrypts the connection."""
        self.send_option(STARTTLS)
        reply = self.option_reply()
        if reply != (STARTTLS, 1, b""):
            raise Failure(f"TLS was refused: {reply}")
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def contexts(self, option, name, *queries):
        """Lists or sets metadata contexts: their ids."""
        texts = [text.encode() for text in (name, *queries)]
        data = struct.pack(">I", len(texts[0])) + texts[0] + struct.pack(">I", len(queries))
        self.send_option(option, data + b"".join(struct.pack(">I", len(text)) + text for text in texts[1:]))
        found = {}
        while True:
            _, kind, data = self.option_reply()
            if kind == 1:
                return found
            if kind != 4:
                raise Failure(f"the contexts were refused with {kind:#x}: {data!r}")
            found[data[4:].decode()] = struct.unpack(">I", data[:4])[0]

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


class ExtendedWire(Wire):
    """A connection with extended headers."""

    def open(self, name, *contexts):
        """Shakes hands; returns the size of the volume, and the ids of the contexts."""
        self.greet()
        self.send_option(EXTENDED_HEADERS)
        if self.option_reply()[1] != 1:
            raise Failure("there are no extended headers")
        ids = self.contexts(SET_META_CONTEXT, name, *contexts) if contexts else {}
        return self.go(name), ids

    def request(self, command, offset=0, length=0, data=b"", flags=None, magic=EXTENDED_REQUEST_MAGIC):
        """Sends a request without waiting for the reply; the flags are those that are right."""
        self.cookie += 1
        if flags is None:
            flags = PAYLOAD_LEN if command == WRITE else 0
        head = struct.pack(">IHHQQQ", magic, flags, command, self.cookie, offset, length)
        self.send(head + data)
        return self.cookie

    def chunk(self):
        """The next chunk: the cookie, the offset, its flags, its kind, its content."""
        magic, flags, kind, cookie, offset, length = struct.unpack(">IHHQQQ", self.receive(32))
        if magic != EXTENDED_REPLY_MAGIC:
            raise Failure(f"a strange reply: {magic:#x}")
        return cookie, offset, flags, kind, self.receive(length)

    def chunks(self, command, offset=0, length=0, data=b"", flags=None):
        """A request and all chunks of its reply: kinds and contents."""
        cookie = self.request(command, offset, length, data, flags)
        found = []
        while True:
            one = self.chunk()
            if one[:2] != (cookie, offset):
                raise Failure(f"a reply to request {one[0]} at {one[1]} instead of {cookie}")
            found.append(one[3:])
            if one[2] & 1:
                return found

    def ask(self, command, offset=0, length=0, data=b"", flags=None):
        """A request and its reply of one chunk: the error, and the data of a read."""
        ((kind, content),) = self.chunks(command, offset, length, data, flags)
        if kind == CHUNK_ERROR:
            return struct.unpack(">I", content[:4])[0], b""
        return 0, content[8:] if kind == OFFSET_DATA else b""

    def status(self, offset, length, flags=0):
        """The status of a range: for each context its extents, pairs of a length and flags."""
        contexts = {}
        for kind, content in self.chunks(BLOCK_STATUS, offset, length, flags=flags):
            if kind != BLOCK_STATUS_EXT:
                raise Failure(f"a chunk of kind {kind:#x}: {content!r}")
            context, count = struct.unpack(">II", content[:8])
            if len(content) != 8 + 16 * count or context in contexts:
                raise Failure(f"{count} extents of context {context} in {len(content)} bytes")
            contexts[context] = list(struct.iter_unpack(">QQ", content[8:]))
        return contexts


def free_port():
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def opened(path, name):
    """A connection that has a volume; also its size."""
    wire = Wire(path)
    wire.greet()
    return wire, wire.go(name)
