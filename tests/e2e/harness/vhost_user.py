"""A driver of virtio-blk in a process: what a virtual machine and its monitor do together.

Its memory outlives a connection, so that it can go on with the next daemon as a guest would.
"""

import mmap
import os
import select
import socket
import struct
import time

from .cases import Failure, Unanswered, check, check_equal

GUEST, OWN = 1 << 28, 0x7F00_0000_0000
PATIENCE = 60
SLOT_BYTES = 64 << 10
SECTOR = 512

# Messages.
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR = 12, 13, 14
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM = 15, 16, 17
SET_VRING_ENABLE, GET_CONFIG, SET_CONFIG, GET_INFLIGHT_FD, SET_INFLIGHT_FD = 18, 24, 25, 31, 32
ADD_MEM_REG, REM_MEM_REG = 37, 38
# Features.
RO, FLUSH, EVENT_IDX, INDIRECT, PROTOCOL, VERSION_1 = 1 << 5, 1 << 9, 1 << 29, 1 << 28, 1 << 30, 1 << 32
REPLY_ACK, CONFIG, INFLIGHT = 1 << 3, 1 << 9, 1 << 12
# Requests.
IN, OUT, FLUSH_REQUEST, GET_ID, DISCARD, WRITE_ZEROES = 0, 1, 4, 8, 11, 13


class Gone(Exception):
    """The daemon has closed the connection."""


class Queue:
    """The rings of one queue, with a fixed slot of buffers for each request in progress."""

    def __init__(self, memory, index, start, size):
        self.memory, self.index, self.size = memory, index, size
        # Written at once: struct.pack_into() zeroes the place first, which the device could see.
        self.words = memoryview(memory).cast("H")
        self.slots = size // 4
        self.descriptors = start
        self.available = start + 16 * size
        self.used = (self.available + 6 + 2 * size + 3) // 4 * 4
        self.buffers = (self.used + 6 + 8 * size + 4095) // 4096 * 4096
        self.end = self.buffers + self.slots * (SLOT_BYTES + 4096)
        self.next, self.seen = 0, 0
        self.free = list(range(self.slots))
        self.pending = {}
        self.kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.call = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def word(self, at):
        return struct.unpack_from("<H", self.memory, at)[0]

    def put_word(self, at, value):
        self.words[at // 2] = value & 0xFFFF

    def descriptor(self, index, at, length, flags, following):
        place = self.descriptors + 16 * index
        struct.pack_into("<QIHH", self.memory, place, GUEST + at, length, flags, following)

    def offer(self, head, change=None):
        """Makes a chain available; `change` is called right before the device can see it."""
        self.put_word(self.available + 4 + 2 * (self.next % self.size), head)
        self.next = (self.next + 1) & 0xFFFF
        if change:
            change(self)
        self.put_word(self.available + 2, self.next)

    def notify(self):
        """Tells the device, whether it asks for that or not."""
        os.eventfd_write(self.kick, 1)

    def submit(self, kind, offset=0, data=b"", length=0, change=None):
        """Starts a request, with `change` as for offer(); returns its first descriptor, or None if no
        slot is free."""
        if not self.free:
            return None
        slot = self.free.pop()
        head, place = 4 * slot, self.buffers + slot * (SLOT_BYTES + 4096)
        header, status, body = place, place + 64, place + 4096
        struct.pack_into("<IIQ", self.memory, header, kind, 0, offset // SECTOR)
        self.memory[status] = 0xFF
        self.memory[body : body + len(data)] = data
        self.descriptor(head, header, 16, 1, head + 1)
        if data or length:
            flags = 1 if data else 3
            self.descriptor(head + 1, body, len(data) or length, flags, head + 2)
        else:
            self.descriptor(head, header, 16, 1, head + 2)
        self.descriptor(head + 2, status, 1, 2, 0)
        self.pending[head] = (slot, status, body, length)
        self.offer(head, change)
        return head

    def collect(self):
        """Returns what has been answered: first descriptors with status and data."""
        answered = []
        while self.seen != self.word(self.used + 2):
            head, _ = struct.unpack_from("<II", self.memory, self.used + 4 + 8 * (self.seen % self.size))
            self.seen = (self.seen + 1) & 0xFFFF
            check(head in self.pending, f"request {head} was answered twice")
            slot, status, body, length = self.pending.pop(head)
            answered.append((head, self.memory[status], bytes(self.memory[body : body + length])))
            self.free.append(slot)
        # Asks to be notified of the next one.
        self.put_word(self.available + 4 + 2 * self.size, self.seen)
        return answered

    def wait(self):
        """Waits for answers."""
        end = time.monotonic() + PATIENCE
        while not (answered := self.collect()):
            if self.seen != self.word(self.used + 2):
                continue
            if not select.select([self.call], [], [], max(0, end - time.monotonic()))[0]:
                raise Unanswered(f"queue {self.index}: no answer after {PATIENCE} s")
            os.eventfd_read(self.call)
        return answered


class Driver:
    """A client with queues in memory that it shares."""

    def __init__(self, path, queues=1, size=64, features=FLUSH | EVENT_IDX | VERSION_1, inflight=True):
        self.path, self.features, self.wants_record = path, features, inflight
        self.file = os.memfd_create("guest")
        self.bytes = 64 << 20
        os.ftruncate(self.file, self.bytes)
        self.memory = mmap.mmap(self.file, self.bytes)
        self.queues, start = [], 0
        for index in range(queues):
            self.queues.append(Queue(self.memory, index, start, size))
            start = self.queues[-1].end
        check(start <= self.bytes, "too many queues for the memory of this test")
        self.record = None
        self.connect()

    def connect(self):
        """Connects, also again: requests in progress stay in the queues."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(self.path)
        self.hello()
        for queue in self.queues:
            self.start(queue)

    def hello(self):
        """Everything before the queues."""
        self.send(SET_OWNER)
        self.offered = self.ask(GET_FEATURES)
        self.protocol = self.ask(GET_PROTOCOL_FEATURES)
        used = (REPLY_ACK | CONFIG | INFLIGHT) & self.protocol
        self.send(SET_PROTOCOL_FEATURES, struct.pack("=Q", used))
        self.order(SET_FEATURES, struct.pack("=Q", self.features | PROTOCOL))
        if self.wants_record:
            if self.record is None:
                size = self.queues[0].size
                self.send(GET_INFLIGHT_FD, struct.pack("=QQHH4x", 0, 0, len(self.queues), size))
                reply, files = self.receive()
                self.record = (reply, files[0])
            self.order(SET_INFLIGHT_FD, self.record[0], [self.record[1]])
        region = struct.pack("=QQQQ", GUEST, self.bytes, OWN, 0)
        self.order(SET_MEM_TABLE, struct.pack("=II", 1, 0) + region, [self.file])

    def start(self, queue, base=None):
        """Starts a queue."""
        state = struct.Struct("=II").pack
        base = queue.word(queue.used + 2) if base is None else base
        self.order(SET_VRING_NUM, state(queue.index, queue.size))
        self.order(SET_VRING_BASE, state(queue.index, base))
        places = [OWN + at for at in (queue.descriptors, queue.used, queue.available)]
        self.order(SET_VRING_ADDR, struct.pack("=IIQQQQ", queue.index, 0, *places, 0))
        self.order(SET_VRING_CALL, struct.pack("=Q", queue.index), [queue.call])
        self.order(SET_VRING_KICK, struct.pack("=Q", queue.index), [queue.kick])
        self.order(SET_VRING_ENABLE, state(queue.index, 1))

    def send(self, code, payload=b"", files=(), flags=1):
        message = struct.pack("=III", code, flags, len(payload)) + payload
        try:
            if files:
                socket.send_fds(self.socket, [message], list(files))
            else:
                self.socket.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            raise Gone from None

    def receive(self):
        """An answer: its payload and its descriptors."""
        try:
            head, files, _, _ = socket.recv_fds(self.socket, 12, 8)
            if not head:
                raise Gone
            code, flags, length = struct.unpack("=III", head)
            check_equal(flags & 7, 5, f"flags of the answer to message {code}")
            payload = b""
            while len(payload) < length:
                if not (part := self.socket.recv(length - len(payload))):
                    raise Gone
                payload += part
            return payload, files
        except ConnectionResetError:
            raise Gone from None

    def ask(self, code, payload=b""):
        """A message that is answered with a number."""
        self.send(code, payload)
        return struct.unpack("=Q", self.receive()[0])[0]

    def order(self, code, payload=b"", files=()):
        """A message that is confirmed."""
        self.send(code, payload, files, flags=9)
        confirmed = struct.unpack("=Q", self.receive()[0])[0]
        check_equal(confirmed, 0, f"the answer to message {code}")

    def config(self, length=60):
        """The configuration space."""
        self.send(GET_CONFIG, struct.pack("=III", 0, length, 0) + bytes(length))
        return self.receive()[0][12:]

    def stop(self, queue):
        """Stops a queue; returns the index of its next request."""
        self.send(GET_VRING_BASE, struct.pack("=II", queue.index, 0))
        return struct.unpack("=II", self.receive()[0])[1]

    def close(self):
        self.socket.close()

    def is_dropped(self):
        """Whether the daemon closes the connection."""
        try:
            while self.socket.recv(4096):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        except TimeoutError:
            return False
        return True

    def one(self, kind, offset=0, data=b"", length=0, queue=0):
        """A request alone; returns its status and its data."""
        queue = self.queues[queue]
        head = queue.submit(kind, offset, data, length)
        queue.notify()
        answered = queue.wait()
        check_equal([found for found, _, _ in answered], [head], "which request was answered")
        return answered[0][1:]

    def read(self, offset, length, queue=0):
        status, data = self.one(IN, offset, length=length, queue=queue)
        check_equal(status, 0, f"the status of a read at {offset}")
        return data

    def write(self, offset, data, queue=0):
        check_equal(self.one(OUT, offset, data, queue=queue)[0], 0, f"the status of a write at {offset}")

    def flush(self, queue=0):
        check_equal(self.one(FLUSH_REQUEST, queue=queue)[0], 0, "the status of a flush")
