"""A cache that is full pushes back and loses nothing."""

from harness import *


@test
def writes_of_many_times_the_cache(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 32 * MIB), box.file("origin", 256 * MIB))
    blocks = 256 * MIB // 4096
    recorder = Recorder(uri, connections=2, blocks=blocks)
    for _ in range(3):
        recorder.write(16000, depth=64)
        recorder.settle()
        recorder.flush()
    recorder.settle()
    recorder.verify(uri)
    daemon.kill()
    daemon.start()
    recorder.verify(daemon.uri("v"))


@test
def a_cache_that_is_all_dirty_recovers_and_drains(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 32 * MIB), box.file("origin", 64 * MIB))
    daemon.cli("set", "v", "dirty_high=100", "dirty_low=100", "dirty_age=0", "idle=0")
    recorder = Recorder(uri, connections=2, blocks=16384)
    for _ in range(2):
        recorder.write(12000, depth=64)
        recorder.settle()
        recorder.flush()
        recorder.settle()
        daemon.kill()
        daemon.start()
        recorder.verify(daemon.uri("v"))
        recorder.reconnect(daemon.uri("v"))
    daemon.cli("flush", "v")
    check_equal(daemon.dirty("v"), 0, "dirty blocks after a flush")
    recorder.verify(daemon.uri("v"))


main()
