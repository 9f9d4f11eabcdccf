"""Flipped bytes on the cache device are never served."""

import pathlib
import random

from harness import *

SIZE = 16 * MIB
# The structures at the start of the device have copies and tests of their own.
SPARED = 4 * MIB


def rot(path, seed, share):
    """Flips a byte in a share of the 4 KiB pieces of a file; returns how many."""
    data = bytearray(pathlib.Path(path).read_bytes())
    numbers = random.Random(seed)
    flipped = 0
    for start in range(SPARED, len(data), 4096):
        if any(data[start : start + 4096]) and numbers.random() < share:
            data[start + numbers.randrange(4096)] ^= 1 << numbers.randrange(8)
            flipped += 1
    pathlib.Path(path).write_bytes(data)
    return flipped


@test
def clean_blocks_come_from_the_origin_instead(box):
    content = random_bytes("origin", SIZE)
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", SIZE, content)
    client = connect(daemon.create("v", cache, origin, "--mode", "wt"))
    daemon.cli("set", "v", "sequential_cutoff=0")
    for start in range(0, SIZE, MIB):
        client.pread(MIB, start)
    client.shutdown()
    daemon.terminate()
    check(rot(cache, 1, 0.2) > 100, "too little was flipped for this test")
    daemon.start()
    client = connect(daemon.uri("v"))
    for _ in range(2):
        for start in range(0, SIZE, MIB):
            found = bytes(client.pread(MIB, start))
            place = first_difference(found, content[start : start + MIB])
            check_equal(place, None, f"the first wrong byte after {start}")
    daemon.check_alive()


@test
def dirty_blocks_give_errors_and_never_other_data(box):
    import nbd

    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", SIZE)
    uri = daemon.create("v", cache, origin)
    daemon.cli("set", "v", "writeback_running=off")
    recorder = Recorder(uri, blocks=2000)
    recorder.write(4000)
    recorder.settle()
    recorder.flush()
    # Later records prove that these were durable; damage to the last ones of all cannot be told
    # from a crash in the middle of writing them.
    proven = list(recorder.durable)
    for _ in range(2):
        recorder.write(10)
        recorder.settle()
        recorder.flush()
    recorder.settle()
    daemon.kill()
    check(rot(cache, 2, 0.02) > 20, "too little was flipped for this test")
    daemon.start()
    report = daemon.show("v")
    if report["state"] == "failed":
        # Dirty data that cannot be told any more must be said, not guessed.
        check(report["errors"]["last"], "nothing says why the volume failed")
        return
    client = connect(daemon.uri("v"))
    errors = []
    for block in range(2000):
        try:
            data = bytes(client.pread(4096, block * 4096))
        except nbd.Error:
            errors.append(block)
            continue
        version = read_stamp(data, block, 1)
        check(
            version >= proven[block],
            f"block {block} went back to version {version} from {proven[block]}",
        )
    check(errors, "no error at all: the flipped bytes were not among the data")
    lost = daemon.show("v")["errors"]["lost"]
    listed = {b for r in lost for b in range(r["offset"] // 4096, -(-(r["offset"] + r["len"]) // 4096))}
    check(set(errors) <= listed, "blocks that cannot be read are not listed as lost")
    # Until they are overwritten.
    for block in errors:
        client.pwrite(b"\x01" * 4096, block * 4096)
        check_equal(bytes(client.pread(4096, block * 4096)), b"\x01" * 4096, "after an overwrite")
    check_equal(daemon.show("v")["errors"]["lost"], [], "what is lost after the overwrites")


main()
