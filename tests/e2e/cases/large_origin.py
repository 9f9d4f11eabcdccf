"""Addresses beyond 2 TiB and 8 TiB, and origins that grow."""

import os

from harness import *

TIB = 1 << 40


@test
def writes_far_out(box):
    path = box.path("origin")
    size = 16 * TIB - MIB
    try:
        with open(path, "wb") as file:
            file.truncate(size)
    except OSError as error:
        skip(f"no sparse file of {size} bytes here: {error}")
    places = [0, 2 * TIB - 4096, 2 * TIB, 4 * TIB + 512, 8 * TIB, 8 * TIB + 4096, size - 4096]
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), path)
    client = connect(uri)
    check_equal(client.get_size(), size, "the size")
    for number, place in enumerate(places):
        client.pwrite(bytes([number + 1]) * 4096, place)
    client.flush()
    daemon.kill()
    daemon.start()
    client = connect(daemon.uri("v"))
    for number, place in enumerate(places):
        check_equal(bytes(client.pread(4096, place)), bytes([number + 1]) * 4096, f"at {place}")
    check_equal(bytes(client.pread(512, 2 * TIB + 4096)), bytes(512), "beside a block")
    daemon.cli("flush", "v")
    with open(path, "rb") as file:
        for number, place in enumerate(places):
            file.seek(place)
            check_equal(file.read(4096), bytes([number + 1]) * 4096, f"on the origin at {place}")


@test
def origins_that_have_grown_are_seen_whole(box):
    """Two volumes of one cache, the old ends in the middle of a block, after a stop and a kill."""
    old, new = 16 * MIB + 512, 24 * MIB
    contents = [bytearray(random_bytes(number, new)) for number in range(2)]
    for ending in "terminate", "kill":
        daemon, cache = box.daemon(name=ending), box.file(f"{ending}-cache", 64 * MIB)
        origins = [box.file(f"{ending}-{number}", old, bytes(contents[number][:old])) for number in range(2)]
        for number, origin in enumerate(origins):
            client = connect(daemon.create(f"v{number}", cache, origin))
            daemon.cli("set", f"v{number}", "writeback_running=off")
            client.pread(MIB, 0)
            client.pwrite(bytes([7 + number]) * 4608, old - 4608)
            contents[number][old - 4608 : old] = bytes([7 + number]) * 4608
            client.flush()
            client.shutdown()
        getattr(daemon, ending)()
        for number, origin in enumerate(origins):
            # Somebody appends what the cache has never seen.
            with open(origin, "r+b") as file:
                file.seek(old)
                file.write(contents[number][old:])
        daemon.start()
        for number, origin in enumerate(origins):
            client = connect(daemon.uri(f"v{number}"))
            check_equal(client.get_size(), new, f"the size after {ending}")
            check_equal(daemon.show(f"v{number}")["origin"]["size"], new, "the size in the report")
            client.pwrite(b"\x08" * 4096, new - 4096)
            contents[number][new - 4096 :] = b"\x08" * 4096
            found = b"".join(bytes(client.pread(MIB, at)) for at in range(0, new, MIB))
            check_equal(first_difference(found, bytes(contents[number])), None, f"the first difference after {ending}")
            client.shutdown()
            daemon.cli("flush", f"v{number}")
        daemon.terminate()
        for number, origin in enumerate(origins):
            with open(origin, "rb") as file:
                check_equal(first_difference(file.read(), bytes(contents[number])), None, "on the origin")


main()
