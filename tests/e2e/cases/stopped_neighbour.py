"""A volume that is stopped leaves the rest of the cache to the others."""

import json
import time

from harness import *

CACHE, SIZE = 256 * MIB, 256 * MIB


def storm(box, uri, kind, requests):
    box.fio(uri, f"--rw={kind}", "--bs=4k", "--iodepth=32", f"--number_ios={requests}",
            "--randrepeat=0", "--norandommap", "--random_generator=tausworthe64", size=f"{SIZE // MIB}m")


def hits(daemon, name):
    requests = daemon.show(name)["requests"]
    hit = requests["read_hits"] + requests["write_hits"]
    return hit, hit + requests["read_misses"] + requests["read_partial"] + requests["write_misses"]


def share_after(box, daemon, name):
    """The share of requests that hit, and the cached blocks, once the cache has settled."""
    uri = daemon.uri(name)
    storm(box, uri, "randrw", 60_000)
    before = hits(daemon, name)
    storm(box, uri, "randrw", 40_000)
    after = hits(daemon, name)
    time.sleep(2.5)
    return (after[0] - before[0]) / (after[1] - before[1]), daemon.show(name)["blocks"]["cached"]


@test
def the_other_volume_has_all_but_the_dirty_blocks(box):
    daemon = box.daemon()
    cache = box.file("cache", CACHE)
    one = daemon.create("one", cache, box.file("a", SIZE))
    two = daemon.create("two", cache, box.file("b", SIZE))
    daemon.cli("set", "one", "idle=0", "dirty_age=0", "dirty_high=100")
    for _ in range(4):
        storm(box, one, "randwrite", 6_000)
        storm(box, two, "randwrite", 6_000)
    daemon.cli("stop", "one")
    stopped = daemon.show("one")["blocks"]
    check(stopped["known"], "it is not known what the stopped volume has in the cache")
    dirty = stopped["dirty"]
    check(dirty > 10_000, f"only {dirty} blocks of the stopped volume are dirty")
    shared, cached = share_after(box, daemon, "two")

    rest = CACHE - dirty * 4096
    daemon.create("alone", box.file("rest", rest // 4096 * 4096), box.file("c", SIZE))
    alone, expected = share_after(box, daemon, "alone")
    print(f"{dirty * 4096 >> 20} MiB of {CACHE >> 20} are dirty: {cached} blocks of the other are cached, "
          f"{shared:.1%} hit; alone in the rest {expected} and {alone:.1%}")
    check(cached > 0.95 * expected, f"{cached} blocks are cached, alone {expected}")
    check(shared > 0.95 * alone, f"{shared:.3f} of the requests hit, alone {alone:.3f}")

    again = daemon.show("one")["blocks"]
    check_equal(again["dirty"], dirty, "dirty blocks of the stopped volume")
    listed = {line["name"]: line for line in json.loads(daemon.cli("list", "--json").stdout)["volumes"]}
    check_equal(listed["one"]["dirty"], dirty * 4096, "dirty bytes in the list")
    check(listed["one"]["known"] and listed["one"]["used"] >= dirty * 4096, f"{listed['one']}")
    daemon.cli("start", "one")
    check_equal(daemon.show("one")["blocks"]["dirty"], dirty, "dirty blocks after the start")
    daemon.cli("flush", "one")
    check_equal(daemon.dirty("one"), 0, "dirty blocks after a flush")


main()
