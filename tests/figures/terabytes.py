"""Discards and maps of volumes of terabytes in which little is cached, beside the bare sparse file, and a neighbour's reads meanwhile."""

import json
import os
import struct
import threading
import time

from harness import *
from harness.devices import clean_up
from harness.vhost_user import DISCARD, SECTOR, Driver

TIB = 1 << 40
SIZES = [int(size) for size in os.environ.get("FOREBAY_TIB", "1,16,64").split(",")]
ROUNDS = 3
# The largest volume with a RAM tier, in TiB.
MOST_RAM = int(os.environ.get("FOREBAY_TIB_RAM", "1"))
# In how many places something is cached of each volume, and how much of the neighbour.
PLACES, NEIGHBOUR = int(os.environ.get("FOREBAY_PLACES", "0")), 256 * MIB
# What a client of NBD sends at once.
STEP = 1 << 31


def timed(action, daemon=None):
    """Seconds on the wall, and those of CPU of the daemon."""
    begun, used = time.monotonic(), daemon.processor() if daemon else 0
    action()
    return time.monotonic() - begun, (daemon.processor() if daemon else 0) - used


def medians(samples, size):
    wall, cpu = (sorted(part)[len(samples) // 2] for part in zip(*samples))
    return f"{wall:8.3f} s  {size / TIB / wall:6.1f} TiB/s" + (f"  {cpu:6.2f} s of CPU" if cpu else "")


def by_nbd(uri, size):
    client = connect(uri)
    for at in range(0, size, STEP):
        client.trim(min(STEP, size - at), at)
    client.shutdown()


def by_vhost(path, size):
    driver = Driver(path)
    most = struct.unpack_from("<I", driver.config(), 36)[0] * SECTOR
    for at in range(0, size, most):
        data = struct.pack("<QII", at // SECTOR, min(most, size - at) // SECTOR, 0)
        check_equal(driver.one(DISCARD, data=data)[0], 0, "the status of a discard")
    driver.close()


def neighbour(box, uri, seconds):
    """The p99 of reads of cached blocks, with 4 in flight, in microseconds, and how many there were in a second."""
    done = box.run(
        "fio", "--name=job", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--bs=4k", f"--size={NEIGHBOUR}",
        "--iodepth=4", "--time_based", f"--runtime={seconds}", "--ramp_time=1", "--randseed=7", "--output-format=json",
    )  # fmt: skip
    # Notes of fio come before.
    read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    return read["clat_ns"]["percentile"]["99.000000"] / 1000, read["iops"]


def beside(box, uri, action):
    """The neighbour's reads while an action is repeated."""
    over = threading.Event()

    def repeat():
        while not over.is_set():
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        return neighbour(box, uri, 4)
    finally:
        over.set()
        thread.join()


def sparse(box, name, size):
    """A sparse file in RAM: other filesystems end at 16 TiB."""
    path = f"/dev/shm/forebay-{os.getpid()}-{name}"
    box.at_end(lambda: os.path.exists(path) and os.remove(path))
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def fill(uri, size):
    client = connect(uri)
    # Spread over the volume.
    for number in range(PLACES):
        client.pwrite(bytes([number + 1]) * (64 * KIB), size // PLACES * number)
    client.flush()
    client.shutdown()


@test
def terabytes_are_discarded_and_mapped(box):
    daemon = box.daemon()
    box.at_end(clean_up, box, daemon)
    cache, export = box.file("cache", 2 * GIB), box.path("vu")
    quiet = daemon.create("neighbour", cache, box.file("neighbour", GIB), "--set", "sequential_cutoff=0")
    box.run("fio", "--name=fill", "--ioengine=nbd", f"--uri={quiet}", "--rw=write", "--bs=256k", f"--size={NEIGHBOUR}", "--iodepth=8")
    daemon.cli("flush", "neighbour")
    alone = sorted(neighbour(box, quiet, 4) for _ in range(ROUNDS))[ROUNDS // 2]
    print(f"     the neighbour alone: p99 {alone[0]:.0f} us, {alone[1]:.0f} reads/s")
    for tib in SIZES:
        size = tib * TIB
        bare = sparse(box, "bare", size)
        device = box.run("losetup", "--find", "--show", bare).stdout.strip()
        try:
            print(f"     {tib:>2} TiB, bare, loop discard     {medians([timed(lambda: box.run('blkdiscard', device)) for _ in range(ROUNDS)], size)}")
        finally:
            box.run("losetup", "--detach", device)
        os.remove(bare)
        for tier, options in ("", ()), (", RAM tier", ("--ram", "64M")):
            if options and tib > MOST_RAM:
                continue
            origin = sparse(box, "origin", size)
            uri = daemon.create(f"v{tib}", cache, origin, "--export", f"nbd,fuse,vhost-user={export}", *options)
            report = daemon.show(f"v{tib}")["export"]
            uri, device = report["nbd"], report.get("device") or uri
            actions = {
                "NBD map": lambda: box.run("nbdinfo", "--map", uri, patience=3600),
                "NBD discard": lambda: by_nbd(uri, size),
                "loop discard": lambda: box.run("blkdiscard", device, patience=3600),
                "vhost-user discard": lambda: by_vhost(export, size),
            }
            for what, action in actions.items():
                seconds = []
                for _ in range(ROUNDS):
                    fill(uri, size)
                    seconds.append(timed(action, daemon))
                p99, iops = beside(box, quiet, action)
                print(f"     {tib:>2} TiB{tier}, {what:<18} {medians(seconds, size)}, the neighbour's p99 {p99:.0f} us, {iops:.0f} reads/s")
            daemon.cli("delete", f"v{tib}")
            os.remove(origin)


main()
