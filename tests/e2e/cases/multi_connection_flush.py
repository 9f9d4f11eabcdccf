"""A flush on one connection covers what was acknowledged on all others."""

from harness import *


@test
def a_flush_on_a_fourth_connection_covers_three_writers(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 128 * MIB)
    # Only a flush makes anything durable within the time of this test.
    uri = daemon.create("v", cache, origin)
    daemon.cli("set", "v", "commit_interval=1h", "idle=0", "dirty_age=0")
    recorder = Recorder(uri, connections=3, blocks=4096)
    for round in range(6):
        recorder.write(300)
        if round % 2:
            recorder.settle()
        recorder.flush()
        # These are submitted after the flush, and may be lost.
        recorder.write(100 * round)
        daemon.kill()
        daemon.start()
        uri = daemon.uri("v")
        recorder.verify(uri)
        recorder.reconnect(uri)
    check(recorder.flushes == 6, "not every flush was sent")


@test
def the_same_with_strict_durability_and_no_flush(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 128 * MIB)
    uri = daemon.create("v", cache, origin, "--durability", "strict")
    recorder = Recorder(uri, connections=3, blocks=2048)
    for _ in range(3):
        recorder.write(400)
        recorder.collect()
        recorder.durable = list(recorder.acked)
        daemon.kill()
        daemon.start()
        uri = daemon.uri("v")
        lost = recorder.verify(uri)
        check_equal(lost, 0, "acknowledged writes that were lost")
        recorder.reconnect(uri)


main()
