"""What somebody else has on a cache device is named and spared; what is overwritten leaves no mark of its owner."""

import glob
import os
import pathlib
import shutil
import struct
import threading

from harness import *

SIZE = 64 * MIB


def write(path, *parts):
    """Writes bytes at offsets; negative ones count from the end."""
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        for offset, data in parts:
            file.seek(offset if offset >= 0 else end + offset)
            file.write(data)


def tool(*command, size=SIZE):
    def make(box, path):
        if not shutil.which(command[0]):
            return False
        os.truncate(path, size)
        done = box.run(*command, path, expect=None)
        check_equal(done.returncode, 0, f"{command}: {done.stderr}")
        return True

    return make


def marks(*parts):
    def make(box, path):
        write(path, *parts)
        return True

    return make


def table(kind, then=None):
    def make(box, path):
        if not shutil.which("sfdisk"):
            return False
        box.run("sh", "-c", f"printf 'label: {kind}\\nsize=20MiB\\n' | sfdisk --quiet {path}")
        if then:
            write(path, then)
        return True

    return make


def luks2_second_header(box, path):
    """LUKS2 of which the first header is gone: its second one is enough to open it."""
    at = 32 * KIB
    header = struct.pack(">6sHQQ48s32s64s40s48sQ", b"SKUL\xba\xbe", 2, 16 * KIB, 1, b"secret", b"sha256", b"", b"1" * 36, b"", at)
    write(path, (at, header))
    return True


MD = bytes.fromhex("fc4e2ba9")
UBERBLOCK = struct.pack("<QQQ", 0x00BAB10C, 5000, 1)
# The kinds, what names them, and how they are made.
KINDS = {
    "ext4": ("ext4 filesystem labelled 'photos'", tool("mkfs.ext4", "-q", "-F", "-L", "photos")),
    "xfs": ("xfs filesystem labelled 'photos'", tool("mkfs.xfs", "-q", "-L", "photos", size=320 * MIB)),
    "btrfs": ("btrfs filesystem labelled 'photos'", tool("mkfs.btrfs", "-q", "-L", "photos", size=128 * MIB)),
    "vfat": ("vfat filesystem labelled 'PHOTOS'", tool("mkfs.vfat", "-n", "PHOTOS")),
    "swap": ("swap mark labelled 'photos'", tool("mkswap", "-q", "-L", "photos")),
    "gpt": ("a GPT partition table", table("gpt")),
    "mbr": ("an MBR partition table", table("dos")),
    "gpt-backup": ("a GPT partition table", table("gpt", (0, bytes(1 * MIB)))),
    "luks2-second": ("encrypted data (crypto_LUKS)", luks2_second_header),
    "md-0.90": ("linux_raid_member", marks((-64 * KIB, MD + struct.pack("<II", 0, 90)))),
    "md-1.0": ("linux_raid_member", marks((-8 * KIB, MD + struct.pack("<I", 1) + bytes(136) + struct.pack("<Q", (SIZE - 8 * KIB) // 512)))),
    "md-1.2": ("linux_raid_member", marks((4 * KIB, MD + struct.pack("<I", 1) + bytes(136) + struct.pack("<Q", 8)))),
    "zfs-tail": ("zfs_member", marks(*((-256 * KIB + 128 * KIB + n * KIB, UBERBLOCK) for n in range(8)))),
    "squashfs": ("squashfs filesystem", marks((0, b"hsqs" + bytes(24) + struct.pack("<HH", 4, 0)))),
    "iso9660": ("iso9660 filesystem", marks((32 * KIB, b"\x01CD001\x01" + bytes(33) + b"PHOTOS".ljust(32)))),
    "ufs": ("ufs filesystem", marks((8192 + 1372, struct.pack("<I", 0x00011954)))),
    "vmfs-member": ("VMFS_volume_member", marks((1 * MIB, b"\x0d\xd0\x01\xc0"))),
    # All that was written of this one is its mark, which is between the samples of a blank device.
    "vmfs": ("VMFS filesystem", marks((0, bytes(SIZE)), (2 * MIB, b"\x5e\xf1\xab\x2f"))),
    "random": ("data of an unknown kind (not blank)", marks((0, random_bytes(5, SIZE)))),
    "random-end": ("data of an unknown kind (not blank)", marks((-1, b"x"))),
    "random-middle": ("data of an unknown kind (not blank)", marks((SIZE // 2 + 5, b"x"))),
}  # fmt: skip


def no_mark(box, path, when):
    """Fails if other systems see anything on a device."""
    done = box.run("blkid", "-p", path, expect=None)
    check_equal((done.returncode, done.stdout), (2, ""), f"blkid {when}")
    check_equal(box.run("wipefs", "--no-act", path).stdout, "", f"wipefs {when}")


def refused(done, *words):
    lines = done.stderr.splitlines()
    check_equal(len(lines), 1, f"lines of {done.stderr!r}")
    for word in words:
        check(word in lines[0], f"{word!r} is missing in {lines[0]!r}")


@test
def every_kind_is_named_and_spared_without_force_and_wiped_with_it(box):
    need("blkid", "wipefs")
    daemon = box.daemon()
    made = 0
    for kind, (says, make) in KINDS.items():
        cache, origin = box.file(kind, SIZE), box.file(f"origin-{kind}", 4 * MIB)
        if not make(box, cache):
            continue
        made += 1
        before = digest(cache, origin)
        refused(daemon.create_run("v", cache, origin, expect=4), f"cache: {cache} (", says, "--force")
        check_equal(digest(cache, origin), before, f"the devices after the refusal of {kind}")
        check_equal(daemon.cli("list").stdout.count("\n"), 1, "lines of an empty list")
        client = connect(daemon.create("v", cache, origin, "--force"))
        client.pwrite(b"\x77" * MIB, 0)
        client.flush()
        client.shutdown()
        no_mark(box, cache, f"of {kind} once it is a cache")
        daemon.cli("delete", "v")
        no_mark(box, cache, f"of {kind} after delete")
        # An empty cache is used again without force.
        daemon.create("v", cache, origin)
        daemon.cli("delete", "v", "--wipe")
        no_mark(box, cache, f"of {kind} after delete --wipe")
        os.unlink(cache)
    check(made >= len(KINDS) - 5, f"only {made} kinds could be made")


@test
def a_blank_device_needs_no_force(box):
    daemon = box.daemon()
    origin = box.file("origin", 4 * MIB)
    discarded = box.file("discarded", SIZE, b"\xff" * SIZE)
    written = box.file("written", SIZE, bytes(SIZE))
    for cache in (box.file("sparse", SIZE), discarded, written, f"{box.path('new')},size=64M"):
        daemon.create("v", cache, origin)
        daemon.cli("delete", "v")


@test
def a_filled_cache_shows_no_mark(box):
    """Neither of its former owner, nor because of the data of its clients."""
    need("blkid", "wipefs", "mkfs.ext4")
    daemon = box.daemon()
    cache, origin = box.file("cache", SIZE), box.file("origin", 80 * MIB)
    box.run("mkfs.ext4", "-q", "-F", cache)
    client = connect(daemon.create("v", cache, origin, "--force", "--set", "writeback_running=off"))
    for part in range(10):
        client.pwrite(random_bytes(part, 4 * MIB), part * 4 * MIB)
    client.flush()
    no_mark(box, cache, "of a filled cache")
    client.shutdown()
    daemon.terminate()
    no_mark(box, cache, "of a filled cache that is closed")
    daemon.start()
    daemon.cli("delete", "v", "--wipe")
    no_mark(box, cache, "of a filled cache that was wiped")


class Creating:
    """A create that waits for its origin."""

    def __init__(self, box, daemon, cache, *arguments):
        self.disk = Disk(box, "slow-origin", 4 * MIB)
        self.disk.faults("hang read")
        self.done = None
        self.thread = threading.Thread(target=self.run, args=(daemon, cache, arguments))
        self.thread.start()
        # The cache device has been looked at when the origin is asked.
        wait_for(lambda: "an injected fault strikes" in daemon.log(), "create does not wait for its origin")

    def run(self, daemon, cache, arguments):
        self.done = daemon.create_run("w", cache, self.disk.name, *arguments, expect=None)

    def finish(self):
        self.disk.heal()
        self.thread.join()
        return self.done


@test
def consent_is_void_if_the_content_changes_while_a_command_waits(box):
    need("mkfs.ext4")
    for case, force in ("blank, without force", False), ("a filesystem, with force", True):
        daemon = box.daemon(name=f"d{int(force)}")
        cache = box.file(f"cache-{int(force)}", SIZE)
        if force:
            box.run("mkfs.ext4", "-q", "-F", "-L", "old", cache)
        creating = Creating(box, daemon, cache, *(["--force"] if force else []))
        box.run("mkfs.ext4", "-q", "-F", "-L", "photos", cache)
        before = digest(cache)
        done = creating.finish()
        check_equal(done.returncode, 4, f"{case}: {done.stderr}")
        refused(done, "labelled 'photos'", *(["changed", "'old'"] if force else []))
        check_equal(digest(cache), before, f"the cache device, {case}")
        daemon.terminate()


@test
def force_spares_the_caches_of_this_daemon_whatever_their_devices_are_called(box):
    daemon = box.daemon()
    cache, origin, other = box.file("cache", SIZE), box.file("origin", 16 * MIB), box.file("other", 16 * MIB)
    client = connect(daemon.create("v", cache, origin, "--set", "writeback_running=off"))
    client.pwrite(b"\x55" * MIB, 0)
    client.flush()
    client.shutdown()
    daemon.cli("stop", "v")
    moved = box.path("moved")
    os.rename(cache, moved)
    before = digest(moved, other)
    for force in [], ["--force"]:
        refused(daemon.create_run("w", moved, other, *force, expect=3), "cache: " + moved, "volume v", cache)
    check_equal(digest(moved, other), before, "the devices after the refusal")
    os.rename(moved, cache)
    daemon.cli("start", "v")
    check_equal(bytes(connect(daemon.uri("v")).pread(MIB, 0)), b"\x55" * MIB, "the dirty data")


@test
def cache_and_origin_exchanged_by_mistake_are_noticed(box):
    need("mkfs.ext4")
    daemon = box.daemon()
    disk, ssd = box.file("disk", SIZE), box.file("ssd", SIZE)
    box.run("mkfs.ext4", "-q", "-F", "-L", "photos", disk)
    before = digest(disk, ssd)
    refused(daemon.create_run("v", disk, ssd, expect=4), "'photos'", "exchanged")
    # With force too, if the disk is one with a head and the other is none.
    refused(daemon.create_run("v", f"hdd7200:{disk}", f"pcie-ssd:{ssd}", "--force", expect=3), "'photos'", "exchanged", "wipefs")
    check_equal(digest(disk, ssd), before, "the devices after the refusals")
    daemon.create("v", f"pcie-ssd:{ssd}", f"hdd7200:{disk}")


@test
def a_disk_with_a_partition_in_use_is_refused(box):
    need("losetup", "sfdisk", "blkid", "addpart")
    if os.geteuid() != 0:
        skip("loop devices take root")
    daemon = box.daemon()
    image, origin = box.file("image", SIZE), box.file("origin", 4 * MIB)
    box.run("sh", "-c", f"printf 'label: gpt\\nsize=20MiB\\n' | sfdisk --quiet {image}")
    made = box.run("losetup", "--find", "--show", "--partscan", image, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    loop = made.stdout.strip()
    box.at_end(box.run, "losetup", "--detach", loop)
    number = pathlib.Path(f"/sys/class/block/{os.path.basename(loop)}p1/dev")
    if not number.exists():
        # A kernel that does not read partition tables shows those that it is told of.
        box.run("addpart", loop, "1", "2048", "40960", expect=None)
    if not number.exists():
        skip("the kernel shows no partitions of loop devices")
    part = box.path("part")
    os.mknod(part, 0o600 | 0o060000, os.makedev(*map(int, number.read_text().split(":"))))
    before = digest(image, origin)
    with open(part, "rb"):
        refused(daemon.create_run("v", loop, origin, "--force", expect=3), "partition", loop)
    check_equal(digest(image, origin), before, "the devices after the refusal")
    daemon.create("v", loop, origin, "--force")
    no_mark(box, image, "of the former disk")
    check_equal(glob.glob(f"/sys/class/block/{os.path.basename(loop)}p*"), [], "the kernel's partitions")
    daemon.cli("delete", "v")


@test
def delete_says_what_it_leaves_and_wipes_on_request(box):
    daemon = box.daemon()
    cache = box.file("cache", SIZE)
    for name in "a", "b":
        daemon.create(name, cache, box.file(f"origin-{name}", 4 * MIB))
    refused(daemon.cli("delete", "a", "--wipe", expect=3), "wipe", "of b")
    check_equal(daemon.cli("delete", "a").stderr, "a: deleted, 0 written back\n", "a cache that has another volume")
    check("wiped" in daemon.cli("delete", "b", "--wipe").stderr, "nothing says that it was wiped")
    probe = box.run(daemon.binary, "probe", cache).stdout
    check("nothing" in probe, f"probe says {probe}")
    with open(cache, "rb") as file:
        check(b"FOREBAY1" not in file.read(128 * KIB), "the superblock is still there")
    daemon.create("c", cache, box.path("origin-a"), "--force")
    daemon.cli("stop", "c")
    check("wiped" in daemon.cli("delete", "c", "--wipe").stderr, "a stopped volume")
    daemon.create("d", cache, box.path("origin-a"), "--force")
    check("empty Forebay cache" in daemon.cli("delete", "d").stderr, "nothing says what is left")
    daemon.create("e", "ram:64M", box.path("origin-a"))
    refused(daemon.cli("delete", "e", "--wipe", expect=2), "wipe")
    daemon.create("f", cache, box.path("origin-b"))
    daemon.cli("stop", "f")
    check("wiped" in daemon.cli("delete", "f", "--discard-dirty", "--wipe").stderr, "with discarded blocks")


@test
def probe_says_what_a_device_holds(box):
    need("mkfs.ext4")
    say = lambda path: box.run(os.environ["FOREBAY"], "probe", "--content", path).stdout.strip()
    image = box.file("image", SIZE)
    check_equal(say(image), "blank", "an empty file")
    box.run("mkfs.ext4", "-q", "-F", "-L", "photos", image)
    check_equal(say(image), "an ext4 filesystem labelled 'photos'", "a filesystem")
    check_equal(say(box.file("noise", MIB, random_bytes(3, MIB))), "data of an unknown kind (not blank)", "noise")


main()
