"""An image goes in and comes out the same."""

import filecmp

from harness import *


@test
def a_round_trip_and_another_after_a_restart(box):
    need("nbdcopy")
    size = 96 * MIB
    image = box.file("image", size, random_bytes("image", 40 * MIB))
    with open(image, "r+b") as file:
        file.seek(70 * MIB)
        file.write(random_bytes("tail", 10 * MIB + 512))
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", size, b"\xff" * size))
    box.run("nbdcopy", "--flush", image, uri)
    box.run("nbdcopy", uri, box.path("back"))
    check(filecmp.cmp(image, box.path("back"), shallow=False), "the copy differs")
    daemon.restart()
    box.run("nbdcopy", uri, box.path("again"))
    check(filecmp.cmp(image, box.path("again"), shallow=False), "the copy differs after a restart")


@test
def from_volume_to_volume(box):
    need("nbdcopy")
    size = 32 * MIB
    content = random_bytes("source", size)
    daemon = box.daemon()
    cache = box.file("cache", 128 * MIB)
    source = daemon.create("source", cache, box.file("one", size, content))
    target = daemon.create("target", cache, box.file("two", size))
    box.run("nbdcopy", "--flush", source, target)
    daemon.cli("flush", "target")
    daemon.cli("stop", "target")
    with open(box.path("two"), "rb") as file:
        check(file.read() == content, "the other origin does not hold the data")


main()
