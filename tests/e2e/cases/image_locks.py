"""Images that a virtual machine or a tool of QEMU has open, and those that are served: one of them writes."""

import os
import subprocess

from harness import *
from harness.devices import exported


def storage_daemon(box, path, *options, name="qsd"):
    """A process that has an image open as a virtual machine has; returns it when it does."""
    need("qemu-storage-daemon")
    pid = box.path(f"{name}.pid")
    process = box.spawn(
        "qemu-storage-daemon", "--pidfile", pid,
        "--blockdev", ",".join([f"driver=file,node-name=f,filename={path}", *options]),
        "--nbd-server", f"addr.type=unix,addr.path={box.path(name + '.sock')}",
        "--export", "type=nbd,id=e,node-name=f,writable=on",
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: os.path.exists(pid) or process.poll() is not None, "the image is open")
    check(process.poll() is None, f"qemu-storage-daemon: {process.poll()}")
    return process


@test
def an_image_that_a_virtual_machine_has_is_refused(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    guest = storage_daemon(box, origin)
    before = digest(cache, origin)
    done = daemon.create_run("v", cache, origin, expect=3)
    check("virtual machine" in done.stderr and origin in done.stderr, f"create does not say why: {done.stderr}")
    check_equal(digest(cache, origin), before, "the devices")
    box.stop(guest)
    os.unlink(box.path("qsd.pid"))
    daemon.create("v", cache, origin)
    daemon.cli("stop", "v")
    # At a start, of the origin and of the cache device.
    for path in (origin, cache):
        guest = storage_daemon(box, path)
        done = daemon.cli("start", "v", expect=3)
        check("virtual machine" in done.stderr and path in done.stderr, f"start does not say why: {done.stderr}")
        box.run(daemon.binary, "check", cache, expect=3 if path == cache else 0)
        box.stop(guest)
        os.unlink(box.path("qsd.pid"))
    daemon.cli("start", "v")
    # One that shares it with other writers, and a tool that is told to accept changes.
    daemon.cli("stop", "v")
    sharing = storage_daemon(box, origin, "locking=off")
    daemon.cli("start", "v")
    box.stop(sharing)


@test
def an_image_that_is_served_is_no_virtual_machines(box):
    need("qemu-img", "qemu-io")
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    daemon.create("v", cache, origin)

    def check_locked():
        for path in (cache, origin):
            for command in (
                ["qemu-img", "convert", "-f", "raw", "-O", "raw", path, box.path("copy")],
                ["qemu-io", "-f", "raw", "-c", "write -P 1 0 4k", path],
            ):
                done = box.run(*command, expect=None)
                check(done.returncode != 0 and "lock" in done.stderr, f"{command} has {path}: {done.stderr}")
            box.run("qemu-img", "info", "-U", "-f", "raw", path)

    check_locked()
    # The next program of the process takes the locks again.
    daemon.cli("daemon", "--take-over")
    check_locked()
    daemon.cli("stop", "v")
    box.run("qemu-img", "info", "-f", "raw", origin)
    box.run("qemu-io", "-f", "raw", "-c", "read 0 4k", cache)


@test
def a_reader_of_a_stopped_cache_and_a_tool_that_reads_it_share_it(box):
    need("qemu-io")
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    daemon.create("v", cache, box.file("origin", 16 * MIB))
    daemon.cli("stop", "v")
    reader = box.spawn("qemu-io", "-r", "-f", "raw", cache, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    reader.stdin.write("read 0 4k\n")
    reader.stdin.flush()
    while "read 4096" not in reader.stdout.readline():
        check(reader.poll() is None, "qemu-io has ended")
    box.run(daemon.binary, "check", cache)
    box.stop(reader)
    daemon.cli("start", "v")


@test
def a_device_of_a_volume_can_be_opened_by_virtual_machines(box):
    need("qemu-io")
    _, device = exported(box, size=16 * MIB)
    box.run("qemu-io", "-f", "raw", "-c", "write -P 7 0 64k", "-c", "read -P 7 0 64k", device)
    box.run("qemu-img", "info", "-f", "raw", device)


main()
