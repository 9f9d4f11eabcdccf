"""Origins that take no writes: refused unless the volume is read-only, and noticed while they are served."""

import contextlib
import os
import pathlib

import nbd

from harness import *
from harness.devices import backing, exported
from harness.vhost_user import RO, Driver

SIZE = 16 * MIB


def root(*tools):
    need(*tools)
    if os.geteuid() != 0:
        skip("this takes root")


def loop(box, path, *options):
    """A loop device on a file."""
    root("losetup")
    made = box.run("losetup", "--find", "--show", *options, path, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    box.at_end(detach, box, device, path)
    return device


def detach(box, device, path):
    """Frees a loop device, unless the number is another's by now."""
    if backing(device) == path:
        # The kernel keeps the protection beyond this file, for the next user of the number.
        box.run("blockdev", "--setrw", device, expect=None)
        box.run("losetup", "-d", device)


class Disk:
    """A disk whose write protection is switched."""

    way_out = "blockdev --setrw"

    def __init__(self, box, path):
        self.box, self.path = box, loop(box, path)

    def protect(self):
        self.box.run("blockdev", "--setro", self.path)

    def permit(self):
        self.box.run("blockdev", "--setrw", self.path)


class File:
    """A file that becomes immutable."""

    way_out = "chattr -i"

    def __init__(self, box, path):
        root("chattr")
        self.box, self.path = box, path
        if box.run("chattr", "+i", path, expect=None).returncode != 0:
            skip("this filesystem has no immutable files")
        box.at_end(box.run, "chattr", "-i", path)
        self.permit()

    def protect(self):
        self.box.run("chattr", "+i", self.path)

    def permit(self):
        self.box.run("chattr", "-i", self.path)


class Mount:
    """A file on a filesystem that is mounted for reading only."""

    way_out = "remount,rw"

    def __init__(self, box, path):
        root("mount", "umount")
        point = box.path("point")
        os.makedirs(point)
        if box.run("mount", "-t", "tmpfs", "-o", f"size={2 * SIZE}", "tmpfs", point, expect=None).returncode != 0:
            skip("nothing can be mounted here")
        box.at_end(box.run, "umount", "-l", point)
        self.box, self.point, self.path = box, point, f"{point}/origin"
        pathlib.Path(self.path).write_bytes(pathlib.Path(path).read_bytes())

    def protect(self):
        self.box.run("mount", "-o", "remount,ro", self.point)

    def permit(self):
        self.box.run("mount", "-o", "remount,rw", self.point)


def refused(box, kind):
    """An origin of a kind that takes no writes is refused, and nothing is written."""
    daemon, content = box.daemon(), random_bytes(1, SIZE)
    origin, cache = kind(box, box.file("origin", SIZE, content)), box.file("cache", 64 * MIB)
    origin.protect()
    before = digest(cache)
    said = daemon.create_run("v", cache, origin.path, expect=3).stderr
    for part in ("origin", origin.path, origin.way_out, "--read-only"):
        check(part in said, f"{part} is not in {said!r}")
    check_equal(len(said.splitlines()), 1, f"lines of {said!r}")
    check_equal(digest(cache), before, "the cache")
    origin.permit()
    client = connect(daemon.create("v", cache, origin.path, "--set", "idle=0", "--set", "dirty_age=0"))
    client.pwrite(b"\7" * 4096, 0)
    client.flush()
    daemon.cli("stop", "--force", "v")
    origin.protect()
    said = daemon.cli("start", "v", expect=3).stderr
    check(origin.way_out in said and "read_only=on" in said, said)
    # With the data that only the cache has.
    daemon.cli("set", "v", "read_only=on")
    daemon.cli("start", "v")
    client = connect(daemon.uri("v"))
    check(client.is_read_only(), "the export is not read-only")
    check_equal(bytes(client.pread(8192, 0)), b"\7" * 4096 + content[4096:8192], "what is read")
    said = daemon.cli("flush", "v", expect=1).stderr
    check("read_only=off" in said, said)
    check_equal(daemon.show("v")["state"], "degraded", "the state")
    daemon.cli("stop", "--force", "v")
    check_equal(pathlib.Path(origin.path).read_bytes(), content, "the origin")
    daemon.cli("set", "v", "read_only=off")
    origin.permit()
    daemon.cli("start", "v")
    daemon.cli("flush", "v")
    with open(origin.path, "rb") as file:
        check_equal(file.read(4096), b"\7" * 4096, "the origin in the end")


@test
def a_protected_disk_is_refused(box):
    refused(box, Disk)


@test
def an_immutable_file_is_refused(box):
    refused(box, File)


@test
def a_file_on_a_filesystem_for_reading_only_is_refused(box):
    refused(box, Mount)


@test
def a_read_only_loop_device_and_a_read_only_export_are_refused(box):
    need("nbdkit")
    daemon, content = box.daemon(), random_bytes(1, SIZE)
    path, cache = box.file("origin", SIZE, content), box.file("cache", 64 * MIB)
    socket = box.path("server.sock")
    box.spawn("nbdkit", "--foreground", "--readonly", "--unix", socket, "file", path)
    wait_for(lambda: os.path.exists(socket), "the server listens")
    for origin in (loop(box, path, "--read-only"), f"nbd+unix:///?socket={socket}"):
        said = daemon.create_run("v", cache, origin, expect=3).stderr
        check("--read-only" in said and len(said.splitlines()) == 1, said)
        uri = daemon.create("v", cache, origin, "--read-only")
        client = connect(uri)
        check_equal(bytes(client.pread(MIB, MIB)), content[MIB : 2 * MIB], origin)
        del client
        daemon.cli("delete", "--force", "v")


@test
def a_protected_cache_device_is_refused(box):
    daemon = box.daemon()
    cache = loop(box, box.file("cache", 64 * MIB), "--read-only")
    said = daemon.create_run("v", cache, box.file("origin", SIZE), expect=3).stderr
    check("cache" in said and cache in said and "another device" in said, said)
    check_equal(len(said.splitlines()), 1, f"lines of {said!r}")


def write(client, offset, byte):
    """Writes a block, and tells how that ended."""
    try:
        client.pwrite(bytes([byte]) * 4096, offset)
        return "written"
    except nbd.Error as error:
        return error.errno


def noticed(box, kind):
    """An origin becomes protected while it is served, with dirty data, and writable again."""
    daemon = box.daemon()
    path, cache = box.file("origin", SIZE), box.file("cache", 64 * MIB)
    origin = kind(box, path)
    client = connect(daemon.create("v", cache, origin.path, "--set", "idle=1s"))
    client.pwrite(b"\1" * 4096, 0)
    origin.protect()
    wait_for(lambda: daemon.show("v")["state"] == "degraded", "it is noticed")
    # Until the flag is set a write is acknowledged, and stays dirty.
    check_equal(write(client, MIB, 2), "EPERM", "a write")
    for change in (client.zero, client.trim):
        with contextlib.suppress(nbd.Error):
            change(4096, MIB)
            check(False, f"{change.__name__} was acknowledged")
    check_equal(bytes(client.pread(4096, 0)), b"\1" * 4096, "what was written before")
    report = daemon.show("v")
    check(origin.way_out in report["errors"]["last"], report["errors"]["last"])
    said = daemon.cli("flush", "v", expect=1).stderr
    check(origin.way_out in said, said)
    check_equal(daemon.dirty("v"), 1, "dirty blocks")
    said = daemon.cli("delete", "--force", "v", expect=1).stderr
    check(origin.way_out in said, said)
    # The watcher looks at the volume once a second.
    told = lambda: [line for line in daemon.cli("events", "--json").stdout.splitlines() if "origin-read-only" in line]
    wait_for(told, "an event")
    check_equal(len(told()), 1, f"events: {told()}")
    origin.permit()
    wait_for(lambda: write(client, MIB, 3) == "written", "writes are taken again")
    daemon.cli("flush", "v")
    wait_for(lambda: daemon.show("v")["state"] == "running", "it is in good order")
    with open(origin.path, "rb") as file:
        check_equal(file.read(4096), b"\1" * 4096, "the origin")
        file.seek(MIB)
        check_equal(file.read(4096), b"\3" * 4096, "the origin")


@test
def a_disk_that_becomes_protected_is_noticed(box):
    noticed(box, Disk)


@test
def a_file_that_becomes_immutable_is_noticed(box):
    noticed(box, File)


@test
def every_front_end_exports_a_read_only_volume_as_such(box):
    need("blockdev")
    socket = box.path("vu")
    daemon, device = exported(box, "v", "--read-only", size=SIZE)
    daemon.cli("set", "v", f"export=nbd,fuse,vhost-user={socket}")
    check_equal(box.run("blockdev", "--getro", device).stdout.strip(), "1", "--getro")
    node = os.open(device, os.O_WRONLY)
    box.at_end(os.close, node)
    with contextlib.suppress(OSError):
        os.pwrite(node, bytes(4096), 0)
        check(False, "the device can be written")
    client = connect(daemon.uri("v"))
    check(client.is_read_only(), "NBD does not say so")
    driver = Driver(socket)
    check(driver.offered & RO, f"features {driver.offered:#x}")
    check_equal(driver.read(0, 4096), bytes(4096), "what a guest reads")
    check(daemon.show("v")["origin"]["read_only"], "show")
    check(", ro" in daemon.cli("list").stdout, "list")
    check(daemon.show("v")["blocks"]["cached"] > 0, "nothing is cached")


@test
def a_declared_volume_is_read_only(box):
    daemon = box.daemon()
    path, cache = box.file("origin", SIZE, random_bytes(3, SIZE)), box.file("cache", 64 * MIB)
    before = digest(path)
    config = box.path("forebay.toml")
    pathlib.Path(config).write_text(f"[volumes.v]\ncache = '{cache}'\norigin = '{path}'\nread_only = true\n")
    daemon.cli("apply", "--config", config)
    client = connect(daemon.uri("v"))
    check(client.is_read_only(), "it is not read-only")
    client.pread(MIB, 0)
    del client
    daemon.restart()
    check(connect(daemon.uri("v")).is_read_only(), "it is not read-only after a restart")
    daemon.cli("delete", "--force", "v")
    check_equal(digest(path), before, "the origin")


@test
def a_protected_device_without_a_cache_is_served_for_reading(box):
    content = random_bytes(4, SIZE)
    device = loop(box, box.file("origin", SIZE, content), "--read-only")
    daemon = box.daemon("--export-raw", f"r={device}")
    client = connect(f"nbd+unix:///r?socket={daemon.nbd}")
    check(client.is_read_only(), "it is not read-only")
    check_equal(bytes(client.pread(MIB, 0)), content[:MIB], "its content")


main()
