"""Devices with logical blocks of 512 and 4096 bytes in every combination, and partitions that begin at odd sectors."""

import json
import os
import struct

from harness import *


def loop(box, path, sector):
    """A loop device with this logical block."""
    need("losetup")
    if os.geteuid() != 0:
        skip("loop devices take root")
    made = box.run("losetup", "--find", "--show", f"--sector-size={sector}", path, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    box.at_end(detach, box, path)
    return made.stdout.strip()


def detach(box, path):
    """Frees the loop devices of this file. The number of one that was freed before may be another case's by now."""
    for line in box.run("losetup", "--associated", path).stdout.splitlines():
        box.run("losetup", "-d", line.split(":")[0])


@test
def every_combination_serves_single_sectors(box):
    daemon = box.daemon()
    for cache_sector in (512, 4096):
        for origin_sector in (512, 4096):
            for block, alignment in (("4K", 0), ("2K", 0), ("16K", 1536)):
                what = f"cache {cache_sector}, origin {origin_sector}, blocks of {block}, alignment {alignment}"
                content = bytearray(random_bytes(5, MIB))
                origin = box.file("origin", MIB, bytes(content))
                devices = loop(box, box.file("cache", 64 * MIB), cache_sector), loop(box, origin, origin_sector)
                make = ("create", "v", "--cache", devices[0], "--origin", devices[1],
                        "--block-size", block, "--alignment", alignment)  # fmt: skip
                if cache_sector == 4096 and block == "2K":
                    done = daemon.cli(*make, expect=2)
                    check("at least 4096" in done.stderr, f"{what}: {done.stderr}")
                    continue
                client = connect(daemon.cli(*make).stdout.strip())
                for sector in (0, 1, 7, 8, 9, 100, 2047):
                    piece = random_bytes(sector, 512)
                    content[sector * 512 : sector * 512 + 512] = piece
                    client.pwrite(piece, sector * 512)
                client.flush()
                check(bytes(client.pread(MIB, 0)) == content, f"{what}: what was written")
                del client
                daemon.cli("stop", "v")
                daemon.cli("start", "v")
                check(bytes(connect(daemon.uri("v")).pread(MIB, 0)) == content, f"{what}: after a stop")
                daemon.cli("flush", "v")
                daemon.cli("delete", "v")
                with open(origin, "rb") as file:
                    check(file.read() == content, f"{what}: the origin")
                for path in (box.path("cache"), origin):
                    detach(box, path)


def mbr(*starts):
    """A partition table with partitions from these sectors on."""
    entries = b"".join(struct.pack("<4xB3xII", 0x83, start, 2048) for start in starts)
    return bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa"


@test
def partitions_at_odd_sectors_are_named(box):
    daemon = box.daemon()
    make = lambda name, *arguments: daemon.create_run(name, box.path("cache"), box.path(f"origin-{name}"), *arguments)
    box.file("cache", 128 * MIB)
    for name, starts, arguments, expected in (
        ("good", (2048, 8192), (), None),
        ("odd", (63,), (), ("partition 1", "byte 32256", "--alignment 512")),
        ("second", (2048, 20481), (), ("partition 2", "byte 10486272", "--alignment 3584")),
        ("shifted", (63,), ("--alignment", "512"), None),
        ("none", (), (), None),
    ):
        box.file(f"origin-{name}", 32 * MIB, mbr(*starts) if starts else b"")
        said = make(name, *arguments).stderr.strip()
        if expected is None:
            check_equal(said, "", f"stderr for {name}")
        else:
            check(all(part in said for part in expected) and "\n" not in said, f"{name}: {said!r}")


main()
