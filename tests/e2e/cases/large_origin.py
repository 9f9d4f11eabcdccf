"""Addresses beyond 2 TiB and 8 TiB, and an origin that grows."""

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
def an_origin_that_has_grown_keeps_its_data(box):
    content = random_bytes("grown", 16 * MIB)
    origin = box.file("origin", 16 * MIB, content)
    daemon = box.daemon()
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), origin))
    client.pwrite(b"\x07" * 4096, 16 * MIB - 4096)
    client.flush()
    client.shutdown()
    daemon.terminate()
    os.truncate(origin, 24 * MIB)
    daemon.start()
    client = connect(daemon.uri("v"))
    check_equal(bytes(client.pread(4096, 16 * MIB - 4096)), b"\x07" * 4096, "the old end")
    check_equal(bytes(client.pread(4096, 0)), content[:4096], "the start")
    size = client.get_size()
    check(size in (16 * MIB, 24 * MIB), f"a size of {size}")
    if size == 16 * MIB:
        return
    client.pwrite(b"\x08" * 4096, 24 * MIB - 4096)
    check_equal(bytes(client.pread(4096, 16 * MIB)), bytes(4096), "behind the old end")
    check_equal(bytes(client.pread(4096, 24 * MIB - 4096)), b"\x08" * 4096, "the new end")


main()
