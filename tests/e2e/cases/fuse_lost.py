"""Block devices of export=fuse that another program has ended: numbers of loop devices are given out again."""

import os
import pathlib
import signal
import subprocess

from harness import *
from harness.devices import backing, exported, let_go


def stranger(box, device, name="stranger"):
    """Attaches another file to this very loop device; whether that was possible before another process got it."""
    file = box.file(name, 8 * MIB, b"\x5a" * MIB)
    done = box.run("losetup", device, file, expect=None)
    box.at_end(lambda: backing(device) == file and box.run("losetup", "-d", device))
    return file if done.returncode == 0 else skip(f"{device} is another test's by now")


def link_of(name):
    """Where the link of a volume leads; nothing if there is none."""
    link = pathlib.Path("/dev/forebay", name)
    return os.path.realpath(link) if link.is_symlink() else ""


@test
def a_device_that_was_detached_is_replaced_and_a_strangers_is_left_alone(box):
    name = f"lost{os.getpid()}"
    daemon, device = exported(box, name, size=16 * MIB)
    check_equal(link_of(name), device, "where the link leads")
    with open(device, "r+b", buffering=0) as disk:
        disk.write(b"\x11" * 4096)
    # Held up so that it cannot notice before the number is a stranger's.
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        box.run("losetup", "-d", device)
        file = stranger(box, device)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    wait_for(lambda: link_of(name) not in ("", device), "the link leads to a new device", patience=10)
    new = daemon.show(name)["export"]["device"]
    check_equal(link_of(name), new, "where the link leads")
    check("export-lost" in daemon.cli("events", "--json").stdout, "there is no event")
    with open(new, "rb", buffering=0) as disk:
        check_equal(disk.read(4096), b"\x11" * 4096, "what was written before")
    check_equal(backing(device), file, "the stranger's file")
    daemon.cli("stop", name)
    check_equal((backing(device), link_of(name)), (file, ""), "the stranger's file and the link after the stop")
    check(let_go(box, new), "the new device is still there")


@test
def a_command_that_comes_before_the_loss_is_noticed_leaves_the_stranger_alone(box):
    daemon = box.daemon()
    for command in (("stop",), ("stop", "--force"), ("delete",)):
        name = f"lost{os.getpid()}{'-'.join(command)}".replace("--", "")
        _, device = exported(box, name, size=16 * MIB, daemon=daemon)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            box.run("losetup", "-d", device)
            file = stranger(box, device, f"stranger-{name}")
            # In use: that says nothing about the volume's device.
            holder = open(device, "rb")
            running = box.spawn(
                daemon.binary, "--socket", daemon.socket, *command, name, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        _, said = running.communicate(timeout=60)
        check_equal(running.returncode, 0, f"{command}: {said}")
        check_equal((backing(device), link_of(name)), (file, ""), f"{command}: the stranger's file, and the link")
        holder.close()


@test
def a_killed_daemon_leaves_a_number_that_is_a_strangers_by_now(box):
    name = f"lost{os.getpid()}k"
    daemon, device = exported(box, name, size=16 * MIB)
    daemon.kill()
    box.run("losetup", "-d", device)
    file = stranger(box, device)
    daemon.start()
    check_equal(backing(device), file, "the stranger's file")
    check(link_of(name) not in ("", device), f"the link leads to {link_of(name)}")
    check_equal(link_of(name), daemon.show(name)["export"]["device"], "where the link leads")
    daemon.cli("stop", name)


@test
def a_hand_over_goes_on_with_a_new_device_if_the_number_is_a_strangers(box):
    name = f"lost{os.getpid()}h"
    daemon, device = exported(box, name, size=16 * MIB)
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        box.run("losetup", "-d", device)
        file = stranger(box, device)
        taken = box.spawn(daemon.binary, "--socket", daemon.socket, "daemon", "--take-over", stderr=subprocess.PIPE, text=True)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    _, said = taken.communicate(timeout=60)
    wait_for(lambda: link_of(name) not in ("", device), f"the link leads to a new device ({said})", patience=20)
    check_equal(backing(device), file, "the stranger's file")
    daemon.cli("stop", name)


@test
def a_file_of_the_same_path_in_another_mount_namespace_is_no_volume(box):
    need("unshare")
    name = f"lost{os.getpid()}n"
    daemon, device = exported(box, name, size=16 * MIB)
    path = os.path.join(box.path("export"), name)
    daemon.kill()
    box.run("losetup", "-d", device)
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[4] == path:
            box.run("umount", "-l", path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The kernel tells the path as the file's mount namespace has it.
    script = 'mount -t tmpfs none "$1"; truncate -s 8M "$2"; losetup -f --show "$2"; exec sleep 600'
    process = box.spawn(
        "unshare", "-m", "bash", "-c", script, "bash", os.path.dirname(path), path, stdout=subprocess.PIPE, text=True
    )
    foreign = process.stdout.readline().strip()
    box.at_end(box.run, "losetup", "-d", foreign)
    check_equal(backing(foreign), path, "the path of the foreign file")
    daemon.start()
    check_equal(backing(foreign), path, "the foreign file after a start")
    check(link_of(name) not in ("", foreign), f"the link leads to {link_of(name)}")
    daemon.cli("stop", name)


main()
