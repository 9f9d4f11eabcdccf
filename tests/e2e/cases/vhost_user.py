"""vhost-user-blk: requests of a guest, restarts that it does not notice, and guests that break the rules."""

import ctypes
import ctypes.util
import os
import random
import struct
import time

from harness import *
from harness.vhost_user import *

SIZE = 64 * MIB


def served(box, *arguments):
    """A daemon with a volume at a socket."""
    path = box.path("vu")
    daemon = box.daemon()
    devices = box.file("cache", 64 * MIB), box.file("origin", SIZE)
    printed = daemon.create("v", *devices, "--export", f"vhost-user={path}", *arguments)
    check_equal(printed, f"vhost-user:{path}", "what create prints")
    return daemon, path, daemon.show("v")["export"]["nbd"]


@test
def a_guest_and_a_client_of_nbd_see_the_same_volume(box):
    daemon, path, uri = served(box)
    driver, client = Driver(path, queues=3), connect(uri)
    config = driver.config()
    check_equal(struct.unpack_from("<Q", config)[0], SIZE // SECTOR, "sectors")
    check_equal(driver.one(GET_ID, length=20), (0, b"v" + bytes(19)), "the name")
    for number in range(60):
        queue, offset = number % 3, number * 65536 + number % 7 * 512
        data = random_bytes(number, random.Random(number).choice((512, 4096, 5120, 65536)))
        if number % 2:
            driver.write(offset, data, queue=queue)
            check_equal(bytes(client.pread(len(data), offset)), data, "what NBD reads")
        else:
            client.pwrite(data, offset)
            check_equal(driver.read(offset, len(data), queue=queue), data, "what the guest reads")
        if number % 10 == 0:
            driver.flush(queue)
    driver.write(MIB, b"\x01" * 65536)
    zeroes = struct.pack("<QII", (MIB + 4096) // SECTOR, 8, 1)
    check_equal(driver.one(WRITE_ZEROES, data=zeroes)[0], 0, "the status of write-zeroes")
    check_equal(driver.read(MIB, 12288), b"\x01" * 4096 + bytes(4096) + b"\x01" * 4096, "zeroes")
    discard = struct.pack("<QII", MIB // SECTOR, 128, 0)
    check_equal(driver.one(DISCARD, data=discard)[0], 0, "the status of a discard")


class Region(ctypes.Structure):
    """struct blkio_mem_region"""

    _fields_ = [
        ("addr", ctypes.c_void_p), ("len", ctypes.c_size_t), ("iova", ctypes.c_uint64),
        ("fd_offset", ctypes.c_int64), ("fd", ctypes.c_int), ("flags", ctypes.c_uint32),
    ]  # fmt: skip


class Completion(ctypes.Structure):
    """struct blkio_completion"""

    _fields_ = [
        ("user_data", ctypes.c_void_p), ("error_msg", ctypes.c_char_p), ("ret", ctypes.c_int),
        ("reserved", ctypes.c_uint8 * 12),
    ]  # fmt: skip


@test
def libblkio_writes_and_reads(box):
    name = ctypes.util.find_library("blkio") or "libblkio.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        skip("libblkio is missing (Debian has it from trixie on)")
    library.blkio_get_error_msg.restype = ctypes.c_char_p
    library.blkio_get_queue.restype = ctypes.c_void_p

    def call(function, *arguments):
        done = getattr(library, function)(*arguments)
        check(done >= 0, f"{function}: {library.blkio_get_error_msg()}")
        return done

    daemon, path, uri = served(box)
    disk, region = ctypes.c_void_p(), Region()
    call("blkio_create", b"virtio-blk-vhost-user", ctypes.byref(disk))
    call("blkio_set_str", disk, b"path", path.encode())
    call("blkio_connect", disk)
    call("blkio_set_int", disk, b"num-queues", 2)
    call("blkio_start", disk)
    call("blkio_alloc_mem_region", disk, ctypes.byref(region), ctypes.c_size_t(4 * MIB))
    call("blkio_map_mem_region", disk, ctypes.byref(region))
    size, parts = 65536, 16
    ended = (Completion * parts)()

    def done(queue, what, count):
        waited = call("blkioq_do_io", queue, ended, count, count, None)
        check_equal([ended[part].ret for part in range(waited)], [0] * count, f"results of {what}")

    for index in range(2):
        queue = ctypes.c_void_p(library.blkio_get_queue(disk, index))
        data = random_bytes(index, size * parts)
        ctypes.memmove(region.addr, data, len(data))

        def all_parts(function, base):
            for part in range(parts):
                getattr(library, function)(
                    queue, ctypes.c_uint64(index * MIB + part * size),
                    ctypes.c_void_p(region.addr + base + part * size), ctypes.c_size_t(size), None, 0,
                )  # fmt: skip
            done(queue, function, parts)

        all_parts("blkioq_write", 0)
        library.blkioq_flush(queue, None, 0)
        done(queue, "a flush", 1)
        all_parts("blkioq_read", 2 * MIB)
        check_equal(ctypes.string_at(region.addr + 2 * MIB, len(data)), data, "what was written")
        check_equal(bytes(connect(uri).pread(len(data), index * MIB)), data, "what NBD reads")
    library.blkio_destroy(ctypes.byref(disk))


@test
def requests_that_cannot_be_fail_alone(box):
    daemon, path, _ = served(box)
    driver = Driver(path)
    top = 1 << 63
    for kind, offset, data, length, expected in (
        (IN, SIZE, b"", 512, 1),
        (IN, SIZE - 512, b"", 1024, 1),
        (IN, top, b"", 512, 1),
        (IN, 0, b"", 100, 1),
        (OUT, SIZE, b"\x01" * 512, 0, 1),
        (OUT, 0, b"\x01" * 513, 0, 1),
        (99, 0, b"", 512, 2),
        (DISCARD, 0, b"\x01" * 512, 0, 2),
        (DISCARD, 0, struct.pack("<QII", 0, 8, 1), 0, 2),
        (DISCARD, 0, struct.pack("<QII", SIZE // SECTOR, 8, 0), 0, 1),
        (WRITE_ZEROES, 0, struct.pack("<QII", 0, 8, 2), 0, 2),
        (WRITE_ZEROES, 0, struct.pack("<QII", (1 << 64) - 1, 8, 0), 0, 1),
        (WRITE_ZEROES, 0, struct.pack("<QII", 0, (1 << 32) - 1, 0), 0, 1),
    ):
        status, _ = driver.one(kind, offset, data, length)
        check_equal(status, expected, f"the status of request {kind} at {offset}")
    driver.write(0, b"\x07" * 4096)
    check_equal(driver.read(0, 4096), b"\x07" * 4096, "data after all that")
    driver.close()

    daemon.terminate()
    daemon.start()
    check_equal(Driver(path).read(0, 4096), b"\x07" * 4096, "data after a restart")


@test
def every_way_to_notify_works(box):
    daemon, path, _ = served(box)
    for features in (VERSION_1, VERSION_1 | EVENT_IDX, VERSION_1 | FLUSH | EVENT_IDX | INDIRECT):
        driver = Driver(path, features=features, size=16, inflight=False)
        for number in range(200):
            data = random_bytes(number, 4096)
            driver.write(number * 4096, data)
            check_equal(driver.read(number * 4096, 4096), data, "what was written")
        driver.close()


@test
def a_socket_comes_and_goes_with_the_setting(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))

    def socket_of():
        uri = daemon.show("v")["export"]["vhost_user"]
        return uri and uri.removeprefix("vhost-user:")

    check_equal(socket_of(), None, "the socket of a volume without one")
    daemon.cli("set", "v", "export=vhost-user")
    usual = socket_of()
    check_equal(usual, os.path.join(os.path.dirname(daemon.socket), "vhost-user", "v.sock"), "the usual socket")
    driver = Driver(usual)
    driver.write(0, b"\x03" * 4096)
    named = box.path("named")
    for command in ("set", "v", "export=nbd"), ("set", "v", f"export=vhost-user={named}"), ("stop", "v"), ("delete", "v"):
        refused = daemon.cli(*command, expect=3).stderr
        check(f"{os.getpid()} (" in refused and usual in refused, f"{command} does not name who uses it: {refused}")
    check_equal(driver.read(0, 4096), b"\x03" * 4096, "what is read after the refusals")
    check_equal(socket_of(), usual, "the socket after the refusals")
    driver.close()
    change = "set", "v", f"export=vhost-user={named}"
    wait_for(lambda: daemon.cli(*change, expect=None).returncode == 0, "the change once nobody is connected")
    check(not os.path.exists(usual), "the former socket is still there")
    check_equal(Driver(named).read(0, 4096), b"\x03" * 4096, "what is read by another socket")
    daemon.kill()
    daemon.start()
    check_equal(socket_of(), named, "the socket after a crash")
    driver = Driver(named)
    daemon.terminate()
    check(not os.path.exists(named), "the socket outlives the daemon")
    daemon.start()
    driver.close()
    driver.connect()
    check_equal(driver.read(0, 4096), b"\x03" * 4096, "what is read after a restart")
    daemon.cli("stop", "--force", "v")
    check(driver.is_dropped(), "the client of a stopped volume stays connected")
    check(not os.path.exists(named), "the socket outlives its volume")
    # What is there already is not replaced, and the setting stays as it was.
    daemon.cli("start", "v")
    taken = box.file("taken", 512)
    daemon.cli("set", "v", f"export=vhost-user={taken}", expect=1)
    check_equal(socket_of(), named, "the socket after a path that is taken")
    for bad in "vhost-user=", "vhost-user=relative", "nbd=/x", "vhost-user=/a/":
        daemon.cli("set", "v", f"export={bad}", expect=2)
    daemon.cli("set", "v", "export=nbd")
    check(not os.path.exists(named), "the socket outlives the setting")


class Load:
    """Writes of many requests at a time, and the knowledge of what must be read."""

    def __init__(self, driver, seed):
        self.driver, self.random = driver, random.Random(seed)
        self.content, self.writing = {}, {}
        self.count = 0

    def fill(self):
        """Keeps every slot busy."""
        for queue in self.driver.queues:
            while queue.free:
                busy = set(self.writing.values())
                block = self.random.randrange(len(self.driver.queues) * 500)
                block = block // len(self.driver.queues) * len(self.driver.queues) + queue.index
                if any(block == other for other, _ in busy):
                    continue
                self.count += 1
                stamp = self.count
                head = queue.submit(OUT, block * 4096, struct.pack("<Q", stamp) * 512)
                self.writing[queue.index, head] = (block, stamp)
            queue.notify()

    def collect(self):
        for queue in self.driver.queues:
            for head, status, _ in queue.collect():
                check_equal(status, 0, "the status of a write")
                block, stamp = self.writing.pop((queue.index, head))
                self.content[block] = stamp

    def drain(self):
        for queue in self.driver.queues:
            while queue.pending:
                for head, status, _ in queue.wait():
                    check_equal(status, 0, "the status of a write")
                    block, stamp = self.writing.pop((queue.index, head))
                    self.content[block] = stamp

    def verify(self):
        for block, stamp in self.content.items():
            found = self.driver.read(block * 4096, 4096, queue=block % len(self.driver.queues))
            check_equal(found, struct.pack("<Q", stamp) * 512, f"block {block}")


def killed_under_load(box, *arguments):
    daemon, path, _ = served(box, *arguments)
    driver = Driver(path, queues=2)
    load = Load(driver, 5)
    again = 0
    for round_ in range(6):
        for _ in range(50):
            load.fill()
            time.sleep(0.002)
            load.collect()
        load.fill()
        daemon.kill()
        again += sum(len(queue.pending) for queue in driver.queues)
        driver.close()
        daemon.start()
        driver.connect()
        load.drain()
        load.verify()
    check(again > 0, "no request was in progress when the daemon was killed")
    driver.flush()


@test
def a_guest_notices_nothing_of_a_kill_but_a_pause(box):
    killed_under_load(box)


@test
def a_guest_notices_nothing_of_a_kill_with_write_through(box):
    killed_under_load(box, "--mode", "writethrough")


@test
def a_stop_answers_what_is_in_progress(box):
    daemon, path, _ = served(box)
    driver = Driver(path, queues=2)
    load = Load(driver, 9)
    for _ in range(5):
        for _ in range(20):
            load.fill()
            load.collect()
        bases = [driver.stop(queue) for queue in driver.queues]
        load.collect()
        for queue, base in zip(driver.queues, bases):
            # What was taken is answered; the rest is taken after the next start.
            check_equal(base, queue.seen, "the index of the next request")
            driver.start(queue, base)
        load.drain()
    load.verify()
    # An orderly end of the daemon, with requests in progress, and the next daemon.
    load.fill()
    daemon.restart()
    driver.close()
    driver.connect()
    load.drain()
    load.verify()
    # Stopped with force, a volume dismisses its client, which comes back when it is there again.
    daemon.cli("stop", "--force", "v")
    check(driver.is_dropped(), "the client of a stopped volume stays connected")
    daemon.cli("start", "v")
    driver.connect()
    load.verify()


def deaf(path):
    """A client that lets the notifications to it block, with a request that was answered."""
    driver = Driver(path)
    queue = driver.queues[0]
    call = os.eventfd(0, os.EFD_CLOEXEC)
    os.eventfd_write(call, (1 << 64) - 2)
    driver.order(SET_VRING_CALL, struct.pack("=Q", 0), [call])
    queue.collect()
    queue.submit(IN, 0, length=4096)
    queue.notify()
    while not queue.collect():
        time.sleep(0.01)
    return driver


@test
def a_client_that_takes_no_notification_takes_nothing_with_it(box):
    daemon, path, _ = served(box)

    def is_served():
        driver = Driver(path)
        driver.write(0, b"\x07" * 4096)
        check_equal(driver.read(0, 4096), b"\x07" * 4096, "what the next client reads")
        driver.close()

    driver = deaf(path)
    check_equal(driver.stop(driver.queues[0]), 1, "the index of the next request")
    driver.close()
    is_served()
    deaf(path).close()
    is_served()
    driver = deaf(path)
    daemon.cli("stop", "v", expect=3)
    driver.close()
    wait_for(lambda: not daemon.show("v")["clients"], "the client has left")
    daemon.cli("stop", "v")
    daemon.cli("start", "v")
    is_served()
    driver = deaf(path)
    daemon.cli("stop", "--force", "v")
    daemon.cli("start", "v")
    is_served()
    driver = deaf(path)
    check_equal(daemon.terminate()[0], 0, "the exit code")
    daemon.start()
    is_served()


class Neighbour:
    """A guest that behaves, beside one that does not."""

    def __init__(self, box):
        self.path, other = box.path("vu"), box.path("other")
        self.daemon = box.daemon()
        for name, path in ("v", self.path), ("w", other):
            devices = box.file(f"cache-{name}", 64 * MIB), box.file(f"origin-{name}", SIZE)
            self.daemon.create(name, *devices, "--export", f"vhost-user={path}")
        self.driver, self.count = Driver(other), 0

    def check(self):
        self.daemon.check_alive()
        self.count += 1
        data = random_bytes(self.count, 4096)
        self.driver.write(self.count * 4096, data)
        check_equal(self.driver.read(self.count * 4096, 4096), data, "what the neighbour reads")


def broken(neighbour, what, breaks):
    """A guest breaks a rule: it is dropped, alone."""
    driver = Driver(neighbour.path)
    driver.write(0, b"\x05" * 4096)
    try:
        breaks(driver)
        check(driver.is_dropped(), f"{what}: the client is not dropped")
    except Gone:
        pass
    driver.close()
    neighbour.check()


@test
def broken_queues_cost_their_own_connection(box):
    neighbour = Neighbour(box)

    def chain(change):
        # A device that is awake takes a request as soon as it can see it.
        def breaks(driver):
            queue = driver.queues[0]
            queue.submit(IN, 0, length=4096, change=change)
            queue.notify()

        return breaks

    def word(at, value):
        return lambda queue: queue.put_word(at(queue), value)

    head = 4 * 15
    # First, because the log names only the first ten of these errors.
    cases = {
        "a truncated file": lambda driver: [os.ftruncate(driver.file, 0), driver.queues[0].notify()],
        "a loop": chain(lambda q: [q.descriptor(i, q.buffers, 16, 1, head) for i in (head, head + 1)]),
        "a descriptor that does not exist": chain(lambda q: q.descriptor(head, q.buffers, 16, 1, 999)),
        "a buffer outside": chain(lambda q: q.descriptor(head + 1, 1 << 40, 4096, 3, head + 2)),
        "a buffer that ends outside": chain(lambda q: q.descriptor(head + 1, (64 << 20) - 512, 4096, 3, head + 2)),
        "a buffer at the end of all addresses": chain(
            lambda q: q.descriptor(head + 1, (1 << 64) - GUEST - 100, 4096, 3, head + 2)
        ),
        "a readable buffer after a writable one": chain(lambda q: q.descriptor(head + 2, q.buffers, 1, 0, 0)),
        "no status": chain(lambda q: q.descriptor(head, q.buffers, 16, 0, 0)),
        "no header": chain(lambda q: q.descriptor(head, q.buffers, 15, 1, head + 2)),
        "an indirect table that was not negotiated": chain(lambda q: q.descriptor(head, q.buffers, 48, 4, 0)),
        "a head that does not exist": chain(word(lambda q: q.available + 4 + 2 * ((q.next - 1) % q.size), 64)),
        "more requests than descriptors": chain(lambda q: setattr(q, "next", 5000)),
        "a request made available twice": chain(lambda q: [q.offer(head) for _ in range(3)]),
        "another record while a queue is served": lambda driver: driver.send(
            SET_INFLIGHT_FD, driver.record[0], [driver.record[1]]
        ),
    }
    for what, breaks in cases.items():
        broken(neighbour, what, breaks)
    driver = Driver(neighbour.path)
    try:
        os.ftruncate(driver.record[1], 0)
        check(False, "the record of requests in progress can be truncated")
    except PermissionError:
        pass
    check("truncated" in neighbour.daemon.log(), "the log does not name the truncated file")


@test
def broken_messages_cost_their_own_connection(box):
    neighbour = Neighbour(box)
    null = os.open("/dev/null", os.O_RDWR)
    many = [null] * 20
    sparse = os.memfd_create("sparse")
    os.ftruncate(sparse, 1 << 46)

    def message(code, payload=b"", files=()):
        return lambda driver: driver.send(code, payload, files)

    region = struct.pack("=QQQQ", 0, 1 << 20, 0, 0)
    cases = {
        "an unknown message": message(77),
        "noise": lambda driver: driver.socket.sendall(random_bytes(1, 4096)),
        "a wrong version": lambda driver: driver.send(SET_OWNER, flags=2),
        "a long payload": lambda driver: driver.socket.sendall(struct.pack("=III", 2, 1, 1 << 31)),
        "a short payload": message(SET_FEATURES, b"\x00"),
        "features that were not offered": message(SET_FEATURES, struct.pack("=Q", 1 << 60)),
        "a queue that does not exist": message(SET_VRING_NUM, struct.pack("=II", 64, 64)),
        "a size that is no power of two": message(SET_VRING_NUM, struct.pack("=II", 1, 65)),
        "a kick without a descriptor": message(SET_VRING_KICK, struct.pack("=Q", 1)),
        "a kick that promises no descriptor": message(SET_VRING_KICK, struct.pack("=Q", 1 | 256)),
        "a kick that is no eventfd": message(SET_VRING_KICK, struct.pack("=Q", 1), [null]),
        "a call that is no eventfd": message(SET_VRING_CALL, struct.pack("=Q", 0), [null]),
        "a change of a queue that is served": message(SET_VRING_BASE, struct.pack("=II", 0, 0)),
        "memory without descriptors": message(SET_MEM_TABLE, struct.pack("=II", 1, 0) + region),
        "memory of a device": message(SET_MEM_TABLE, struct.pack("=II", 1, 0) + region, [null]),
        "too many descriptors": message(SET_MEM_TABLE, struct.pack("=II", 1, 0) + region, many),
        "no memory for the rings": message(SET_MEM_TABLE, struct.pack("=II", 0, 0)),
        "a region that is not there": message(REM_MEM_REG, bytes(8) + region),
        "a region over another": lambda driver: driver.send(
            ADD_MEM_REG, bytes(8) + struct.pack("=QQQQ", GUEST + 4096, 4096, 0, 0), [driver.file]
        ),
        "more memory than the machine has": lambda driver: driver.send(
            ADD_MEM_REG, bytes(8) + struct.pack("=QQQQ", 1 << 47, 1 << 46, 1 << 47, 0), [sparse]
        ),
        "a record of too many queues": message(GET_INFLIGHT_FD, struct.pack("=QQHH4x", 0, 0, 65535, 64)),
        "a change of the capacity": message(SET_CONFIG, struct.pack("=IIIQ", 0, 8, 0, 1)),
        "a configuration space that is too long": message(GET_CONFIG, struct.pack("=III", 1 << 31, 1 << 31, 0)),
    }
    for what, breaks in cases.items():
        broken(neighbour, what, breaks)
    for seed in range(40):
        source = random.Random(seed)

        def noise(driver, source=source):
            for _ in range(20):
                payload = source.randbytes(source.choice((0, 8, 12, 24, 40, 48, 72)))
                if source.random() < 0.5 and len(payload) >= 8:
                    payload = struct.pack("=II", source.randrange(3), source.randrange(3)) + payload[8:]
                files = [source.choice((null, driver.file, driver.queues[0].kick))] * source.randrange(3)
                driver.send(source.randrange(1, 40), payload, files, flags=1)
            driver.socket.shutdown(socket.SHUT_WR)

        broken(neighbour, f"noise {seed}", noise)
    os.close(null)
    os.close(sparse)


@test
def memory_that_changes_under_a_queue_is_followed(box):
    daemon, path, _ = served(box)
    driver = Driver(path)
    driver.write(0, b"\x09" * 4096)
    extra = os.memfd_create("more")
    os.ftruncate(extra, 1 << 20)
    region = bytes(8) + struct.pack("=QQQQ", GUEST + (1 << 30), 1 << 20, OWN + (1 << 30), 0)
    driver.order(ADD_MEM_REG, region, [extra])
    queue = driver.queues[0]
    head = 4 * queue.free[-1]
    queue.submit(IN, 0, length=4096, change=lambda q: q.descriptor(head + 1, 1 << 30, 4096, 3, head + 2))
    queue.notify()
    queue.wait()
    check_equal(os.pread(extra, 4096, 0), b"\x09" * 4096, "what is read into added memory")
    driver.order(REM_MEM_REG, region)
    check_equal(driver.read(0, 4096), b"\x09" * 4096, "what is read afterwards")
    whole = struct.pack("=QQQQ", GUEST, driver.bytes, OWN, 0)
    driver.order(SET_MEM_TABLE, struct.pack("=II", 1, 0) + whole, [driver.file])
    check_equal(driver.read(0, 4096), b"\x09" * 4096, "what is read with another table")


main()
