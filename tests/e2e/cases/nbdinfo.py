"""What a client is told about a volume."""

import json

from harness import *


@test
def flags_sizes_and_names(box):
    need("nbdinfo")
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    uri = daemon.create("first", cache, box.file("origin", 48 * MIB))
    coarse = box.file("coarse", 64 * MIB)
    large = daemon.create("second-1.x", coarse, box.file("other", 32 * MIB), "--block-size", "16K")
    info = json.loads(box.run("nbdinfo", "--json", uri).stdout)["exports"][0]
    check_equal(info["export-size"], 48 * MIB, "the size")
    for flag in ("can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"):
        check_equal(info[flag], True, flag)
    check_equal(info["is_read_only"], False, "is_read_only")
    check_equal(info["block_size_preferred"], 4096, "the preferred block size")
    check_equal(info["block_size_minimum"], 512, "the smallest block size")
    info = json.loads(box.run("nbdinfo", "--json", large).stdout)["exports"][0]
    check_equal(info["block_size_preferred"], 16384, "the preferred block size of the other")
    listing = json.loads(box.run("nbdinfo", "--json", "--list", uri).stdout)
    names = {export["export-name"]: export["export-size"] for export in listing["exports"]}
    check_equal(names, {"first": 48 * MIB, "second-1.x": 32 * MIB}, "the list")


@test
def what_is_not_served_is_not_listed(box):
    need("nbdinfo")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    daemon.cli("stop", "v")
    check(box.run("nbdinfo", uri, expect=None).returncode != 0, "a stopped volume is served")
    daemon.cli("start", "v")
    box.run("nbdinfo", uri)


@test
def a_map_covers_the_volume(box):
    need("nbdinfo")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    extents = json.loads(box.run("nbdinfo", "--map", "--json", uri).stdout)
    check_equal(sum(extent["length"] for extent in extents), 16 * MIB, "bytes in the map")


main()
