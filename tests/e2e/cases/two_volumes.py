"""Two volumes share one cache device and nothing else."""

from harness import *


@test
def each_volume_has_its_own_data(box):
    daemon = box.daemon()
    cache = box.file("cache", 96 * MIB)
    size = 64 * MIB
    one = daemon.create("one", cache, box.file("a", size))
    two = daemon.create("two", cache, box.file("b", size), "--mode", "wt")
    recorders = [Recorder(one, connections=2, blocks=8192, seed=1), Recorder(two, blocks=8192, seed=2)]
    for round in range(3):
        for recorder in recorders:
            recorder.write(1500)
            recorder.settle()
            recorder.flush()
        if round == 1:
            daemon.kill()
            daemon.start()
        else:
            daemon.restart()
        for name, recorder in zip(("one", "two"), recorders):
            recorder.verify(daemon.uri(name))
            recorder.reconnect(daemon.uri(name))


@test
def deleting_one_leaves_the_other(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    one = daemon.create("one", cache, box.file("a", 16 * MIB))
    two = daemon.create("two", cache, box.file("b", 16 * MIB))
    first, second = Recorder(one, blocks=1000, seed=1), Recorder(two, blocks=1000, seed=2)
    for recorder in (first, second):
        recorder.write(2000)
        recorder.settle()
    daemon.cli("delete", "--force", "one")
    daemon.cli("show", "one", expect=2)
    second.verify(daemon.uri("two"))
    # A new volume in its place must not see what the old one left on the cache device.
    again = daemon.create("one", cache, box.file("c", 16 * MIB))
    check_equal(bytes(connect(again).pread(4 * MIB, 0)), bytes(4 * MIB), "the data of a new volume")
    daemon.restart()
    second.verify(daemon.uri("two"))
    again = daemon.uri("one")
    check_equal(bytes(connect(again).pread(4 * MIB, 0)), bytes(4 * MIB), "the same after a restart")


@test
def names_devices_and_blocks_are_checked_against_what_is_there(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    daemon.create("one", cache, box.file("a", 16 * MIB))
    spare = box.file("spare", 16 * MIB)
    daemon.create("one", cache, spare, expect=3)
    daemon.create("two", cache, box.path("a"), expect=3)
    daemon.create("two", spare, cache, expect=3)
    daemon.create("two", box.path("a"), spare, expect=3)


main()
