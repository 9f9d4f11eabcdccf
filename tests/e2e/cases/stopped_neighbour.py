"""What a stopped volume has in a cache that is open for another one."""

import json

from harness import *


@test
def what_a_stopped_volume_has_in_the_cache_is_known(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    one = daemon.create("one", cache, box.file("a", 32 * MIB))
    two = daemon.create("two", cache, box.file("b", 128 * MIB))
    daemon.cli("set", "one", "idle=0", "dirty_age=0", "dirty_high=100")
    first = Recorder(one, blocks=4096, seed=1)
    first.write(3000)
    first.settle()
    first.flush()
    dirty = daemon.dirty("one")
    check(dirty > 1000, f"only {dirty} blocks are dirty")
    daemon.cli("stop", "--force", "one")

    def stopped():
        blocks = daemon.show("one")["blocks"]
        check(blocks["known"], "it is not known what the stopped volume has in the cache")
        lines = json.loads(daemon.cli("list", "--json").stdout)["volumes"]
        line = next(line for line in lines if line["name"] == "one")
        check_equal(line["dirty"], blocks["dirty"] * 4096, "dirty bytes in the list")
        check(line["known"] and line["used"] >= line["dirty"], f"{line}")
        return blocks["dirty"]

    check_equal(stopped(), dirty, "dirty blocks of the stopped volume")
    # More than the cache holds: everything of the stopped volume has to be moved.
    second = Recorder(two, blocks=32768, seed=2)
    second.write(12000, depth=64)
    second.settle()
    check_equal(stopped(), dirty, "dirty blocks after the other volume has used the cache")
    second.verify(two)
    daemon.cli("start", "one")
    first.verify(daemon.uri("one"))
    daemon.cli("flush", "one")
    check_equal(daemon.dirty("one"), 0, "dirty blocks after a flush")


main()
