"""Volumes as block devices of this machine."""

import os
import pathlib
import tempfile

from .cases import check, check_equal, need, skip
from .sandbox import MIB


def exported(box, name="v", *arguments, daemon=None, size=512 * MIB):
    """A volume with a block device; gives the daemon and the device."""
    need("losetup", "mount")
    if os.geteuid() != 0:
        skip("block devices take root")
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(path):
            skip(f"there is no {path}")
    daemon = daemon or box.daemon()
    cache, origin = box.file(f"cache-{name}", 256 * MIB), box.file(f"origin-{name}", size)
    box.at_end(clean_up, box, daemon)
    made = daemon.create_run(name, cache, origin, "--export", "nbd,fuse", *arguments, expect=None)
    if "CAP_SYS_ADMIN" in made.stderr or "modprobe" in made.stderr:
        skip(made.stderr.strip())
    check_equal(made.returncode, 0, f"create: {made.stderr.strip()}")
    device = made.stdout.strip()
    check(device.startswith("/dev/loop"), f"create printed {device}")
    return daemon, device


def clean_up(box, daemon):
    """Unmounts and detaches whatever a test that failed has left."""
    if daemon.process.poll() is None:
        daemon.terminate()
    # Without these the kernel ends the connections of the files.
    daemon.let_go()
    # The kernel forgets the path of a file that is not mounted any more.
    for device in attached_by(box):
        box.run("losetup", "-d", f"/dev/{device}", expect=None)
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if point.startswith(str(box.dir)):
            box.run("umount", "-l", point, expect=None)


def backing(device):
    """The file below a loop device, or nothing."""
    path = pathlib.Path(f"/sys/block/{os.path.basename(device)}/loop/backing_file")
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def attached():
    """The loop devices of this machine that have a file."""
    return {path.parts[3] for path in pathlib.Path("/sys/block").glob("loop*/loop/backing_file")}


def attached_by(box):
    """Those with a file of this test."""
    return [device for device in attached() if backing(device).startswith(f"{box.dir}/")]


def let_go(box, device):
    """
    Whether no file of this test is below a loop device. Another test may get the device
    as soon as it is free. A path outside the directories of tests still counts as ours:
    the kernel forgets the path of a file that is not mounted any more.
    """
    file = backing(device)
    return not file or file.startswith(f"{tempfile.gettempdir()}/fb-") and not file.startswith(f"{box.dir}/")


def mount(box, kind, device, name="mnt"):
    point = box.path(name)
    os.makedirs(point, exist_ok=True)
    done = box.run("mount", "-t", kind, device, point, expect=None)
    if "unknown filesystem" in done.stderr or "permission denied" in done.stderr:
        skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
    check_equal(done.returncode, 0, f"mount: {done.stderr.strip()}")
    return point
