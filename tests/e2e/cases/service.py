"""What the service manager sees: the watchdog, devices that appear late, units that it accepts."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import signal
import socket
import threading
import time

from harness import *
from harness.faults import Disk

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
DIST = pathlib.Path(__file__).resolve().parents[3] / "dist"


class Manager:
    """Counts the daemon's reports that it is alive."""

    def __init__(self, box, seconds=2):
        self.daemon = Daemon(box)
        self.seconds = seconds
        os.environ["WATCHDOG_USEC"] = str(seconds * 1000000)
        try:
            self.daemon.wait_ready(self.daemon.launch())
        finally:
            del os.environ["WATCHDOG_USEC"]

    def reports(self, seconds):
        """How many reports come within some seconds."""
        self.daemon.notify.settimeout(0.05)
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            try:
                count += b"WATCHDOG=1" in self.daemon.notify.recv(4096).splitlines()
            except TimeoutError:
                pass
        return count


@contextlib.contextmanager
def standing(daemon):
    """The first lane of a daemon stands still."""
    libc = ctypes.CDLL(None, use_errno=True)
    tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir()
    lane = next(int(task.name) for task in tasks if (task / "comm").read_text().strip() == "lane-0")
    nothing = ctypes.c_void_p(0)
    if libc.ptrace(PTRACE_ATTACH, lane, nothing, nothing) != 0:
        skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(lane, 0x40000000)
    try:
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, lane, nothing, nothing)


@test
def nobody_takes_over_while_a_lane_stands_still(box):
    daemon = box.daemon()
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB)))
    with standing(daemon):
        refused = daemon.cli("daemon", "--take-over", expect=3).stderr
        check("lane 0 has not answered" in refused, f"it said {refused.strip()}")
    client.pwrite(bytes(4096), 0)
    daemon.cli("daemon", "--take-over")
    client.pread(4096, 0)


@test
def a_daemon_that_works_reports_and_one_with_a_hung_origin_does_too(box):
    manager = Manager(box)
    check(manager.reports(4) >= 2, "an idle daemon did not report")
    disk = Disk(box, "origin", 64 * MIB)
    cache = box.file("cache", 128 * MIB)
    uri = manager.daemon.create("v", cache, disk.name)
    disk.faults("hang")
    client = connect(uri)
    reader = threading.Thread(target=lambda: client.pread(4096, 0), daemon=True)
    reader.start()
    check(manager.reports(8) >= 4, "a daemon with a hung origin did not report")
    check(reader.is_alive(), "the origin does not hang")
    disk.heal()
    reader.join(30)


@test
def a_daemon_with_a_lane_that_stands_still_does_not_report(box):
    manager = Manager(box)
    with standing(manager.daemon):
        manager.reports(2)
        check_equal(manager.reports(4), 0, "reports while a lane stands still")
    manager.reports(2)
    check(manager.reports(4) >= 2, "no reports after it went on")
    check("lane 0 has not answered" in manager.daemon.log(), "the log does not name the lane")


@test
def an_end_that_writes_down_for_long_asks_for_more_time(box):
    manager = Manager(box)
    daemon, disk = manager.daemon, Disk(box, "origin", 64 * MIB)
    deferred = ("--ram", "64M", "--durability", "deferred", "--set", "write_down=infinite")
    client = connect(daemon.create("v", "none", disk.name, *deferred))
    for place in range(0, 32 * MIB, MIB):
        client.pwrite(bytes([1]) * MIB, place)
    disk.faults("delay 2s write")
    daemon.hear_all()
    daemon.process.send_signal(signal.SIGTERM)
    start, more, alive = time.monotonic(), 0, 0
    daemon.notify.settimeout(0.05)
    while daemon.process.poll() is None:
        try:
            lines = daemon.hear()
        except TimeoutError:
            continue
        more += "EXTEND_TIMEOUT_USEC=60000000" in lines
        alive += "WATCHDOG=1" in lines
    took = time.monotonic() - start
    check_equal(daemon.process.returncode, 0, "the exit code")
    check(took > 3, f"it took {took:.1f} s: the test proves nothing")
    check(2 <= more <= took + 2, f"it asked for more time {more} times in {took:.1f} s, alive {alive}")
    check(alive >= 3, f"it reported {alive} times that it is alive")
    check(disk.read(31 * MIB, MIB) == bytes([1]) * MIB, "it was not written down")


@test
def devices_that_appear_late_are_waited_for(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 128 * MIB), box.file("origin", 16 * MIB)
    daemon.create("v", cache, origin)
    daemon.kill()
    os.rename(origin, box.path("away"))
    notify = daemon.launch("--device-wait", "60s")
    time.sleep(1)
    check_equal(daemon.show("v")["state"], "waiting", "the volume without its origin")
    os.rename(box.path("away"), origin)
    daemon.wait_ready(notify)
    check_equal(daemon.show("v")["state"], "running", "the volume with its origin")
    # One that does not appear is given up.
    daemon.kill()
    os.rename(origin, box.path("away"))
    daemon.start("--device-wait", "1s")
    check_equal(daemon.show("v")["state"], "failed", "the volume without its origin")


@test
def udev_is_not_locked_out_and_does_not_lock_out(box):
    need("losetup")
    if os.geteuid() != 0:
        skip("loop devices take root")
    devices = []
    for path in (box.file("cache", 128 * MIB), box.file("origin", 16 * MIB)):
        made = box.run("losetup", "--find", "--show", path, expect=None)
        if made.returncode != 0:
            skip(f"no loop device: {made.stderr.strip()}")
        devices.append(made.stdout.strip())
        box.at_end(box.run, "losetup", "-d", devices[-1])
    daemon = box.daemon()
    # udev locks a disk like this while it handles an event, and puts the event off where it cannot.
    with open(devices[0], "rb") as cache, open(devices[1], "rb") as origin:
        for device in (cache, origin):
            fcntl.flock(device, fcntl.LOCK_SH | fcntl.LOCK_NB)
        daemon.create("v", *devices)
    with open(devices[0], "rb") as cache, open(devices[1], "rb") as origin:
        for device in (cache, origin):
            fcntl.flock(device, fcntl.LOCK_SH | fcntl.LOCK_NB)
    # Those who ask are still told.
    for device in devices:
        done = daemon.cli("check", device, expect=3)
        check("in use" in done.stderr, f"check: {done.stderr}")
    other = box.daemon(name="other")
    other.create("w", devices[0], box.file("another", 16 * MIB), "--force", expect=3)
    daemon.kill()
    daemon.start()
    check_equal(daemon.show("v")["state"], "running", "the volume after a kill")


@test
def systemd_accepts_the_units(box):
    need("systemd-analyze")
    binary = os.environ["FOREBAY"]
    for unit in DIST.glob("*.service"):
        text = unit.read_text().replace("/usr/bin/forebay", binary)
        pathlib.Path(box.path(unit.name)).write_text(text)
    units = sorted(box.path(unit.name) for unit in DIST.glob("*.service"))
    done = box.run("systemd-analyze", "verify", "--man=no", *units, expect=None)
    said = [line for line in done.stderr.splitlines() if "forebay" in line]
    check_equal((done.returncode, said), (0, []), "systemd-analyze verify")
    # Exposure on a scale to 100; a daemon that mounts and has devices is not below.
    box.run("systemd-analyze", "security", "--offline=yes", "--threshold=45", *units)


main()
