"""Upgrades to another program and back, under load: what clients of each front end see is a pause.

FOREBAY_OTHER names the other program, as of the version before; without it the same program takes over.
"""

import mmap
import os
import re
import select
import socket
import threading
import time

from harness import *
from harness.devices import exported
from harness.vhost_user import IN, Driver, Gone

TIMES = 20
SIZE = 256 * MIB


class Reader(threading.Thread):
    """Reads 4 KiB after 4 KiB, and notes when each read began and how long it took."""

    def __init__(self, name, read):
        super().__init__(daemon=True)
        self.name, self.read = name, read
        self.times, self.error, self.ended = [], None, False

    def run(self):
        try:
            while not self.ended:
                begun = time.monotonic()
                self.read(len(self.times) % 1000 * 4096)
                self.times.append((begun, time.monotonic() - begun))
        except Exception as error:
            self.error = error

    def longest(self, since):
        """The longest read that ended after a moment."""
        return max(took for begun, took in self.times if begun + took > since)


def of_nbd(uri):
    client = connect(uri)
    return lambda offset: client.pread(4096, offset)


def of_device(device):
    file, memory = os.open(device, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
    return lambda offset: check_equal(os.preadv(file, [memory], offset), 4096, "bytes of the device")


def of_vhost_user(path):
    driver = Driver(path)

    def connect_again():
        for _ in range(1000):
            try:
                return driver.connect()
            except (OSError, Gone):
                time.sleep(0.01)
        raise Failure("nobody listens any more")

    def read(offset):
        queue = driver.queues[0]
        queue.submit(IN, offset, length=4096)
        queue.notify()
        while not (answered := queue.collect()):
            ready, _, _ = select.select([queue.call, driver.socket], [], [], 0.1)
            if queue.call in ready:
                os.eventfd_read(queue.call)
            elif ready and not driver.socket.recv(1, socket.MSG_PEEK):
                connect_again()
        check_equal(answered[0][1], 0, "the status of a read")

    return read


@test
def users_of_every_front_end_see_pauses(box):
    need("fio")
    daemon, device = exported(box, "f", size=SIZE)
    uri = daemon.create("n", box.file("cache-n", 128 * MIB), box.file("origin-n", SIZE))
    path = box.path("vu")
    daemon.create("g", box.file("cache-g", 64 * MIB), box.file("origin-g", SIZE), "--export", f"vhost-user={path}")
    loads = [
        box.spawn(
            "fio", f"--name={name}", *target, "--rw=randrw", "--bs=4k", "--offset=64m", "--size=64m", "--iodepth=8",
            "--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1", "--fsync=64", "--time_based",
            "--runtime=3600", "--rate_iops=2000", "--output=" + box.path(f"{name}.out"), cwd=box.dir,
        )
        for name, target in {
            "device": ("--ioengine=libaio", "--direct=1", f"--filename={device}"),
            "nbd": ("--ioengine=nbd", f"--uri={uri}"),
        }.items()
    ]  # fmt: skip
    readers = [Reader("nbd", of_nbd(uri)), Reader("fuse", of_device(device)), Reader("vhost-user", of_vhost_user(path))]
    for reader in readers:
        reader.start()
    programs = [os.environ.get("FOREBAY_OTHER") or daemon.binary, daemon.binary]
    pauses = {reader.name: [] for reader in readers}
    for round in range(TIMES):
        time.sleep(1)
        since = time.monotonic()
        said = box.run(programs[round % 2], "--socket", daemon.socket, "daemon", "--take-over").stdout
        check("has taken over" in said, f"it said {said.strip()}")
        time.sleep(1)
        for reader in readers:
            check(reader.error is None and reader.is_alive(), f"{reader.name}: {reader.error}")
            pauses[reader.name].append(reader.longest(since))
        check(all(load.poll() is None for load in loads), "fio has ended")
    for reader in readers:
        reader.ended = True
        reader.join(60)
    for load in loads:
        load.terminate()
        load.wait(60)
    for name in ("device", "nbd"):
        said = open(box.path(f"{name}.out")).read()
        check_equal(re.findall(r"err= *(\d+)", said), ["0"], f"the errors of fio on {name}: {said[:400]}")
    for name, seen in pauses.items():
        # Of so few, the 99th percentile is the longest.
        print(f"     {name}: longest read in {TIMES} upgrades: {max(seen):.3f} s, median {sorted(seen)[TIMES // 2]:.3f} s")


main()
