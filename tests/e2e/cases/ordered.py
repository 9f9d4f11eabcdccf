"""Ordered writeback: at every sync of the origin, and between two of them, the origin alone is a
filesystem as a power cut leaves it. A recorder below the daemon has every write."""

import os
import random
import time

from harness import *
from harness.faults import wait_for
from harness.mounted import Mounted
from harness.recorder import open_file

SIZE = 48 * MIB
SECONDS = 12

# Syncs of the origin after which the test has seen enough.
SYNCS = 20

# Syncs after which the filesystem is checked; with FOREBAY_E2E_ALL=1 it is after each.
CHECKED = None if os.environ.get("FOREBAY_E2E_ALL") else 120


def churn(directory, seconds):
    """Makes, fills, renames and removes files, and syncs now and then."""
    rng = random.Random(1)
    end = time.monotonic() + seconds
    number, alive = 0, []
    while time.monotonic() < end:
        number += 1
        where = f"{directory}/d{rng.randrange(8)}"
        os.makedirs(where, exist_ok=True)
        path = f"{where}/f{number}"
        with open(path, "wb") as file:
            file.write(os.urandom(rng.randrange(1, 40_000)))
            if rng.random() < 0.3:
                os.fsync(file.fileno())
        alive.append(path)
        if len(alive) > 60:
            os.unlink(alive.pop(rng.randrange(len(alive))))
        if rng.random() < 0.2:
            there = rng.randrange(len(alive))
            os.rename(alive[there], alive[there] + "r")
            alive[there] += "r"
        if rng.random() < 0.05:
            os.sync()


def states_that_are_no_filesystem(box, ordered, tag=""):
    """Runs a filesystem on a volume; how many states of the origin were looked at, and those in which
    it was broken."""
    need("nbdfuse", "fusermount3", "losetup", "mount", "mkfs.ext4", "e2fsck")
    if os.geteuid() != 0:
        skip("mounting takes root")
    recorder, origin = open_file(box, f"origin{tag}", SIZE)
    daemon = box.daemon(name=f"d{tag}")
    uri = daemon.create(
        "v", box.file(f"cache{tag}", 64 * MIB), origin,
        # Without the order it is slow, so that what it brings is of many moments, however slow clients are.
        *(["--ordered"] if ordered else ["--set", "writeback_rate_max=3M", "--set", "writeback_rate_min=0"]),
        # Writeback has something to do all the time.
        "--set", "dirty_low=0", "--set", "dirty_high=1", "--set", "idle=20ms", "--set", "dirty_age=200ms",
    )  # fmt: skip
    mounted = Mounted(box, uri)
    mounted.attach()
    # With the journal in its strictest use: what fsck finds after its replay must be whole.
    box.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", mounted.loop)
    daemon.cli("flush", "v")
    made = recorder.count()
    mounted.mount_it()
    churn(mounted.mount, SECONDS)
    # On a busy machine writeback gets less done in that time.
    while ordered and len(recorder.syncs(made)) < SYNCS:
        churn(mounted.mount, SECONDS)
    end = recorder.count()
    mounted.detach()
    # After each sync, and at some places between two of them.
    rng = random.Random(2)
    syncs = [place for place in recorder.syncs(made) if place < end]
    between = [rng.randrange(made, end) for _ in range(80 if ordered else 250)] if end > made else []
    places = sorted(set(syncs[:: max(1, len(syncs) // (CHECKED or len(syncs) or 1))] + between))
    broken = []
    for place, image in recorder.replay(box.path("image"), 0, places):
        copy = box.path("copy")
        box.run("cp", "--sparse=always", image, copy)
        # Replays the journal; after that nothing may be left to mend.
        replayed = box.run("e2fsck", "-p", "-E", "journal_only", copy, expect=None)
        found = box.run("e2fsck", "-f", "-n", copy, expect=None)
        if replayed.returncode & ~1 or found.returncode != 0:
            broken.append((place, found.stdout.strip().splitlines()[:4]))
    return daemon, len(syncs), len(places), broken


@test
def the_origin_of_an_ordered_volume_is_a_whole_filesystem_at_every_moment(box):
    daemon, syncs, places, broken = states_that_are_no_filesystem(box, ordered=True)
    check(daemon.show("v")["ordered"]["in_effect"], "the order is not in effect")
    check(syncs >= SYNCS, f"the origin was synced {syncs} times only")
    check(not broken, f"{len(broken)} of {places} states: {broken[:2]}")


@test
def without_the_order_it_is_not(box):
    # Which states come about is chance.
    for attempt in "1", "2", "3":
        daemon, _, places, broken = states_that_are_no_filesystem(box, ordered=False, tag=attempt)
        daemon.kill()
        if broken:
            return
    check(False, f"all of {places} states were whole, three times: the other test proves nothing")


@test
def order_is_for_modes_that_keep_dirty_blocks(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 32 * MIB), box.file("origin", 16 * MIB)

    def in_effect():
        return (daemon.show("v")["ordered"] or {}).get("in_effect")

    daemon.create_run("v", cache, origin, "--ordered", "--mode", "wt", expect=2)
    daemon.create("v", cache, origin, "--ordered")
    said = daemon.cli("set", "v", "mode=passthrough", expect=2).stderr
    check("ordered" in said, said)
    wait_for(in_effect, "the order's effect")
    daemon.cli("set", "v", "ordered=off")
    daemon.cli("set", "v", "mode=passthrough")
    daemon.cli("set", "v", "mode=wb")
    daemon.cli("set", "v", "ordered=on")
    wait_for(in_effect, "the order's effect once it is switched on")
    daemon.cli("stop", "v")
    daemon.cli("start", "v")
    wait_for(in_effect, "the order's effect after a stop")


main()
