"""A volume that is deleted leaves its origin whole."""

from harness import *


def filled(box, daemon):
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 32 * MIB))
    daemon.cli("set", "v", "writeback_running=off")
    recorder = Recorder(uri, blocks=4096)
    recorder.write(5000)
    recorder.settle()
    check(daemon.dirty("v") > 1000, "too few blocks are dirty for this test")
    return recorder


def origin_versions(box):
    with open(box.path("origin"), "rb") as file:
        data = file.read(4096 * 4096)
    blocks = [data[start : start + 4096] for start in range(0, len(data), 4096)]
    return [read_stamp(block, place, 1) for place, block in enumerate(blocks)]


@test
def dirty_blocks_reach_the_origin_first(box):
    daemon = box.daemon()
    recorder = filled(box, daemon)
    daemon.cli("delete", "--force", "v")
    check_equal(origin_versions(box), recorder.acked, "the versions on the origin")
    daemon.restart()
    check("v" not in daemon.cli("list").stdout.split(), "the volume is still there")


@test
def a_stopped_volume_is_deleted_as_well(box):
    daemon = box.daemon()
    recorder = filled(box, daemon)
    daemon.cli("stop", "--force", "v")
    daemon.cli("delete", "v")
    check_equal(origin_versions(box), recorder.acked, "the versions on the origin")


@test
def dirty_blocks_are_lost_only_on_request(box):
    daemon = box.daemon()
    recorder = filled(box, daemon)
    daemon.cli("delete", "--force", "v", "--discard-dirty")
    for found, newest in zip(origin_versions(box), recorder.submitted):
        check(found <= newest, "the origin holds a version that was never written")
    check("v" not in daemon.cli("list").stdout.split(), "the volume is still there")


main()
