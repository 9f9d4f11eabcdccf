"""The origin of a stopped volume is written elsewhere, where samples of its content do not lie."""

import os
import shutil
import struct

from harness import *
from harness.devices import attached_by, mount

SIZE = 512 * MIB
PARTITION = MIB


def loop(box, path, *arguments):
    """Attaches a file to a loop device."""
    need("losetup", "mount")
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        skip("loop devices take root")
    box.at_end(detach_all, box)
    return box.run("losetup", "--find", "--show", *arguments, path).stdout.strip()


def detach_all(box):
    """Detaches what a test that failed has left."""
    for device in attached_by(box):
        box.run("losetup", "--detach", f"/dev/{device}", expect=None)


def partitioned(path):
    """Makes a disk with one partition in an MBR, which starts at 1 MiB."""
    os.truncate(path, SIZE)
    with open(path, "r+b") as disk:
        disk.seek(446)
        disk.write(struct.pack("<4xB3xII", 0x83, PARTITION // 512, (SIZE - PARTITION) // 512))
        disk.seek(510)
        disk.write(b"\x55\xaa")


def elsewhere(box, kind, origin, edit):
    """Mounts the filesystem in the partition without the cache, edits it, and unmounts it."""
    device = loop(box, origin, "--offset", str(PARTITION))
    point = mount(box, kind, device)
    try:
        edit(point)
    finally:
        box.run("umount", point)
        box.run("losetup", "--detach", device)


def served(box, daemon, kind, look):
    """Mounts the filesystem as the volume serves it, read-only."""
    copy = box.path("copy")
    client = connect(daemon.uri("v"))
    with open(copy, "wb") as file:
        for at in range(0, SIZE, MIB):
            content = bytes(client.pread(MIB, at))
            if any(content):
                file.seek(at)
                file.write(content)
        file.truncate(SIZE)
    client.shutdown()
    device = loop(box, copy, "--offset", str(PARTITION))
    point = mount(box, kind, device)
    try:
        look(point)
    finally:
        box.run("umount", point)
        box.run("losetup", "--detach", device)


def used(box, kind):
    """A volume over a partitioned disk with a filesystem, cached as a whole and stopped in order."""
    if not shutil.which(f"mkfs.{kind}"):
        skip(f"there is no mkfs.{kind}")
    cache, origin = box.file("cache", 768 * MIB), box.file("origin", SIZE)
    partitioned(origin)
    device = loop(box, origin, "--offset", str(PARTITION))
    box.run(f"mkfs.{kind}", "-q", device)
    box.run("losetup", "--detach", device)

    def write(point):
        for number in range(20):
            with open(f"{point}/{number}", "wb") as file:
                file.write(f"old {number}\n".encode() * 3000)

    elsewhere(box, kind, origin, write)
    daemon = box.daemon()
    client = connect(daemon.create("v", cache, origin))
    daemon.cli("set", "v", "sequential_cutoff=0")
    read_until(client, 0, 128 * MIB, lambda: daemon.show("v")["cache"]["used"] > 96 * MIB, "most of it is cached")
    client.flush()
    client.shutdown()
    daemon.cli("stop", "v")
    return daemon, cache, origin


def edit(point):
    for number in range(20):
        with open(f"{point}/{number}", "r+b") as file:
            file.write(f"NEW {number}\n".encode() * 3000)


def check_new(point):
    for number in range(20):
        with open(f"{point}/{number}", "rb") as file:
            check_equal(file.read(6), f"NEW {number}\n".encode()[:6], f"file {number}")


def noticed(daemon, by):
    done = daemon.cli("start", "v")
    check("was written elsewhere" in done.stderr and by in done.stderr, f"start says: {done.stderr}")
    found = daemon.show("v")["origin"]["check"]
    check_equal(found["found"], "changed", f"what was found: {found}")
    check(found["dropped"] > 0, f"nothing was dropped: {found}")


def set_times_back(origin, before):
    os.utime(origin, ns=(before.st_atime_ns, before.st_mtime_ns))


def edited(box, kind):
    daemon, _, origin = used(box, kind)
    elsewhere(box, kind, origin, edit)
    noticed(daemon, "its file was modified")
    served(box, daemon, kind, check_new)


@test
def a_filesystem_in_a_partition_ext4(box):
    edited(box, "ext4")


@test
def a_filesystem_in_a_partition_xfs(box):
    edited(box, "xfs")


@test
def a_filesystem_in_a_partition_btrfs(box):
    edited(box, "btrfs")


def only_mounted(box, kind):
    """The times of the file are set back, as a restore does, so that only the content tells."""
    daemon, _, origin = used(box, kind)
    before = os.stat(origin)
    # Btrfs writes nothing before something is changed.
    elsewhere(box, kind, origin, (lambda point: os.mkdir(f"{point}/new")) if kind == "btrfs" else (lambda point: None))
    set_times_back(origin, before)
    noticed(daemon, "the start of a partition")


@test
def mounted_and_unmounted_ext4(box):
    only_mounted(box, "ext4")


@test
def mounted_and_unmounted_xfs(box):
    only_mounted(box, "xfs")


@test
def mounted_and_unmounted_btrfs(box):
    only_mounted(box, "btrfs")


def cached(box, dirty=False):
    """A volume over random bytes that is cached in part and stopped in order, with dirty blocks if asked for."""
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 32 * MIB, random_bytes(1, 32 * MIB))
    client = connect(daemon.create("v", cache, origin))
    daemon.cli("set", "v", "writeback_running=off", "sequential_cutoff=0")
    full = lambda: daemon.show("v")["cache"]["used"] >= 8 * MIB
    read_until(client, 4 * MIB, 12 * MIB, full, "all of it is cached")
    if dirty:
        client.pwrite(b"\x99" * 65536, 20 * MIB)
    client.flush()
    client.shutdown()
    daemon.cli("stop", "v")
    return daemon, origin


# No sample lies there.
AT = 5 * MIB + 256 * KIB + 8192


def poke(origin, at=AT):
    with open(origin, "r+b") as file:
        file.seek(at)
        file.write(b"\x55" * 512)


@test
def one_sector(box):
    daemon, origin = cached(box)
    poke(origin)
    noticed(daemon, "its file was modified")
    check_equal(bytes(connect(daemon.uri("v")).pread(512, AT)), b"\x55" * 512, "what is served")
    # A volume that was stopped and left alone keeps its blocks.
    daemon.cli("stop", "v")
    done = daemon.cli("start", "v")
    check("elsewhere" not in done.stderr, f"start says: {done.stderr}")
    check(daemon.show("v")["origin"]["check"]["found"] in ("unchanged", "unclear"), "it was not changed")


@test
def one_sector_below_dirty_blocks(box):
    daemon, origin = cached(box, dirty=True)
    poke(origin)
    for arguments in ((), ("--verify",)):
        done = daemon.cli("start", "v", *arguments, expect=4)
        check("start --force v" in done.stderr, f"no way out is named: {done.stderr}")
    daemon.cli("start", "v", "--force")
    client = connect(daemon.uri("v"))
    check_equal(bytes(client.pread(512, AT)), b"\x55" * 512, "what was written elsewhere")
    check_equal(bytes(client.pread(512, 20 * MIB)), b"\x99" * 512, "what was dirty")


@test
def one_sector_on_a_loop_device(box):
    daemon = box.daemon()
    cache, image = box.file("cache", 64 * MIB), box.file("image", 32 * MIB, random_bytes(1, 32 * MIB))
    device = loop(box, image)
    client = connect(daemon.create("v", cache, device))
    daemon.cli("set", "v", "sequential_cutoff=0")
    full = lambda: daemon.show("v")["cache"]["used"] >= MIB
    read_until(client, AT - AT % MIB, AT - AT % MIB + MIB, full, "it is cached")
    client.shutdown()
    daemon.cli("stop", "v")
    poke(device)
    os.sync()
    noticed(daemon, "its file was modified")
    check_equal(bytes(connect(daemon.uri("v")).pread(512, AT)), b"\x55" * 512, "what is served")
    daemon.cli("stop", "v")
    # The number of the device goes to the same file again.
    box.run("losetup", "--detach", device)
    if box.run("losetup", device, image, expect=None).returncode != 0:
        skip("another test has got the loop device meanwhile")
    done = daemon.cli("start", "v")
    check("elsewhere" not in done.stderr, f"start says: {done.stderr}")


@test
def all_blocks_are_compared_on_request(box):
    daemon, origin = cached(box)
    before = os.stat(origin)
    places = [AT, AT + MIB, 11 * MIB + 4096]
    for place in places:
        poke(origin, place)
    set_times_back(origin, before)
    done = daemon.cli("start", "v", "--verify")
    check("2048 blocks were compared, 3 differed" in done.stdout, f"start says: {done.stdout}")
    check("3 clean blocks were dropped" in done.stderr, f"start says: {done.stderr}")
    client = connect(daemon.uri("v"))
    for place in places:
        check_equal(bytes(client.pread(512, place)), b"\x55" * 512, "what is served")
    event = daemon.cli("events", "--json").stdout
    check("origin-changed" in event, f"there is no event: {event}")


@test
def killed_and_written_elsewhere(box):
    daemon, origin = cached(box)
    daemon.cli("start", "v")
    daemon.kill()
    poke(origin)
    daemon.start()
    check_equal(bytes(connect(daemon.uri("v")).pread(512, AT)), b"\x55" * 512, "what is served")


main()
