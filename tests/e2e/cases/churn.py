"""Volumes come, grow and go on a cache that serves others: nothing runs out, and nothing of one shows in another."""

import os
import pathlib
import threading

from harness import *

TIB = 1 << 40
SIZE = 2 * MIB
# A few such origins have as many blocks as an index is made for.
WHOLE = 512 * MIB
# How many volumes come and go; a long run shows that nothing grows.
ROUNDS = 1000 if "FOREBAY_E2E_ALL" in os.environ else 120


def beside(recorder, action):
    """Writes while an action goes on in another thread; gives its result."""
    result = []

    def run():
        try:
            result.append((action(), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        recorder.write(50)
    thread.join()
    recorder.settle()
    value, error = result[0]
    if error:
        raise error
    return value


def kept_files(daemon):
    """The files of the state directory, without the events, which have a limit of their own."""
    files = [path for path in pathlib.Path(daemon.state).rglob("*") if path.is_file()]
    return {path.name: path.stat().st_size for path in files if "events" not in path.name}


@test
def volumes_come_and_go_without_end(box):
    """Each of a new volume's blocks is as its origin has it; the one before has left dirty and clean copies at the same place."""
    daemon, cache = box.daemon(), box.file("cache", 64 * MIB)
    origins = [box.file(f"o{number}", WHOLE, random_bytes(number, SIZE)) for number in range(2)]
    kept = Recorder(daemon.create("kept", cache, box.file("kept", 16 * MIB)), connections=1, blocks=500)
    previous, first = None, None
    for number in range(ROUNDS):
        name, path = f"w{number}", origins[number % 2]
        with open(path, "rb") as file:
            content = bytearray(file.read(SIZE))
        client = connect(daemon.create(name, cache, path, "--mode", "wb"))
        for at in range(0, SIZE, MIB):
            check_equal(first_difference(bytes(client.pread(MIB, at)), bytes(content[at : at + MIB])), None, name)
        if number % 3:
            daemon.cli("set", name, "writeback_running=off")
        for block in range(number % 7, SIZE // BLOCK, 7):
            data = stamp(block, number + 1, 99)
            client.pwrite(data, block * BLOCK)
            content[block * BLOCK : (block + 1) * BLOCK] = data
        client.flush()
        client.shutdown()
        kept.write(20)
        kept.settle()
        if number % 40 == 20:
            kept.flush()
            kept.settle()
            daemon.kill()
            daemon.start()
        elif number % 40 == 39:
            daemon.restart()
        if number % 20 == 19 or number % 40 == 20:
            client = connect(daemon.uri(name))
            for at in range(0, SIZE, MIB):
                check_equal(first_difference(bytes(client.pread(MIB, at)), bytes(content[at : at + MIB])), None, name)
            client.shutdown()
            kept.verify(daemon.uri("kept"))
            kept.reconnect(daemon.uri("kept"))
        if previous:
            discards = number % 2 == 0
            daemon.cli("delete", previous, *(["--discard-dirty"] if discards else []))
        previous = name
        if number % 40 == 35:
            # Since the last start.
            now = daemon.resident(), kept_files(daemon)
            if first:
                check(now[0] < first[0] + 24 * MIB, f"the daemon has grown from {first[0]} to {now[0]} bytes")
                check_equal(len(now[1]), len(first[1]), "the number of files in the state directory")
                check(
                    sum(now[1].values()) < sum(first[1].values()) + 2048,
                    f"the state has grown from {first[1]} to {now[1]}",
                )
            first = first or now
    kept.verify(daemon.uri("kept"))


@test
def a_larger_origin_beside_one_that_is_served(box):
    daemon, cache = box.daemon(), box.file("cache", 256 * MIB)
    small = Recorder(daemon.create("small", cache, box.file("small", GIB)), blocks=2000)
    small.write(3000)
    size, path = 16 * TIB - MIB, box.path("large")
    with open(path, "wb") as file:
        file.truncate(size)
    uri = beside(small, lambda: daemon.create("large", cache, path))
    far = [0, TIB, 8 * TIB + 4096, size - 4096]
    client = connect(uri)
    for number, place in enumerate(far):
        client.pwrite(bytes([number + 1]) * 4096, place)
    client.flush()
    small.write(2000)
    small.flush()
    small.settle()
    for ending in "kill", "terminate", None:
        small.verify(daemon.uri("small"))
        client = connect(daemon.uri("large"))
        for number, place in enumerate(far):
            check_equal(bytes(client.pread(4096, place)), bytes([number + 1]) * 4096, f"at {place}")
        client.shutdown()
        if ending:
            getattr(daemon, ending)()
            daemon.start()
            small.reconnect(daemon.uri("small"))


@test
def an_origin_grows_beside_one_that_is_served(box):
    """It has a neighbour behind it in the index, and needs more addresses than the index has."""
    old, new = 16 * MIB + 512, 4 * TIB
    daemon, cache = box.daemon(), box.file("cache", 64 * MIB)
    content = bytearray(random_bytes(5, old))
    path = box.file("grows", old, bytes(content))
    client = connect(daemon.create("grows", cache, path))
    daemon.cli("set", "grows", "writeback_running=off")
    other = Recorder(daemon.create("other", cache, box.file("other", 64 * MIB)), blocks=2000)
    client.pread(MIB, 0)
    client.pwrite(b"\x07" * 4608, old - 4608)
    content[old - 4608 : old] = b"\x07" * 4608
    client.flush()
    client.shutdown()
    other.write(2000)
    daemon.cli("stop", "grows")
    with open(path, "r+b") as file:
        file.truncate(new)
    beside(other, lambda: daemon.cli("start", "grows"))
    check_equal(daemon.show("grows")["origin"]["size"], new, "the size in the report")
    client = connect(daemon.uri("grows"))
    check_equal(client.get_size(), new, "the size")
    for place in old + MIB, new - 4096:
        place -= place % 4096
        client.pwrite(b"\x08" * 4096, place)
    client.flush()
    other.flush()
    other.settle()
    for ending in "kill", "terminate", None:
        other.verify(daemon.uri("other"))
        client = connect(daemon.uri("grows"))
        check_equal(first_difference(bytes(client.pread(old // MIB * MIB, 0)), bytes(content[: old // MIB * MIB])), None, "")
        check_equal(bytes(client.pread(4096, old - 512)), b"\x07" * 512 + bytes(3584), "at the old end")
        check_equal(bytes(client.pread(4096, new - 4096)), b"\x08" * 4096, "at the new end")
        client.shutdown()
        if ending:
            getattr(daemon, ending)()
            daemon.start()
            other.reconnect(daemon.uri("other"))
    daemon.cli("flush", "grows")
    with open(path, "rb") as file:
        check_equal(first_difference(file.read(old), bytes(content)), None, "on the origin")


main()
