"""An origin that remembers every write and every sync: a small NBD server in Python behind nbdfuse.

A daemon opens the file of nbdfuse like any other origin. What it would find after a power cut at
some point is built from the record: the content at first, and the writes up to that point.
"""

import os
import socket
import struct
import threading

MAGIC, OPTION_MAGIC, REPLY_MAGIC = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
REQUEST, SIMPLE = 0x25609513, 0x67446698
EXPORT_NAME, ABORT, LIST, INFO, GO = 1, 2, 3, 6, 7
ACK, REPLY_INFO, UNSUPPORTED = 1, 3, 2**31 + 1
# Has flags, flush, FUA, several connections.
FLAGS = 1 | 4 | 8 | 256
READ, WRITE, CLOSE, FLUSH = 0, 1, 2, 3


class OriginRecorder:
    """Serves `size` bytes of zeroes at a socket."""

    def __init__(self, path, size):
        self.size = size
        self.data = bytearray(size)
        # (offset, bytes) of writes, and None for a sync.
        self.events = []
        self.lock = threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            try:
                stream = client.makefile("rwb")
                if self.greet(stream):
                    self.transmit(stream)
            except (OSError, struct.error):
                pass

    def greet(self, stream):
        stream.write(struct.pack(">QQH", MAGIC, OPTION_MAGIC, 3))
        stream.flush()
        stream.read(4)
        while True:
            _, option, length = struct.unpack(">QII", stream.read(16))
            stream.read(length)
            replies = []
            if option in (INFO, GO):
                replies.append((REPLY_INFO, struct.pack(">HQH", 0, self.size, FLAGS)))
                replies.append((ACK, b""))
            elif option == EXPORT_NAME:
                stream.write(struct.pack(">QH", self.size, FLAGS))
                stream.flush()
                return True
            else:
                replies.append((ACK if option == ABORT else UNSUPPORTED, b""))
            for kind, body in replies:
                stream.write(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(body)) + body)
            stream.flush()
            if option in (GO, ABORT):
                return option == GO

    def transmit(self, stream):
        while True:
            _, flags, command, cookie, offset, length = struct.unpack(">IHHQQI", stream.read(28))
            answer = b""
            if command == CLOSE:
                return
            if command == READ:
                with self.lock:
                    answer = bytes(self.data[offset : offset + length])
            elif command == WRITE:
                content = stream.read(length)
                with self.lock:
                    self.data[offset : offset + length] = content
                    self.events.append((offset, content))
                    if flags & 1:
                        self.events.append(None)
            elif command == FLUSH:
                with self.lock:
                    self.events.append(None)
            stream.write(struct.pack(">IIQ", SIMPLE, 0, cookie) + answer)
            stream.flush()

    def count(self):
        """Events up to now."""
        with self.lock:
            return len(self.events)

    def syncs(self, first=0):
        """The places of syncs in the record after which something was written."""
        places, written = [], False
        for place, event in enumerate(self.events):
            if event is not None:
                written = True
            elif written and place >= first:
                places.append(place)
                written = False
        return places

    def replay(self, path, first, places):
        """Yields each place with the content of the origin there in a file, beginning at `first`, where
        the content is zero."""
        with open(path, "wb") as file:
            file.truncate(self.size)
        done = first
        for place in places:
            with open(path, "r+b") as file:
                for event in self.events[done:place]:
                    if event is not None:
                        file.seek(event[0])
                        file.write(event[1])
            done = place
            yield place, path


def open_file(box, name, size):
    """A recorder and the path of its file; both end with the test."""
    from .cases import skip

    recorder = OriginRecorder(box.path(f"{name}.sock"), size)
    box.at_end(recorder.close)
    directory = box.path(name)
    os.makedirs(directory)
    process = box.spawn("nbdfuse", f"{directory}/disk", f"nbd+unix:///?socket={box.path(name)}.sock")
    box.at_end(box.run, "fusermount3", "-u", "-z", directory)
    for _ in range(200):
        if os.path.exists(f"{directory}/disk"):
            return recorder, f"{directory}/disk"
        if process.poll() is not None:
            break
        threading.Event().wait(0.05)
    skip("nbdfuse does not work here (no /dev/fuse?)")
