"""Bad sectors of an origin within runs: exactly their blocks wait, are named, and arrive once the disk is mended."""

import subprocess
import time

from harness import *
from harness.faults import Disk

BLOCK = 4096
SECTOR = 512
#: Blocks of one run, of which these have a bad sector.
RUN = 256
BAD = (7, 8, 200)
NAMED = ("8192 bytes at 28672", "4096 bytes at 819200")
RANGES = [(28672, 8192), (819200, 4096)]


def value(block):
    return block % 250 + 1


def bad_places(op, blocks=BAD):
    """Rules by which the last sector of each of these blocks fails."""
    return [f"fail {op} {(block + 1) * BLOCK - SECTOR}..{(block + 1) * BLOCK}" for block in blocks]


def qemu_io(uri, *commands, fails=False):
    """Runs commands of qemu-io, which says by its exit code whether one failed."""
    arguments = [part for command in commands for part in ("-c", command)]
    done = subprocess.run(["qemu-io", "-t", "writeback", "-f", "raw", *arguments, uri], capture_output=True, text=True)
    said = done.stdout + done.stderr
    check(("error" in said or "failed" in said or done.returncode != 0) == fails, f"{commands}: {said}")


def write_blocks(uri, blocks):
    """Writes blocks, each with its value, and flushes."""
    qemu_io(uri, *(f"write -P {value(block)} {block * BLOCK} {BLOCK}" for block in blocks), "flush")


def check_origin(origin, missing, blocks=range(RUN)):
    for block in blocks:
        there = origin.read(block * BLOCK, BLOCK) == bytes([value(block)]) * BLOCK
        check(there == (block not in missing), f"the origin {'has' if there else 'lacks'} block {block}")


def check_named(daemon, name, said):
    """A command that failed, and everything that shows the volume, name exactly the blocks that wait."""
    for part in NAMED:
        check(part in said, f"'{part}' is not said: {said}")
    report = daemon.show(name)
    found = [(one["offset"], one["len"]) for one in report["errors"]["refused"]]
    check_equal(found, RANGES, "the list in the report")
    check_equal(report["state"], "degraded", "the state")
    shown = " ".join(daemon.cli("show", name).stdout.split())
    for part in NAMED:
        check(f"refused {part}" in shown, shown)


@test
def good_blocks_of_a_run_arrive_and_the_bad_ones_once_the_disk_is_mended(box):
    daemon = box.daemon()
    for mode in "writeback", "writeonly", "ordered":
        origin = Disk(box, f"origin-{mode}", 64 * MIB)
        settings = ["ordered=on"] if mode == "ordered" else [f"mode={mode}"]
        options = [part for setting in (*settings, "writeback_running=off") for part in ("--set", setting)]
        uri = daemon.create(mode, box.file(f"cache-{mode}", 64 * MIB), origin.name, *options)
        write_blocks(uri, range(RUN))
        check_equal(daemon.dirty(mode), RUN, "dirty blocks")
        origin.faults(*bad_places("write"))
        daemon.cli("set", mode, "writeback_running=on")
        done = daemon.cli("flush", mode, expect=1)
        check("cannot be written back" in done.stderr, done.stderr)
        check_named(daemon, mode, done.stderr)
        check_origin(origin, BAD)
        # Clients notice nothing, and other blocks arrive, unless their order forbids it.
        qemu_io(uri, *(f"read -P {value(block)} {block * BLOCK} {BLOCK}" for block in (*BAD, 0, 100)))
        write_blocks(uri, [1000])
        done = daemon.cli("flush", mode, expect=1)
        check_origin(origin, [1000] if mode == "ordered" else [], [1000])
        if mode == "ordered":
            check("'ordered' is set to off" in done.stderr, f"it does not say what can be done: {done.stderr}")
        # After a restart as well.
        daemon.restart()
        uri = daemon.uri(mode)
        done = daemon.cli("flush", mode, expect=1)
        if mode == "ordered":
            # Where its clients' flushes were within what was written meanwhile is not known: the order is that of the log.
            check("bytes at 28672" in done.stderr, done.stderr)
        else:
            check_named(daemon, mode, done.stderr)
        origin.heal()
        daemon.cli("flush", mode)
        check_origin(origin, ())
        check_origin(origin, (), [1000])
        report = daemon.show(mode)
        check_equal((report["errors"]["refused"], report["blocks"]["dirty"]), ([], 0), "what is left")
        check_equal(report["state"], "running", "the state")
        daemon.cli("delete", mode)


@test
def blocks_that_a_disk_takes_again_arrive_by_themselves(box):
    daemon, origin = box.daemon(), Disk(box, "origin", 64 * MIB)
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin.name, "--set", "dirty_age=1s")
    origin.faults(*bad_places("write"))
    write_blocks(uri, range(RUN))
    while len(daemon.show("v")["errors"]["refused"]) < len(RANGES) or daemon.dirty("v") > len(BAD):
        time.sleep(0.1)
    check_named(daemon, "v", daemon.show("v")["errors"]["last"])
    origin.heal()
    while daemon.dirty("v") > 0:
        time.sleep(0.2)
    check_origin(origin, ())
    check_equal(daemon.show("v")["errors"]["refused"], [], "what is refused")


@test
def a_write_through_a_bad_sector_fails_and_its_other_blocks_arrive(box):
    daemon, origin = box.daemon(), Disk(box, "origin", 64 * MIB)
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin.name, "--set", "mode=writethrough")
    origin.faults(*bad_places("write"))
    qemu_io(uri, f"write -P 9 0 {RUN * BLOCK}", fails=True)
    done = daemon.cli("flush", "v", expect=1)
    check_named(daemon, "v", done.stderr)
    for block in range(RUN):
        there = origin.read(block * BLOCK, BLOCK) == bytes([9]) * BLOCK
        check(there == (block not in BAD), f"block {block}")
    origin.heal()
    daemon.cli("flush", "v")
    check_equal(origin.read(0, RUN * BLOCK), bytes([9]) * RUN * BLOCK, "the origin")


@test
def reads_fail_only_where_they_include_a_bad_sector(box):
    daemon, origin = box.daemon(), Disk(box, "origin", 64 * MIB)
    for block in (4, 64):
        name = f"v{block}"
        options = ("--set", "promote=256K", "--block-size", f"{block}K")
        uri = daemon.create(name, box.file(f"cache{block}", 64 * MIB), origin.name, *options)
        origin.faults(*bad_places("read"))
        for number in range(RUN):
            qemu_io(uri, f"read -P 0 {number * BLOCK} {BLOCK}", fails=number in BAD)
        qemu_io(uri, f"read 0 {32 * BLOCK}", fails=True)
        said = daemon.show(name)["errors"]["last"] or ""
        check("cannot be read" in said or "read failed at byte" in said, said)
        origin.heal()
        qemu_io(uri, f"read -P 0 0 {RUN * BLOCK}")
        daemon.cli("delete", name)


main()
