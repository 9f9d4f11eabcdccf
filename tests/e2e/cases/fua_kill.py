"""A FUA write is durable itself when it is acknowledged."""

from harness import *

FUA = 1  # NBD_CMD_FLAG_FUA


@test
def fua_writes_survive_a_kill_without_a_flush(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 64 * MIB)
    uri = daemon.create("v", cache, origin)
    daemon.cli("set", "v", "commit_interval=1h", "idle=0", "dirty_age=0")
    recorder = Recorder(uri, connections=2, blocks=1024)
    for _ in range(5):
        recorder.write(100)
        recorder.write(60, flags=FUA)
        recorder.write(20)
        daemon.kill()
        daemon.start()
        uri = daemon.uri("v")
        recorder.verify(uri)
        recorder.reconnect(uri)


@test
def fua_holds_in_every_mode(box):
    for mode in ("writeback", "writethrough", "writearound", "writeonly", "passthrough"):
        daemon = box.daemon(name=mode[5:])
        cache, origin = box.file(f"{mode}.cache", 64 * MIB), box.file(mode, 16 * MIB)
        uri = daemon.create("v", cache, origin, "--mode", mode)
        recorder = Recorder(uri, connections=2, blocks=512)
        recorder.write(100, flags=FUA)
        daemon.kill()
        daemon.start()
        recorder.verify(daemon.uri("v"))
        daemon.kill()


@test
def fua_holds_for_zeroes_and_trims(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, b"\xaa" * MIB)
    uri = daemon.create("v", cache, origin)
    client = connect(uri)
    client.pwrite(b"\xbb" * 65536, 4096)
    client.flush()
    client.zero(8192, 8192, flags=FUA)
    client.trim(4096, 32768, flags=FUA)
    after_trim = bytes(client.pread(4096, 32768))
    check(after_trim in (bytes(4096), b"\xbb" * 4096), "a trim left other data")
    daemon.kill()
    daemon.start()
    client = connect(daemon.uri("v"))
    check_equal(bytes(client.pread(8192, 8192)), bytes(8192), "zeroes after a crash")
    check_equal(bytes(client.pread(4096, 32768)), after_trim, "a trimmed block after a crash")
    check_equal(bytes(client.pread(4096, 4096)), b"\xbb" * 4096, "the block before the zeroes")
    check_equal(bytes(client.pread(512, 0)), b"\xaa" * 512, "a block that was never written")


main()
