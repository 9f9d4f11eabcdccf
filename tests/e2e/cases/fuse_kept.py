"""Volumes with export=fuse whose connections the service manager keeps: their users notice no crash of the daemon."""

import os
import platform
import re
import signal
import time

from harness import *
from harness.devices import backing, exported, let_go, mount
from harness.faults import wait_for

KILLS = 10


def kept(box, *arguments):
    """A volume with a device that outlives its daemon."""
    major, minor = re.match(r"(\d+)\.(\d+)", platform.release()).groups()
    if (int(major), int(minor)) < (6, 9):
        skip("the kernel gives requests to another server from 6.9 on")
    return exported(box, "v", *arguments, daemon=box.daemon(keeps=16))


def kernel_errors(device, since):
    """What the kernel has said about errors of a device since a moment of its own clock."""
    name = os.path.basename(device)
    lines = os.popen("dmesg").read().splitlines()
    times = [(line, re.match(r"\[ *(\d+\.\d+)\]", line)) for line in lines]
    return [line for line, at in times if at and float(at[1]) > since and re.search(f"error.*{name}\\b", line)]


def uptime():
    return float(open("/proc/uptime").read().split()[0])


@test
def a_file_system_notices_nothing_of_kills(box):
    need("fio", "mkfs.ext4", "e2fsck")
    begun = uptime()
    daemon, device = kept(box)
    box.run("mkfs.ext4", "-q", "-F", device)
    point = mount(box, "ext4", device)
    load = box.spawn(
        "fio", "--name=load", f"--directory={point}", "--size=24m", "--numjobs=2", "--rw=randrw", "--bs=4k-64k",
        "--direct=1", "--ioengine=libaio", "--iodepth=8", "--fsync=64", "--verify=crc32c", "--verify_backlog=64",
        "--verify_fatal=1", "--time_based", "--runtime=3600", "--output=" + box.path("fio.out"),
    )  # fmt: skip
    for round in range(KILLS):
        time.sleep(0.4)
        if round % 3 == 2:
            # An end in order is noticed as little.
            daemon.terminate()
            check(backing(device), "the device is gone after an end in order")
        else:
            daemon.kill()
        check(load.poll() is None, "fio has ended")
        time.sleep(0.1)
        daemon.start()
        check_equal(daemon.show("v")["export"]["device"], device, "the device")
    load.send_signal(signal.SIGINT)
    load.wait(60)
    said = open(box.path("fio.out")).read()
    check_equal(re.findall(r"err= *(\d+)", said), ["0", "0"], f"the errors of fio: {said[:400]}")
    box.run("umount", point)
    box.run("e2fsck", "-f", "-n", device)
    check_equal(kernel_errors(device, begun), [], "errors that the kernel saw")
    check("again" in daemon.log(), "no daemon said that it goes on")


@test
def what_was_answered_outlives_the_daemon(box):
    daemon, device = kept(box)
    flags = os.O_RDWR | os.O_DIRECT
    for round in range(12):
        disk = os.open(device, flags)
        size = 4096 << round % 4
        data = aligned(bytes([round + 1]) * size)
        check_equal(os.pwrite(disk, data, round * MIB), size, "bytes written")
        daemon.kill()
        daemon.start()
        found = aligned(bytes(size))
        check_equal(os.preadv(disk, [found], round * MIB), size, "bytes read")
        check_equal(bytes(found), bytes(data), "what was answered before a crash")
        os.close(disk)


def aligned(data):
    """The bytes in memory that direct I/O takes."""
    import mmap

    memory = mmap.mmap(-1, max(len(data), 4096))
    memory[: len(data)] = data
    return memory if len(memory) == len(data) else memoryview(memory)[: len(data)]


@test
def requests_that_were_taken_are_executed_by_the_next_daemon(box):
    need("fio")
    daemon, device = kept(box)
    for _ in range(6):
        load = box.spawn(
            "fio", "--name=load", f"--filename={device}", "--size=64m", "--rw=randwrite", "--bs=128k", "--direct=1",
            "--ioengine=libaio", "--iodepth=32", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1",
            "--output=" + box.path("fio.out"),
        )  # fmt: skip
        time.sleep(0.3)
        daemon.kill()
        time.sleep(0.2)
        daemon.start()
        check_equal(load.wait(60), 0, "what fio ended with: " + open(box.path("fio.out")).read()[-400:])


@test
def the_manager_lets_go_of_what_is_removed(box):
    daemon, device = kept(box)
    daemon.hear_all()
    check(daemon.kept, "nothing is kept")
    check(all(name.startswith("fuse/connection/v/") for name, _ in daemon.kept), f"kept: {daemon.kept}")
    disk = os.open(device, os.O_RDONLY)
    daemon.kill()
    daemon.start()
    check_equal(daemon.show("v")["export"]["device"], device, "the device")
    # In use: it is refused, and forced.
    daemon.cli("stop", "v", expect=3)
    daemon.cli("stop", "--force", "v")
    wait_for(lambda: (daemon.hear_all(), daemon.kept)[1] == [], "the manager keeps nothing any more")
    os.close(disk)
    daemon.cli("start", "v")
    # Nobody uses it: an end in order removes it.
    device = daemon.show("v")["export"]["device"]
    daemon.terminate()
    check(let_go(box, device), f"the device that nobody used still has {backing(device)}")
    daemon.hear_all()
    check_equal(daemon.kept, [], "what the manager keeps of it")
    daemon.start()
    check(daemon.show("v")["export"]["device"], "there is no device after an end in order")


@test
def what_nobody_can_go_on_with_is_not_kept(box):
    daemon, device = kept(box)
    daemon.hear_all()
    daemon.kill()
    # As of a daemon that was killed before it had a loop device.
    daemon.kept = [(name.replace("/v/", "/w/"), fd) for name, fd in daemon.kept]
    daemon.start()
    daemon.hear_all()
    check(daemon.kept and all("/v/" in name for name, _ in daemon.kept), f"what is kept: {daemon.kept}")
    with open(daemon.show("v")["export"]["device"], "rb") as disk:
        check_equal(disk.read(4096), bytes(4096), "what the new device reads")


@test
def a_volume_in_ram_does_not_outlive_its_daemon(box):
    daemon = box.daemon(keeps=16)
    exported(box, "v", daemon=daemon)
    daemon.cli("delete", "v")
    daemon.hear_all()
    made = daemon.cli("create", "r", "--cache", "ram:64M", "--origin", box.file("other", 64 * MIB), "--export", "fuse")
    daemon.hear_all()
    check_equal(daemon.kept, [], f"what is kept of {made.stdout.strip()}")
    daemon.cli("delete", "r")


main()
