"""Flipped bytes on the cache device are never served."""

import pathlib
import random
import struct

from harness import *

SIZE = 16 * MIB
# The structures at the start of the device are there twice, and mend one page, not a share of all.
SPARED = 4 * MIB
HEADER = b"FBRC"
DATA = 1


def headers(data):
    """Where the headers of data records are, by their numbers."""
    found = {}
    for start in range(0, len(data), 4096):
        if data[start : start + 4] == HEADER and data[start + 36] == DATA:
            (number,) = struct.unpack_from("<Q", data, start + 48)
            found[number] = start
    return [start for _, start in sorted(found.items())]


def rot(path, seed, share, headers=True):
    """Flips a byte in a share of the 4 KiB pieces of a file; returns how many."""
    data = bytearray(pathlib.Path(path).read_bytes())
    numbers = random.Random(seed)
    flipped = 0
    for start in range(SPARED, len(data), 4096):
        spared = not headers and data[start : start + 4] == HEADER
        if any(data[start : start + 4096]) and not spared and numbers.random() < share:
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
    check(rot(cache, 2, 0.02, headers=False) > 20, "too little was flipped for this test")
    daemon.start()
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


@test
def a_lost_record_is_acknowledged_for_each_volume(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    recorders = {}
    for seed, name in enumerate("ab"):
        uri = daemon.create(name, cache, box.file(f"origin-{name}", SIZE))
        daemon.cli("set", name, "writeback_running=off")
        recorders[name] = Recorder(uri, blocks=1000, seed=seed)
    for _ in range(4):
        for recorder in recorders.values():
            recorder.write(100)
            recorder.settle()
            recorder.flush()
            recorder.settle()
    daemon.kill()
    data = bytearray(pathlib.Path(cache).read_bytes())
    places = headers(data)
    data[places[len(places) // 2] + 500] ^= 1
    pathlib.Path(cache).write_bytes(data)
    daemon.start()
    for name in "ab":
        report = daemon.show(name)
        check_equal(report["state"], "failed", f"the state of {name}")
        check("lost" in report["errors"]["last"], f"nothing says why {name} failed: {report['errors']}")
        done = daemon.cli("start", name, expect=4)
        check(f"start --force {name}" in done.stderr, f"no way out is named: {done.stderr}")
        daemon.cli("delete", name, expect=4)
    daemon.cli("delete", "--discard-dirty", "a")
    daemon.cli("start", "b", expect=4)
    daemon.kill()
    daemon.start()
    daemon.cli("start", "b", expect=4)
    # What was given up for a is no reason to believe anything about b.
    daemon.cli("start", "--force", "b")
    client = connect(daemon.uri("b"))
    recorder, old = recorders["b"], 0
    for block in range(1000):
        data = bytes(client.pread(4096, block * 4096))
        old += read_stamp(data, block, recorder.seed) < recorder.durable[block]
    check(old <= 126, f"{old} blocks are old: one record holds 126")
    client.shutdown()
    daemon.restart()
    check_equal(daemon.show("b")["state"], "running", "the state of b after it was acknowledged")


main()
