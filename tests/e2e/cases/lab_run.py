"""The lab's jobs on a device of the user's own: what it refuses to overwrite, and what an interrupt leaves."""

import json
import os
import pathlib
import signal
import time

from harness import *

LAB = pathlib.Path(os.environ["FOREBAY"]).with_name("forebay-lab")
SHORT = ("--seconds", 1, "--repetitions", 1)


def lab(box, *arguments, expect=0):
    need("fio")
    if not os.access(LAB, os.X_OK):
        skip(f"no {LAB.name} beside the daemon; build it with 'cargo build -p forebay-lab'")
    return box.run(LAB, "run", *arguments, expect=expect, cwd=box.dir)


def processes(word):
    """Command lines of running processes that hold the word."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and str(os.getpid()) != entry.parent.name:
            found.append(line)
    return found


@test
def a_device_with_something_on_it_is_left_alone(box):
    need("mkfs.ext4")
    image = box.file("image", 64 * MIB)
    box.run("mkfs.ext4", "-q", "-F", image)
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    daemon.terminate()
    cache = box.path("cache")
    text = box.file("text", 64 * MIB, b"the only copy of something\n")
    late = box.file("late", 64 * MIB)
    with open(late, "r+b") as file:
        file.seek(50_000_000)
        file.write(b"far behind the beginning")
    before = digest(image, cache, text, late)
    for device, word in ((image, "ext2"), (cache, "Forebay"), (text, "--destroy"), (late, "--destroy")):
        done = lab(box, "--jobs", "mail", "--device", device, *SHORT, expect=4)
        check_equal(len(done.stderr.strip().splitlines()), 1, f"lines on stderr: {done.stderr!r}")
        check(word.lower() in done.stderr.lower(), f"'{word}' is not in: {done.stderr}")
    check_equal(digest(image, cache, text, late), before, "the devices")
    done = lab(box, "--jobs", "mail", "--device", image, "--destroy", "--json", *SHORT)
    rows = json.loads(done.stdout)["rows"]
    check(any(row["direction"] == "write" for row in rows), f"no row of writes: {rows}")
    check(digest(image) != before, "the image was written")


@test
def a_mounted_device_is_refused_whatever_is_said(box):
    image = box.file("image", 64 * MIB)
    box.run("mkfs.ext4", "-q", "-F", image)
    made = box.run("losetup", "--find", "--show", image, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    loop = made.stdout.strip()
    box.at_end(box.run, "losetup", "--detach", loop)
    mount = box.path("mnt")
    os.mkdir(mount)
    if box.run("mount", loop, mount, expect=None).returncode != 0:
        skip("ext4 cannot be mounted here")
    box.at_end(box.run, "umount", mount)
    done = lab(box, "--jobs", "mail", "--device", loop, "--destroy", *SHORT, expect=3)
    check(mount in done.stderr, f"the mount is not named: {done.stderr}")


@test
def an_interrupt_leaves_nothing_behind(box):
    lab(box, "--help")
    device = box.file("device", 64 * MIB)
    temporary = box.path("tmp")
    os.mkdir(temporary)
    running = box.spawn(
        LAB, "run", "--jobs", "mail", "--device", device, "--seconds", 600,
        cwd=box.dir, env=dict(os.environ, TMPDIR=temporary),
    )  # fmt: skip
    until = time.monotonic() + 60
    while not processes(temporary) and time.monotonic() < until:
        time.sleep(0.1)
    check(processes(temporary), "fio runs")
    running.send_signal(signal.SIGINT)
    running.wait(60)
    check(running.returncode != 0, "an interrupted run does not end with 0")
    check_equal(processes(temporary), [], "processes that are left")
    check_equal(os.listdir(temporary), [], "files that are left")


main()
