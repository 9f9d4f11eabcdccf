"""Long sequential streams: recognised over several connections, and sent where they lose nothing."""

from harness import *

CHUNK = 128 * KIB


def bypassed(daemon):
    return daemon.show("v")["why"]["bypass"]["sequential"]


@test
def a_stream_over_several_connections_is_recognised(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", GIB))
    clients = [connect(uri) for _ in range(4)]
    # Streams may use space that nobody needs: fill it.
    for offset in range(0, 256 * MIB, 256 * KIB):
        clients[0].pread(64 * KIB, (offset * 7) % (256 * MIB))
    # On a machine that is busy with other things the origin may be too slow for a while to take a stream.
    for start in range(256 * MIB, GIB, 64 * MIB):
        before = bypassed(daemon)
        offsets = range(start, start + 64 * MIB, CHUNK)
        for number, offset in enumerate(offsets):
            clients[number % 4].pread(CHUNK, offset)
        found = bypassed(daemon) - before
        # All but the first 4 MiB of 64.
        if found > len(offsets) * 0.85:
            return
    raise Failure(f"{found} of {len(offsets)} reads bypassed the cache")


def stream(box, *rules):
    """Writes a stream onto an origin with these faults. Returns the share that bypassed the cache."""
    disk = Disk(box, "origin", 256 * MIB)
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 256 * MIB), disk.name, "--set", "idle=0", "--set", "dirty_high=90")
    disk.faults(*rules)
    client, data = connect(uri), random_bytes("stream", MIB)
    for offset in range(0, 128 * MIB, MIB):
        client.pwrite(data, offset)
    for offset in range(0, 128 * MIB, 16 * MIB):
        check_equal(client.pread(MIB, offset), data, f"the data at {offset}")
    return bypassed(daemon) / 128


@test
def a_stream_of_writes_that_the_origin_slows_down_goes_to_the_cache(box):
    share = stream(box, "delay 50ms write")
    check(share < 0.4, f"{share:.0%} of the writes bypassed the cache")


main()
