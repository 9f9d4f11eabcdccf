"""One file below several loop devices: what is mounted or used for swap from one of them is not taken by another."""

import os
import pathlib

from harness import *
from harness.devices import mount

REFUSED = "has the same file and is in use"


def attach(box, file, *options):
    """A loop device over a file; detached at the end."""
    need("losetup")
    if os.geteuid() != 0:
        skip("loop devices take root")
    done = box.run("losetup", "--show", *options, "-f", file, expect=None)
    if done.returncode:
        skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    box.at_end(box.run, "losetup", "-d", device)
    return device


def check_refused(daemon, cache, origin, other):
    """Force does not help."""
    done = daemon.create_run("v", cache, origin, "--force", expect=3)
    check(f"{other} {REFUSED}" in done.stderr, done.stderr)


@test
def a_file_that_is_mounted_through_another_loop_device_is_refused(box):
    need("mkfs.ext4", "mount")
    daemon, file, spare = box.daemon(), box.file("disk", 64 * MIB), box.file("spare", 64 * MIB)
    one, two = attach(box, file), attach(box, file)
    box.run("mkfs.ext4", "-q", one)
    point = mount(box, "ext4", one)
    box.at_end(box.run, "umount", point)
    pathlib.Path(point, "file").write_bytes(random_bytes(1, MIB))
    os.symlink(file, box.path("link"))
    os.link(file, box.path("hard"))
    for name in (file, box.path("link"), box.path("hard"), two):
        check_refused(daemon, spare, name, one)
        check_refused(daemon, name, spare, one)
    check_equal(pathlib.Path(point, "file").read_bytes(), random_bytes(1, MIB), "the content")
    box.run("umount", point)
    box.run("fsck.ext4", "-fn", one)
    daemon.create("v", spare, two)
    daemon.cli("delete", "v")
    # And while it is stopped.
    daemon.create("v", spare, file)
    daemon.cli("stop", "v")
    box.run("mount", one, point)
    done = daemon.cli("start", "v", expect=3)
    check(f"{one} {REFUSED}" in done.stderr, done.stderr)
    box.run("umount", point)
    daemon.cli("start", "v")
    box.run("mount", one, point)


@test
def swap_and_partitions_count_and_other_parts_of_the_file_do_not(box):
    need("mkswap", "swapon", "sfdisk", "partx")
    daemon, spare = box.daemon(), box.file("spare", 64 * MIB)
    file = box.file("swap", 64 * MIB)
    one = attach(box, file)
    box.run("mkswap", one)
    if box.run("swapon", one, expect=None).returncode:
        skip("swap cannot be used here")
    box.at_end(box.run, "swapoff", one)
    check_refused(daemon, spare, file, one)
    check_refused(daemon, file, spare, one)
    box.run("swapoff", one)

    parts = box.file("parts", 96 * MIB)
    box.run("sh", "-c", f"printf 'label: gpt\nstart=2048,size=65536\nstart=69632\n' | sfdisk -q {parts}")
    whole = attach(box, parts)
    box.run("partx", "-a", whole, expect=None)
    # They outlive the loop device, and would be those of the next file that gets its number.
    box.at_end(box.run, "partx", "-d", whole)
    first = f"{whole}p1"
    if not os.path.exists(first):
        skip("no partitions of loop devices here")
    box.run("mkfs.ext4", "-q", first)
    point = mount(box, "ext4", first, "part")
    box.at_end(box.run, "umount", point)
    check_refused(daemon, spare, parts, first)
    inside = attach(box, parts, "--offset", str(2048 * 512), "--sizelimit", str(65536 * 512))
    check_refused(daemon, spare, inside, first)
    # The second partition by itself is free.
    behind = attach(box, parts, "--offset", str(69632 * 512))
    daemon.create("v", spare, behind)
    daemon.cli("delete", "v")


main()
