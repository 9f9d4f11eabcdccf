"""Random requests of 512 bytes and up beside a model, on every block size, over restarts."""

import os

from harness import *

SIZE = 8 * MIB + 512 * 3


def run(box, name, rounds=3, steps=250, cache=64 * MIB, size=SIZE, mode="wb", arguments=()):
    content = random_bytes(name, size)
    daemon = box.daemon(name=name)
    cache_file, origin = box.file(f"{name}.cache", cache), box.file(f"{name}.origin", size, content)
    uri = daemon.create("v", cache_file, origin, "--mode", mode, *arguments)
    model = Model(connect(uri), size, seed=name, content=content)
    for round in range(rounds):
        for _ in range(steps):
            model.step()
        if round == rounds - 1:
            break
        if round % 2:
            model.client.flush()
            daemon.kill()
            daemon.start()
        else:
            daemon.restart()
        model.client = connect(daemon.uri("v"))
        model.check_all()
    model.check_all()
    daemon.cli("flush", "v")
    model.check_all()
    daemon.cli("stop", "--force", "v")
    with open(origin, "rb") as file:
        place = first_difference(file.read(), bytes(model.bytes))
    check_equal(place, None, f"{name}: the first difference on the origin")
    daemon.terminate()
    os.unlink(cache_file)


@test
def every_block_size(box):
    for block in ("2K", "4K", "16K", "64K", "256K", "1M"):
        cache = 256 * MIB if block == "1M" else 64 * MIB
        run(box, f"b{block}", cache=cache, arguments=["--block-size", block])


@test
def every_mode(box):
    for mode in ("wt", "wa", "wo", "pt"):
        run(box, mode, mode=mode)
        run(box, f"{mode}-ram", mode=mode, arguments=["--ram", "2M"])


@test
def partitions_at_odd_sectors(box):
    for alignment in (512, 3584):
        run(box, f"a{alignment}", arguments=["--alignment", str(alignment)])


@test
def strict_durability(box):
    run(box, "strict", arguments=["--durability", "strict"])


@test
def a_cache_in_ram(box):
    content = random_bytes("ram", SIZE)
    daemon = box.daemon()
    uri = daemon.create("v", "ram:64M", box.file("origin", SIZE, content))
    model = Model(connect(uri), SIZE, seed="ram", content=content)
    for _ in range(500):
        model.step()
    model.check_all()
    daemon.cli("flush", "v")
    daemon.cli("stop", "--force", "v")
    with open(box.path("origin"), "rb") as file:
        check_equal(first_difference(file.read(), bytes(model.bytes)), None, "the first difference")


main()
