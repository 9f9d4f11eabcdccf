"""Devices with logical blocks of 512 and 4096 bytes in every combination, and partitions that begin at odd sectors."""

import os
import pathlib
import struct
import uuid
import zlib

import nbd

from harness import *
from harness.devices import clean_up
from harness.vhost_user import Driver


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
                client = lenient(daemon.cli(*make).stdout.strip())
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


def lenient(uri):
    """A client that takes no notice of the smallest size of requests, as many do."""
    client = connect(uri)
    client.set_strict_mode(client.get_strict_mode() & ~nbd.STRICT_ALIGN)
    return client


def smallest(uri):
    """The smallest size of requests that an export names."""
    return connect(uri).get_block_size(nbd.SIZE_MINIMUM)


def gpt(size, sector):
    """A disk of this size with a partition table in units of this sector, and one partition."""
    last = size // sector - 1
    kind = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le
    entry = kind + uuid.UUID(int=5).bytes_le + struct.pack("<QQQ", 256, last - 64, 0)
    entries = (entry + "data".encode("utf-16le").ljust(72, b"\0")).ljust(128 * 128, b"\0")

    def header(own, other, at):
        head = struct.pack(
            "<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, 0, 0, own, other, 6, last - 6,
            uuid.UUID(int=7).bytes_le, at, 128, 128, zlib.crc32(entries),
        )  # fmt: skip
        return (head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]).ljust(sector, b"\0")

    disk = bytearray(size)
    protective = struct.pack("<4xB3xII", 0xEE, 1, min(last, 0xFFFFFFFF))
    for at, data in (
        (446, protective), (510, b"\x55\xaa"), (sector, header(1, last, 2)), (2 * sector, entries),
        ((last - 4) * sector, entries), (last * sector, header(last, 1, last - 4)),
    ):  # fmt: skip
        disk[at : at + len(data)] = data
    return bytes(disk)


def partitions(box, device):
    """The partitions of a device, as util-linux finds them."""
    done = box.run("partx", "--show", "--noheadings", "--output", "START,SECTORS,UUID", device, expect=None)
    return done.stdout.split()


@test
def partitions_of_a_disk_are_those_of_its_volume_by_every_front_end(box):
    need("partx", "blockdev")
    vhost, daemon = box.path("vu"), box.daemon()
    box.at_end(clean_up, box, daemon)
    for sector in (4096, 512):
        disk = loop(box, box.file(f"disk-{sector}", 64 * MIB, gpt(64 * MIB, sector)), sector)
        found = partitions(box, disk)
        check_equal(len(found), 3, f"fields of the partition of the disk: {found}")
        cache, export = box.file(f"cache-{sector}", 64 * MIB), f"fuse,vhost-user={vhost}"
        made = daemon.create_run("v", cache, disk, "--export", export, expect=None)
        if made.returncode != 0 and ("CAP_SYS_ADMIN" in made.stderr or "modprobe" in made.stderr):
            skip(made.stderr.strip())
        check_equal(made.returncode, 0, made.stderr)
        device = made.stdout.strip()
        check_equal(partitions(box, device), found, f"partitions of the volume, sectors of {sector}")
        check_equal(box.run("blockdev", "--getss", device).stdout.strip(), str(sector), "--getss")
        check_equal(smallest(daemon.uri("v")), sector, "the smallest size by NBD")
        check_equal(daemon.show("v")["origin"]["sector_bytes"], sector, "show")
        config = Driver(vhost).config()
        check_equal(struct.unpack_from("<I", config, 20)[0], sector, "the sectors of a guest")
        client = lenient(daemon.uri("v"))
        client.pwrite(b"\5" * 512, 32 * MIB + 512)
        check_equal(bytes(client.pread(1024, 32 * MIB)), bytes(512) + b"\5" * 512, "a part of a sector")
        del client
        daemon.cli("delete", "v")


@test
def a_disk_that_comes_back_with_other_sectors_is_refused(box):
    daemon, link = box.daemon(), box.path("disk")
    file, cache = box.file("file", 16 * MIB), box.file("cache", 64 * MIB)

    def connected(sector):
        detach(box, file)
        pathlib.Path(link).unlink(missing_ok=True)
        os.symlink(loop(box, file, sector), link)

    for before, now in ((512, 4096), (4096, 512)):
        connected(before)
        client = connect(daemon.create("v", cache, link, "--set", "idle=0", "--set", "dirty_age=0"))
        client.pwrite(b"\6" * 4096, 8192)
        client.flush()
        del client
        daemon.cli("stop", "v")
        connected(now)
        kept = digest(cache, file)
        for force in ((), ("--force",)):
            said = daemon.cli("start", "v", *force, expect=3).stderr
            check(f"sector_size={before}" in said and f"sectors of {now} bytes" in said, said)
        check_equal(digest(cache, file), kept, "the devices after a refusal")
        daemon.cli("set", "v", f"sector_size={before}")
        daemon.cli("start", "v")
        check_equal(smallest(daemon.uri("v")), before, "what clients see")
        check_equal(bytes(connect(daemon.uri("v")).pread(4096, 8192)), b"\6" * 4096, "the data")
        daemon.cli("delete", "v")


@test
def an_image_has_small_sectors_wherever_it_lies(box):
    need("mkfs.ext4", "mount")
    daemon = box.daemon()
    device = loop(box, box.file("disk", 128 * MIB), 4096)
    box.run("mkfs.ext4", "-q", "-F", "-b", "4096", device)
    point = box.path("point")
    os.makedirs(point)
    if box.run("mount", device, point, expect=None).returncode != 0:
        skip("ext4 cannot be mounted here")
    box.at_end(box.run, "umount", "-l", point)
    pathlib.Path(f"{point}/image").write_bytes(bytes(16 * MIB))
    cache = box.file("cache", 64 * MIB)
    uri = daemon.create("v", cache, f"{point}/image")
    check_equal(smallest(uri), 512, "the smallest size")
    daemon.cli("delete", "v")
    uri = daemon.create("v", cache, f"{point}/image", "--set", "sector_size=4096")
    check_equal(smallest(uri), 4096, "the smallest size that was chosen")
    daemon.cli("delete", "v")


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
