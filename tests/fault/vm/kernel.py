"""The kernel's own faulty devices: scsi_debug, dm-error, dm-flakey, dm-delay. Runs in a guest."""

import os
import pathlib
import re
import time

from harness import *

MODULES = ("sd_mod", "dm_mod", "dm_flakey", "dm_delay")
SECTORS = 128 * MIB // 512
BLOCKS = 256
KEEP = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "writeback_running=off")


class Mapped:
    """A device-mapper device over a disk of the guest, whose table can be exchanged."""

    def __init__(self, box, name, below):
        self.box, self.name, self.below = box, name, below
        self.path = f"/dev/mapper/{name}"
        box.run("dmsetup", "create", name, "--table", self.table("linear"))
        # What is not removed now goes when nobody uses it any more.
        box.at_end(box.run, "dmsetup", "remove", "--deferred", name)

    def table(self, target):
        """A table of one target; `flakey`, `delay` with what follows the device."""
        words = target.split(maxsplit=1)
        if words[0] == "error":
            return f"0 {SECTORS} error"
        rest = f" {words[1]}" if len(words) > 1 else ""
        return f"0 {SECTORS} {words[0]} {self.below} 0{rest}"

    def become(self, target):
        """Exchanges the table, as a device changes while it is used."""
        run = self.box.run
        run("dmsetup", "suspend", "--noflush", "--nolockfs", self.name)
        run("dmsetup", "reload", self.name, "--table", self.table(target))
        run("dmsetup", "resume", self.name)


def modules(box):
    for module in MODULES:
        box.run("modprobe", module)


def volume(box, mode="wb", settings=KEEP, cache=None, origin=None):
    modules(box)
    daemon = box.daemon()
    cache = cache or Mapped(box, "cache", "/dev/vda")
    origin = origin or Mapped(box, "origin", "/dev/vdb")
    for disk in (cache, origin):
        with open(disk.path, "r+b", buffering=0) as file:
            file.write(bytes(MIB))
    uri = daemon.create("v", cache.path, origin.path, "--mode", mode, *settings)
    return daemon, cache, origin, uri


def recorder(uri):
    return Survivor(uri, connections=2, blocks=BLOCKS, seed=os.getpid())


def load(recorder, writes=200):
    recorder.write(writes)
    flushed = recorder.try_flush()
    recorder.settle()
    return flushed


def check_whole(daemon, load_of):
    """After a crash and a start everything that was flushed is there."""
    load_of.forget()
    daemon.kill()
    daemon.start()
    if daemon.show("v")["state"] != "running":
        done = verb(daemon, "start", "v", patience=120)
        if done.returncode == 4:
            done = verb(daemon, "start", "--force", "v", patience=120)
        check_equal(done.returncode, 0, f"the exit code of start ({done.stderr.strip()})")
    load_of.verify(daemon.uri("v"))


@test
def dm_error_below_the_origin(box):
    daemon, cache, origin, uri = volume(box, settings=("--set", "idle=100ms"))
    writer = recorder(uri)
    check(load(writer), "a flush failed before anything did")
    origin.become("error")
    check(load(writer), "a flush failed although the cache device works")
    check_equal(writer.check_reads(uri), 0, "cached blocks that cannot be read")
    done = verb(daemon, "flush", "v", patience=120)
    check(done.returncode == 1, f"flush ended with {done.returncode} although the origin fails")
    origin.become("linear")
    wait_for(lambda: verb(daemon, "flush", "v").returncode == 0, "flush succeeds again", 120)
    check_equal(daemon.dirty("v"), 0, "dirty blocks after a flush")
    check_whole(daemon, writer)


@test
def dm_error_below_the_cache(box):
    daemon, cache, origin, uri = volume(box)
    writer = recorder(uri)
    check(load(writer), "a flush failed before anything did")
    cache.become("error")
    load(writer)
    writer.check_reads(uri, may_fail=True)
    cache.become("linear")
    check_whole(daemon, writer)


@test
def dm_flakey_drops_and_rejects_writes(box):
    daemon, cache, origin, uri = volume(box, settings=("--set", "idle=100ms"))
    writer = recorder(uri)
    for disk in (origin, cache):
        for feature in ("error_writes", "error_reads"):
            writer.reconnect(daemon.uri("v"))
            load(writer)
            disk.become(f"flakey 1 1 1 {feature}")
            for _ in range(4):
                load(writer, 100)
                time.sleep(0.5)
            disk.become("linear")
            check_whole(daemon, writer)


@test
def dm_delay_below_both(box):
    daemon, cache, origin, uri = volume(box, settings=("--set", "idle=100ms"))
    writer = recorder(uri)
    load(writer)
    for disk in (origin, cache):
        disk.become("delay 300")
        check(load(writer, 50), "a flush failed on a slow device")
        check_equal(writer.check_reads(uri), 0, "blocks that cannot be read from a slow device")
        disk.become("linear")
    check_equal(writer.errors, 0, "errors on slow devices")
    check_whole(daemon, writer)


class Scsi:
    """A disk of scsi_debug: RAM with the behaviour, and the faults, of a SCSI disk."""

    def __init__(self, box, **options):
        modules(box)
        box.run("modprobe", "-r", "scsi_debug", expect=None)
        words = [f"{name}={value}" for name, value in dict(dev_size_mb=64, **options).items()]
        box.run("modprobe", "scsi_debug", *words)
        self.block = wait_for(self.find, "the SCSI disk appears")
        self.path = f"/dev/{self.block.name}"
        wait_for(lambda: os.path.exists(self.path), "its device file")

    @staticmethod
    def find():
        models = pathlib.Path("/sys/block").glob("sd*/device/model")
        found = [path for path in models if path.read_text().strip() == "scsi_debug"]
        return found[-1].parent.parent if found else None

    def unplug(self):
        (self.block / "device/delete").write_text("1")


@test
def a_scsi_disk_is_unplugged(box):
    for role in ("origin", "cache"):
        disk = Scsi(box)
        place = {role: disk}
        mode = "wb" if role == "origin" else "wt"
        daemon, _cache, _origin, uri = volume(box, mode, **place)
        client = Client(uri)
        check_equal(client.write_blocks(0, 64), 64, "blocks acknowledged")
        client.flush()
        disk.unplug()
        client.try_blocks(range(64, 128), patience=120)
        for block in range(64):
            client.check_block(block, 1)
        for words in (("flush", "v"), ("set", "v", "mode=pt"), ("stop", "--force", "v"), ("start", "v")):
            verb(daemon, *words, patience=120)
        verb(daemon, "delete", "--force", "--discard-dirty", "v", patience=120)
        check_equal(daemon.cli("list", "--names").stdout, "", f"what is left without its {role}")
        daemon.terminate()
        box.run("dmsetup", "remove", "--deferred", "origin" if role == "cache" else "cache", expect=None)


@test
def a_scsi_disk_has_bad_sectors(box):
    # Reads of these sectors fail; they lie where the cache keeps its log.
    disk = Scsi(box, opts=2, medium_error_start=24000, medium_error_count=64)
    daemon, _cache, origin, uri = volume(box, "wb", cache=disk)
    client = Client(uri)
    written = range(0, 4000)
    check_equal(client.write_blocks(0, 4000), 4000, "blocks acknowledged")
    client.flush()
    daemon.kill()
    daemon.start()
    check_equal(daemon.show("v")["state"], "running", "the state with bad sectors on the cache device")
    client = Client(daemon.uri("v"))
    failed = [block for block in written if attempt(client.check_block, block, 1)]
    check(len(failed) <= 16, f"{len(failed)} blocks are lost to 64 bad sectors")
    lost = daemon.show("v")["errors"]["lost"]
    check(not failed or lost, f"{len(failed)} blocks give errors and none is listed")


main()
