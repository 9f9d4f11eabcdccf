"""Shares of a cache: what volumes on one cache device have at least and at most."""

from harness import *

SIZE = 256 * MIB


def two(box, one, other):
    """Two volumes on a cache of 128 MiB."""
    daemon = box.daemon()
    cache = box.file("cache", 128 * MIB)
    uris = [
        daemon.create(name, cache, box.file(f"origin-{name}", SIZE), *settings)
        for name, settings in (("one", one), ("other", other))
    ]
    return daemon, [connect(uri) for uri in uris]


def read(client, start, end):
    for offset in range(start, end, MIB):
        client.pread(MIB, offset)


def share(daemon, name):
    """The percentage of the cache that a volume has."""
    report = daemon.show(name)
    return report["blocks"]["cached"] * report["block_size"] * 100 / report["cache"]["size"]


@test
def a_volume_keeps_to_its_largest_share(box):
    daemon, (one, _) = two(box, ["--set", "sequential_cutoff=0", "--set", "share_max=25"], [])
    read_until(one, 0, 100 * MIB, lambda: daemon.show("one")["why"]["evicted"]["share"] > 0, "its share is full")
    # The count of show is some seconds old.
    wait_for(lambda: 20 < share(daemon, "one") <= 25, "the volume comes down to its share")
    shown = daemon.cli("show", "one").stdout
    check("% of the cache; at most 25 %" in shown, shown)


@test
def a_volume_keeps_its_least_share(box):
    cutoff = ["--set", "sequential_cutoff=0"]
    daemon, (one, other) = two(box, [*cutoff, "--set", "share_min=40"], cutoff)
    read_until(one, 0, 60 * MIB, lambda: share(daemon, "one") > 40, "the volume fills its share")
    for _ in range(2):
        read(other, 0, SIZE)
    check(share(daemon, "one") >= 39, f"{share(daemon, 'one')} % are left")
    check("at least 40 % if it is used" in daemon.cli("show", "one").stdout, "the share is not shown")


@test
def shares_that_contradict_are_refused(box):
    daemon, _ = two(box, [], [])
    refused = daemon.cli("set", "one", "share_min=50", "share_max=40", expect=2).stderr
    check("share_min" in refused and "share_max" in refused, refused)
    check("share_min" in daemon.cli("set", "one", "share_min=61", expect=2).stderr, "61 % can be guarded")
    check("at most" not in daemon.cli("show", "one").stdout, "a refused share is in force")


main()
