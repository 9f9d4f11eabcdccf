"""
Filesystems in containers that disks have, edited without the cache while the volume is not served: is each
edit noticed, and is the right content served? After an orderly stop with the times of the origin's file, and
with these set back, so that only content tells; after one that leaves dirty blocks, and after a kill, with the
times as they are. Prints a line for each edit into the file FOREBAY_ELSEWHERE_TABLE.
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import time
import uuid
import zlib

from harness import *
from harness.devices import attached_by, mount

SIZE = 340 * MIB
FILESYSTEMS = ("ext4", "xfs", "btrfs")


def loop(box, path, offset=0, size=0):
    """Attaches a part of a file to a loop device."""
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        skip("loop devices take root")
    limit = ["--sizelimit", str(size)] if size else []
    return box.run("losetup", "--find", "--show", "--offset", str(offset), *limit, path).stdout.strip()


def detach_all(box):
    """Detaches what a test that failed has left."""
    for device in attached_by(box):
        box.run("losetup", "--detach", f"/dev/{device}", expect=None)


# Containers: each writes its metadata to the file, and gives the offset at which the filesystem lies.


def bare(box, path):
    return 0


def mbr(box, path, at=0, size=SIZE):
    with open(path, "r+b") as disk:
        disk.seek(at + 446)
        disk.write(struct.pack("<4xB3xII", 0x83, MIB // 512, (size - MIB) // 512))
        disk.seek(at + 510)
        disk.write(b"\x55\xaa")
    return at + MIB


def logical(box, path):
    """A logical partition at 3 MiB in an extended one at 2 MiB."""
    with open(path, "r+b") as disk:
        disk.seek(446)
        disk.write(struct.pack("<4xB3xII", 0x05, 2 * MIB // 512, (SIZE - 2 * MIB) // 512))
        disk.seek(510)
        disk.write(b"\x55\xaa")
        disk.seek(2 * MIB + 446)
        disk.write(struct.pack("<4xB3xII", 0x83, MIB // 512, (SIZE - 3 * MIB) // 512))
        disk.seek(2 * MIB + 510)
        disk.write(b"\x55\xaa")
    return 3 * MIB


def gpt(box, path, first=4 * MIB):
    last = SIZE // 512 - 1
    kind = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le
    entry = kind + uuid.uuid4().bytes_le + struct.pack("<QQQ", first // 512, last - 64, 0)
    entries = entry.ljust(128 * 128, b"\0")

    def header(own, other, place):
        head = struct.pack(
            "<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, 0, 0, own, other, 34, last - 34,
            uuid.uuid4().bytes_le, place, 128, 128, zlib.crc32(entries),
        )  # fmt: skip
        return head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]

    with open(path, "r+b") as disk:
        disk.seek(446)
        disk.write(struct.pack("<4xB3xII", 0xEE, 1, last))
        disk.seek(510)
        disk.write(b"\x55\xaa")
        for at, content in ((1, header(1, last, 2)), (2, entries), (last - 32, entries), (last, header(last, 1, last - 32))):
            disk.seek(at * 512)
            disk.write(content)
    return first


def nested(box, path):
    """The partition of a GPT is the disk of a virtual machine, with an MBR of its own."""
    first = gpt(box, path)
    return mbr(box, path, first, SIZE - first - MIB)


def luks(box, path):
    """A header of LUKS2 and its data area. Without device-mapper the data is not encrypted, which the volume does not know."""
    need("cryptsetup")
    box.run(
        "cryptsetup", "luksFormat", "--type", "luks2", "--batch-mode", "--pbkdf", "pbkdf2",
        "--pbkdf-force-iterations", "1000", "--key-file", "/etc/hostname", path,
    )  # fmt: skip
    return 16 * MIB


LOGICAL_VOLUME = """
    logical_volumes { data {
        id = "000000-0000-0000-0000-0000-0000-000001"
        status = ["READ", "WRITE", "VISIBLE"]
        segment_count = 1
        segment1 { start_extent = 0 extent_count = %s type = "striped" stripe_count = 1 stripes = [ "pv0", 0 ] }
    } }
"""


def lvm(box, path):
    """A physical volume with a logical one from its first extent. It is described and not activated, which takes device-mapper."""
    need("pvcreate", "vgcreate", "vgcfgbackup", "vgcfgrestore")
    device = loop(box, path)
    group = f"fb{uuid.uuid4().hex[:8]}"
    config = ["--config", f'devices {{ use_devicesfile=0 filter=["a|^{device}$|","r|.*|"] }} activation {{ udev_sync=0 udev_rules=0 }}']
    try:
        box.run("pvcreate", *config, "--dataalignment", "1m", "--yes", device)
        box.run("vgcreate", *config, group, device)
        box.run("vgcfgbackup", *config, "--file", box.path("group"), group)
        text = pathlib.Path(box.path("group")).read_text()
        extents = re.search(r"pe_count = (\d+)", text)[1]
        end = text.rindex("}", 0, text.index("\n}") + 2)
        pathlib.Path(box.path("group")).write_text(text[:end] + LOGICAL_VOLUME % extents + text[end:])
        box.run("vgcfgrestore", *config, "--force", "--file", box.path("group"), group)
    finally:
        box.run("losetup", "--detach", device)
    return MIB


CONTAINERS = {
    "bare": bare, "MBR": mbr, "MBR, logical": logical, "GPT": gpt, "nested": nested, "LUKS": luks, "LVM": lvm,
}  # fmt: skip

# Edits: each changes the filesystem at an offset of a file.


def touch(box, kind, path, offset):
    mounted(box, kind, path, offset, lambda point: pathlib.Path(f"{point}/3").write_bytes(b"edited"))


def only_mount(box, kind, path, offset):
    # Btrfs writes nothing before something is changed.
    mounted(box, kind, path, offset, (lambda point: os.mkdir(f"{point}/new")) if kind == "btrfs" else (lambda point: None))


def fsck(box, kind, path, offset):
    device = loop(box, path, offset, end(path, offset))
    tool = {
        "ext4": ["e2fsck", "-f", "-y", "-D"],
        "xfs": ["xfs_repair"],
        "btrfs": ["btrfs", "check", "--repair", "--force"],
    }[kind]
    box.run(*tool, device, expect=None)
    box.run("losetup", "--detach", device)


def restore(box, kind, path, offset):
    """An older or newer content of the same filesystem, written over all of it."""
    shutil.copyfile(path + ".backup", path + ".restored")
    with open(path + ".restored", "rb") as backup, open(path, "r+b") as disk:
        shutil.copyfileobj(backup, disk, MIB)


def one_sector(box, kind, path, offset):
    """A cached sector in the middle of the files' data."""
    with open(path, "r+b") as disk:
        content = disk.read()
        at = content.find(b"old 11\n", offset)
        disk.seek(at // 512 * 512 + 512)
        disk.write(b"\x55" * 512)


EDITS = {
    "a file written": touch, "only mounted": only_mount, "checked by fsck": fsck,
    "restored": restore, "one sector": one_sector,
}  # fmt: skip


def end(path, offset):
    """The size of the filesystem: some containers have a tail of their own."""
    return SIZE - offset - 2 * MIB


def mounted(box, kind, path, offset, edit):
    device = loop(box, path, offset, end(path, offset))
    try:
        point = mount(box, kind, device)
        try:
            edit(point)
        finally:
            box.run("umount", point)
    finally:
        box.run("losetup", "--detach", device)


def filled(box, container, kind):
    """An image of a disk with a used filesystem, and beside it a backup with other content."""
    path = box.file("image", SIZE)
    offset = CONTAINERS[container](box, path)
    device = loop(box, path, offset, end(path, offset))
    box.run(f"mkfs.{kind}", "-q", device)
    box.run("losetup", "--detach", device)

    def write(word):
        def files(point):
            for number in range(24):
                pathlib.Path(f"{point}/{number}").write_bytes(f"{word} {number}\n".encode() * 4000)

        return files

    mounted(box, kind, path, offset, write("new"))
    subprocess.run(["cp", "--sparse=always", path, box.path("origin.backup")], check=True)
    mounted(box, kind, path, offset, write("old"))
    return path, offset


# How the volume ended, and which evidence is tried then.
ENDINGS = {"stopped": ("times", "content"), "dirty": ("times",), "killed": ("times",)}


def used(box, container, kind, ending):
    """A volume through which the image was written and flushed: all of it is cached, and clean but for some blocks behind the filesystem."""
    image, offset = filled(box, container, kind)
    daemon = box.daemon()
    cache, origin = box.file("cache", 512 * MIB), box.file("origin", SIZE)
    uri = daemon.create("v", cache, origin)
    daemon.cli("set", "v", "sequential_cutoff=0")
    box.run("nbdcopy", "--flush", image, uri)
    daemon.cli("flush", "v")
    if ending == "dirty":
        daemon.cli("set", "v", "writeback_running=off")
        client = connect(uri)
        client.pwrite(random_bytes(1, MIB // 2), SIZE - 3 * MIB // 2)
        client.flush()
        client.shutdown()
    leave(daemon, ending)
    if daemon.is_alive():
        code, _ = daemon.terminate()
        check_equal(code, 0, "the exit code")
    for name in ("cache", "origin", "d-state"):
        subprocess.run(["cp", "-a", "--sparse=always", box.path(name), box.path(f"{name}.kept")], check=True)
    return daemon, cache, origin, offset


def leave(daemon, ending):
    if ending == "killed":
        daemon.kill()
    else:
        daemon.cli("stop", "v")


def begin_again(box, daemon, ending):
    """Everything as it was after the end."""
    for name in ("cache", "origin"):
        kept = box.path(f"{name}.kept")
        subprocess.run(["cp", "--sparse=always", kept, box.path(name)], check=True)
        os.utime(box.path(name), ns=(os.stat(kept).st_atime_ns, os.stat(kept).st_mtime_ns))
    shutil.rmtree(box.path("d-state"))
    shutil.copytree(box.path("d-state.kept"), box.path("d-state"))
    daemon.start()
    # The copies are changes of the files too; the volume takes the files as they are now.
    if ending != "killed":
        daemon.cli("start", "v")
    found = daemon.show("v")["origin"]["check"]
    check(found["found"] != "changed", f"the files as they were count as changed: {found}")
    leave(daemon, ending)


def started(daemon, ending):
    """Serves the volume again, unless that is refused; returns whether it is, and the seconds that it took."""
    begun = time.monotonic()
    if ending == "killed":
        daemon.start()
        refused = daemon.show("v")["state"] == "failed"
    else:
        code = daemon.cli("start", "v", expect=None).returncode
        check(code in (0, 4), f"start ended with {code}")
        refused = code == 4
    return refused, time.monotonic() - begun


def differs(box, one, other):
    """Without the end, where some volumes have dirty blocks."""
    return box.run("cmp", "-s", "-n", str(SIZE - 2 * MIB), one, other, expect=None).returncode != 0


def row(cells):
    table = os.environ.get("FOREBAY_ELSEWHERE_TABLE")
    if table:
        with open(table, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(cells) + "\n")


def edited(box, container, kind, ending):
    need("losetup", "mount", "nbdcopy", "cmp")
    if not shutil.which(f"mkfs.{kind}"):
        skip(f"there is no mkfs.{kind}")
    box.at_end(detach_all, box)
    daemon, cache, origin, offset = used(box, container, kind, ending)
    wrong = []
    for edit, change in EDITS.items():
        for evidence in ENDINGS[ending]:
            begin_again(box, daemon, ending)
            before = os.stat(origin)
            change(box, kind, origin, offset)
            if evidence == "content":
                os.utime(origin, ns=(before.st_atime_ns, before.st_mtime_ns))
            written = differs(box, origin, box.path("origin.kept"))
            # It is refused if there are dirty blocks over an origin that was written to.
            refused, took = started(daemon, ending)
            found = {"evidence": "refused"} if refused else daemon.show("v")["origin"]["check"]
            noticed, right = refused or found["found"] == "changed", refused
            if not refused:
                box.run("nbdcopy", daemon.uri("v"), box.path("served"))
                right = not differs(box, box.path("served"), origin)
            served = "nothing" if refused else "as it is" if right else "OLD BLOCKS"
            row([container, kind, ending, edit, evidence, written, noticed, served, found["evidence"], round(took, 3)])
            if written and edit in MUST[ending, evidence] and not (noticed and right):
                wrong.append(f"{edit}, {evidence}: {found}, right: {right}")
            if not refused:
                daemon.cli("stop", "v")
            daemon.terminate()
    check(not wrong, "; ".join(wrong))


# Edits that are noticed in any container and filesystem.
MUST = {
    ("stopped", "times"): EDITS,
    ("stopped", "content"): ("a file written", "only mounted", "restored"),
    ("dirty", "times"): EDITS,
    # All that is cached here was cached recently.
    ("killed", "times"): EDITS,
}  # fmt: skip


def register():
    for container in CONTAINERS:
        for kind in FILESYSTEMS:
            for ending in ENDINGS:
                def case(box, container=container, kind=kind, ending=ending):
                    edited(box, container, kind, ending)

                case.__name__ = "".join(c if c.isalnum() else "_" for c in f"{container}_{kind}_{ending}".lower())
                if re.search(os.environ.get("FOREBAY_ELSEWHERE_ONLY", ""), case.__name__):
                    test(case)


register()
main()
