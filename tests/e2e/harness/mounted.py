"""A volume as a filesystem: nbdfuse, a loop device, ext4."""

import os
import subprocess
import time

from .cases import check_equal, skip


class Mounted:
    """A volume as a block device of the kernel, without a kernel module for NBD."""

    def __init__(self, box, uri):
        self.box, self.uri = box, uri
        self.fuse, self.mount = box.path("fuse"), box.path("mnt")
        self.loop = None
        os.makedirs(self.fuse, exist_ok=True)
        os.makedirs(self.mount, exist_ok=True)

    def attach(self):
        box = self.box
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = box.spawn("nbdfuse", f"{self.fuse}/disk", self.uri, **quiet)
        box.at_end(self.detach)
        end = time.monotonic() + 10
        while not os.path.exists(f"{self.fuse}/disk"):
            if self.process.poll() is not None or time.monotonic() > end:
                skip("nbdfuse does not work here (no /dev/fuse?)")
            time.sleep(0.05)
        made = box.run(
            "losetup", "--find", "--show", "--direct-io=on", f"{self.fuse}/disk", expect=None
        )
        if made.returncode != 0:
            skip(f"no loop device: {made.stderr.strip()}")
        self.loop = made.stdout.strip()

    def mount_it(self):
        done = self.box.run("mount", "-t", "ext4", self.loop, self.mount, expect=None)
        if "unknown filesystem" in done.stderr or "permission denied" in done.stderr:
            skip(f"ext4 cannot be mounted here: {done.stderr.strip()}")
        check_equal(done.returncode, 0, f"mount: {done.stderr.strip()}")

    def detach(self):
        """Undoes whatever was done; safe to call again."""
        run = self.box.run
        run("umount", "-l", self.mount, expect=None)
        if self.loop:
            run("losetup", "--detach", self.loop, expect=None)
            self.loop = None
        run("fusermount3", "-u", "-z", self.fuse, expect=None)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
