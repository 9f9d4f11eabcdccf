"""dm-log-writes below cache and origin: every state that a power cut could have left is recovered.

Both devices are halves of one disk, so the log has one order for both. Runs in a guest.
"""

import os
import random
import shutil
import struct

from harness import *

CACHE, ORIGIN = 48 * MIB, 16 * MIB
BLOCKS, ROUNDS, BETWEEN = 256, 10, 12
ENTRY = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
MAGIC = 0x6A736677736872


def entries(path):
    """What the kernel has logged: flags, offset, length and data of each entry."""
    with open(path, "rb") as log:
        magic, version, count, sector = struct.unpack("<QQQI", log.read(28))
        check_equal((magic, version), (MAGIC, 1), "the header of the log")
        place = sector
        for _ in range(count):
            log.seek(place)
            where, number, flags, length = ENTRY.unpack(log.read(ENTRY.size))
            data = log.read(length) if flags & MARK else b""
            place += sector
            if flags & MARK:
                # A mark has its name behind it, in the same sector.
                yield flags, 0, 0, data
                continue
            if not flags & DISCARD:
                log.seek(place)
                data = log.read(number * sector)
                place += number * sector
            yield flags, where * sector, number * sector, data


def map_halves(box, below, verb):
    for name, size, start in (("cache", CACHE, 0), ("origin", ORIGIN, CACHE)):
        table = f"0 {size // 512} linear {below} {start // 512}"
        box.run("dmsetup", verb, name, "--table", table)


@test
def every_prefix_recovers(box):
    for module in ("dm_mod", "dm_log_writes"):
        box.run("modprobe", module)
    run = box.run
    for disk in ("/dev/vda", "/dev/vdc"):
        with open(disk, "r+b", buffering=0) as file:
            for _ in range((CACHE + ORIGIN) // MIB):
                file.write(bytes(MIB))
    sectors = (CACHE + ORIGIN) // 512
    run("dmsetup", "create", "logged", "--table", f"0 {sectors} log-writes /dev/vda /dev/vdc")
    box.at_end(run, "dmsetup", "remove", "--deferred", "logged")
    map_halves(box, "/dev/mapper/logged", "create")
    for name in ("cache", "origin"):
        box.at_end(run, "dmsetup", "remove", "--deferred", name)

    daemon = box.daemon()
    settings = ("--set", "idle=50ms", "--set", "commit_interval=50ms")
    uri = daemon.create("v", "/dev/mapper/cache", "/dev/mapper/origin", *settings)
    recorder = Survivor(uri, connections=2, blocks=BLOCKS, seed=5)
    durable, states = [], []

    def mark(number):
        run("dmsetup", "message", "logged", "0", "mark", str(number))
        durable.append(list(recorder.durable))
        states.append(shutil.copytree(daemon.state, box.path(f"state{number}")))

    mark(0)
    for number in range(1, ROUNDS + 1):
        recorder.write(60)
        check(recorder.try_flush(), "a flush failed")
        mark(number)
    recorder.settle()
    recorder.forget()
    daemon.kill()
    for name in ("cache", "origin"):
        run("dmsetup", "suspend", name)
    for name, size, start in (("cache", CACHE, 0), ("origin", ORIGIN, CACHE)):
        run("dmsetup", "reload", name, "--table", f"0 {size // 512} linear /dev/vda {start // 512}")
        run("dmsetup", "resume", name)
    run("dmsetup", "remove", "logged")

    log = list(entries("/dev/vdc"))
    # The kernel adds one of its own when the device is removed.
    marks = [index for index, entry in enumerate(log) if entry[0] & MARK and entry[3].rstrip(b"\0").isdigit()]
    check_equal(len(marks), ROUNDS + 1, "marks in the log")
    picked = random.Random(5)
    points = set(marks[1:])
    points |= set(picked.sample(range(marks[0] + 1, len(log)), min(BETWEEN, len(log) - marks[0] - 1)))
    image, at = bytearray(CACHE + ORIGIN), 0
    for point in sorted(points):
        for flags, offset, length, data in log[at : point + 1]:
            if not flags & MARK:
                image[offset : offset + length] = bytes(length) if flags & DISCARD else data
        at = point + 1
        with open("/dev/vda", "r+b", buffering=0) as file:
            for start in range(0, len(image), MIB):
                file.write(image[start : start + MIB])
            # What lies above reads the disk and not this page cache.
            os.fsync(file.fileno())
        passed = sum(index <= point for index in marks) - 1
        shutil.rmtree(daemon.state)
        shutil.copytree(states[passed], daemon.state)
        recorder.durable = list(durable[passed])
        limits = list(recorder.submitted), list(recorder.acked)
        daemon.start()
        what = f"entry {point} of {len(log)}, after mark {passed}"
        report = daemon.show("v")
        check_equal(report["state"], "running", f"the state at {what}")
        recorder.verify(report["export"]["nbd"])
        recorder.submitted, recorder.acked = limits
        daemon.kill()
    print(f"     {len(points)} states of {len(log)} logged writes and flushes recovered")


main()
