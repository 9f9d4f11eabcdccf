"""A file that is moved, replaced or removed while it is served: nothing that is not safe is reported as safe."""

import os
import shutil

from harness import *
from harness.data import BLOCK, stamp

KEEP = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "writeback_running=off")


def volume(box, name="v", *arguments):
    """A volume with 64 dirty blocks; gives its daemon, cache, origin and client."""
    daemon = box.daemon(name=f"d-{name}")
    cache, origin = box.file(f"{name}.cache", 64 * MIB), box.file(f"{name}.origin", 32 * MIB)
    client = Client(daemon.create(name, cache, origin, *KEEP, *arguments))
    check_equal(client.write_blocks(0, 64), 64, "blocks written")
    client.flush()
    return daemon, cache, origin, client


def noticed(daemon, name, device, kind):
    """Waits until the daemon says what happened to a device; gives the report."""
    wait_for(lambda: daemon.show(name)[device]["displaced"], f"the {device} is {kind}", patience=10)
    report = daemon.show(name)
    check_equal(report[device]["displaced"]["kind"], kind, f"what happened to the {device}")
    check_equal(report["state"], "degraded", "the state")
    check_equal(report["errors"]["last"], report[device]["displaced"]["message"], "the last error")
    check("degraded" in daemon.cli("list").stdout, "list does not show it")
    wait_for(
        lambda: f"{device}-displaced" in daemon.cli("events", "--json").stdout, "there is an event", patience=10
    )
    return report


def refused(daemon, *arguments, saying):
    """A verb that ends with 4 and names this."""
    done = daemon.cli(*arguments, expect=4)
    check(saying in done.stderr, f"{arguments} does not say {saying!r}: {done.stderr}")


def blocks_of(path, first, number):
    """Whether a file has these blocks as they were written."""
    with open(path, "rb") as file:
        file.seek(first * BLOCK)
        return file.read(number * BLOCK) == b"".join(stamp(block, 1) for block in range(first, first + number))


def replace(origin):
    shutil.copyfile(origin, f"{origin}.backup")
    os.rename(f"{origin}.backup", origin)


@test
def nothing_is_safe_at_the_path_of_an_origin_that_was_replaced_or_removed(box):
    for kind, change in (("replaced", replace), ("removed", os.unlink)):
        daemon, cache, origin, client = volume(box, kind)
        change(origin)
        report = noticed(daemon, kind, "origin", kind)
        refused(daemon, "stop", kind, saying="--abandon")
        refused(daemon, "flush", kind, saying="cp --sparse=always")
        check_equal(daemon.dirty(kind), 0, "dirty blocks after a flush")
        refused(daemon, "set", kind, "mode=wt", saying=kind)
        refused(daemon, "delete", "--force", kind, saying=kind)
        check_equal(client.write_blocks(64, 64), 64, "blocks written meanwhile")
        client.check_block(10, 1)
        refused(daemon, "flush", kind, saying=kind)
        copy = box.path(f"{kind}.copy")
        box.run("cp", "--sparse=always", report["origin"]["displaced"]["readable_at"], copy)
        check(blocks_of(copy, 0, 128), "the copy lacks what was flushed")
        daemon.cli("stop", "--force", "--abandon", kind)
        done = daemon.cli("start", kind, expect=None)
        check(done.returncode in (2, 3, 4), f"start took what is there: {done.returncode} {done.stderr}")
        os.rename(copy, origin)
        done = daemon.cli("start", kind, expect=None)
        check(done.returncode in (3, 4), f"start took another file: {done.returncode} {done.stderr}")
        daemon.cli("start", "--force", kind)
        client = Client(daemon.uri(kind))
        for block in range(128):
            client.check_block(block, 1)
        daemon.cli("flush", kind)


@test
def an_origin_that_was_moved_heals_when_it_is_back(box):
    daemon, cache, origin, client = volume(box)
    os.rename(origin, f"{origin}.moved")
    report = noticed(daemon, "v", "origin", "moved")
    check(f"{origin}.moved" in report["errors"]["last"], "it does not say where it is")
    refused(daemon, "flush", "v", saying="moved")
    refused(daemon, "stop", "v", saying="move it back")
    check_equal(daemon.show("v")["state"], "degraded", "the state after a stop that was refused")
    client.check_block(5, 1)
    os.rename(f"{origin}.moved", origin)
    wait_for(lambda: daemon.show("v")["state"] == "running", "it is well again", patience=10)
    daemon.cli("flush", "v")
    check(blocks_of(origin, 0, 64), "the origin lacks what was flushed")
    # The directory above it.
    os.makedirs(box.path("below"))
    os.rename(origin, box.path("below/o"))
    os.symlink(box.path("below/o"), origin)
    wait_for(lambda: daemon.show("v")["state"] == "running", "a link leads to it", patience=10)
    daemon.cli("flush", "v")
    os.rename(box.path("below"), box.path("elsewhere"))
    noticed(daemon, "v", "origin", "moved")
    refused(daemon, "flush", "v", saying=box.path("elsewhere"))
    os.rename(box.path("elsewhere"), box.path("below"))
    daemon.cli("flush", "v")
    daemon.cli("stop", "--force", "v")
    daemon.cli("start", "v")


@test
def a_cache_whose_file_was_removed_is_written_back_before_it_is_closed(box):
    # By a stop, by the end of the daemon, and with a delete.
    for number, end in enumerate(("stop", "terminate", "delete")):
        name = f"v{number}"
        daemon, cache, origin, client = volume(box, name)
        os.unlink(cache)
        noticed(daemon, name, "cache", "removed")
        check(not blocks_of(origin, 0, 64), "it was written back before")
        if end == "terminate":
            code, _ = daemon.terminate()
            check_equal(code, 0, "the exit code of the daemon")
        else:
            daemon.cli(end, "--force", name)
        check(blocks_of(origin, 0, 64), f"{end} has lost what was written")
        if end == "stop":
            done = daemon.cli("start", name, expect=None)
            check(done.returncode in (2, 3), f"start without a cache: {done.returncode} {done.stderr}")


@test
def the_end_of_the_daemon_does_not_pass_over_an_origin_that_is_lost_with_it(box):
    daemon, cache, origin, client = volume(box)
    os.unlink(origin)
    code, _ = daemon.terminate()
    check(code != 0, "the daemon ended as if nothing were lost")
    check("removed" in daemon.log(), "the log does not say what is lost")


@test
def a_program_that_could_not_open_the_devices_takes_nothing_over(box):
    daemon, cache, origin, client = volume(box)
    os.rename(cache, f"{cache}.moved")
    done = daemon.cli("daemon", "--take-over", expect=None)
    check_equal(done.returncode, 4, f"the exit code of a take-over: {done.stderr}")
    check("handed over" in done.stderr, done.stderr)
    client.check_block(3, 1)
    check_equal(client.write_blocks(100, 10), 10, "blocks written after it")
    os.rename(f"{cache}.moved", cache)
    daemon.cli("daemon", "--take-over")
    client.check_block(3, 1)


@test
def an_origin_below_which_the_file_system_is_unmounted_is_noticed(box):
    if os.geteuid() != 0:
        skip("mounts take root")
    daemon = box.daemon()
    point = box.path("mnt")
    os.makedirs(point)
    if box.run("mount", "-t", "tmpfs", "none", point, expect=None).returncode:
        skip("nothing can be mounted here")
    box.at_end(lambda: box.run("umount", "-l", point, expect=None))
    origin = os.path.join(point, "o")
    with open(origin, "wb") as file:
        file.truncate(16 * MIB)
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), origin, *KEEP))
    check_equal(client.write_blocks(0, 16), 16, "blocks written")
    box.run("umount", "-l", point)
    noticed(daemon, "v", "origin", "moved")
    refused(daemon, "flush", "v", saying="leads nowhere")
    refused(daemon, "stop", "v", saying="--abandon")
    # Another file system over it.
    box.run("mount", "-t", "tmpfs", "none", point)
    with open(origin, "wb") as file:
        file.truncate(16 * MIB)
    refused(daemon, "flush", "v", saying="leads to something else")
    daemon.cli("stop", "--force", "--abandon", "v")
    done = daemon.cli("start", "v", expect=None)
    check(done.returncode in (3, 4), f"start took another file: {done.returncode} {done.stderr}")


@test
def a_loop_device_whose_file_is_removed_is_an_origin_without_one(box):
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        skip("loop devices take root")
    daemon = box.daemon()
    file = box.file("below", 16 * MIB)
    attached = box.run("losetup", "-f", "--show", file, expect=None)
    if attached.returncode:
        skip(f"no loop device: {attached.stderr.strip()}")
    device = attached.stdout.strip()
    box.at_end(lambda: box.run("losetup", "-d", device, expect=None))
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), device, *KEEP))
    check_equal(client.write_blocks(0, 16), 16, "blocks written")
    os.unlink(file)
    noticed(daemon, "v", "origin", "removed")
    refused(daemon, "flush", "v", saying="loop device")
    refused(daemon, "stop", "v", saying="--abandon")
    daemon.cli("stop", "--force", "--abandon", "v")


main()
