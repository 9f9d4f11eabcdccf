"""docs/first-hour.md, command by command. tests/vm/first-hour runs it in a Debian with systemd, and resets that."""

import os
import pathlib
import platform
import re

from harness import *
from harness.devices import clean_up
from harness.page import commands

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE, UNIT = ROOT / "docs" / "first-hour.md", ROOT / "dist" / "forebay.service"
TOOLS = ["unshare", "nsenter", "ip", "losetup", "mount", "mkfs.ext4", "e2fsck", "findmnt", "curl"]
# Directories of the host that the test has for itself, and the one that it has a copy of.
EMPTY = ["/run/forebay", "/var/lib/forebay", "/dev/forebay", "/dev/disk", "/var/tmp"]
COPY = "/etc"


class Host:
    """A disk that is mounted, an SSD, and what stands in for systemd, in namespaces for mounts and networks."""

    def __init__(self, box):
        self.box = box
        apart = ["unshare", "--mount", "--net", "--propagation", "private"]
        tried = box.run(*apart, "true", expect=None)
        if tried.returncode != 0:
            skip(f"no namespaces: {tried.stderr.strip()}")
        holder = box.spawn(*apart, "sleep", "infinity")
        wait_for(lambda: pathlib.Path(f"/proc/{holder.pid}/comm").read_text().strip() == "sleep", "the namespaces")
        self.within = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", f"--net=/proc/{holder.pid}/ns/net"]
        os.mkdir(box.path("bin"))
        os.symlink(os.environ["FOREBAY"], box.path("bin/forebay"))
        self.run("ip link set lo up")
        for path in EMPTY:
            self.run(f"mkdir -p {path} && mount -t tmpfs -o mode=0700 none {path}")
        self.run(f"cp -a {COPY} {box.path('copy')} && mount --bind {box.path('copy')} {COPY}")
        self.devices()
        # It keeps the daemon's descriptors, as systemd does.
        self.daemon = Daemon(box, keeps=16, within=self.within)
        self.daemon.socket, self.daemon.state = "/run/forebay/admin.sock", "/var/lib/forebay"
        self.daemon.options = ["--export-dir", box.path("export")]
        box.at_end(clean_up, box, self.daemon)
        self.systemd = {
            "systemctl enable --now forebay": self.start,
            "systemctl disable --now forebay": self.stop,
            "systemctl daemon-reload": lambda: None,
            "systemctl restart forebay": self.restart,
            "echo b >/proc/sysrq-trigger": self.pull_the_plug,
        }

    def devices(self):
        """The disk with its files, and the SSD."""
        os.makedirs(self.box.path("tree/photos"))
        for number in range(8):
            content = random_bytes(number, 3 * MIB + number)
            pathlib.Path(self.box.path(f"tree/photos/{number}.jpeg")).write_bytes(content)
        disk = self.box.file("disk", 256 * MIB)
        self.box.run("mkfs.ext4", "-q", "-F", "-L", "photos", "-d", self.box.path("tree"), disk)
        self.run("mkdir /dev/disk/by-id")
        for name, file in (("DISK", disk), ("SSD", self.box.file("ssd", 128 * MIB))):
            made = self.box.run("losetup", "--find", "--show", file, expect=None)
            if made.returncode != 0:
                skip(f"no loop device: {made.stderr.strip()}")
            device = made.stdout.strip()
            self.box.at_end(self.box.run, "losetup", "-d", device)
            self.run(f"ln -s {device} /dev/disk/by-id/{name}")
        self.run("echo '/dev/disk/by-id/DISK /srv ext4 defaults 0 2' >>/etc/fstab && mkdir -p /srv && mount /srv")

    def run(self, text, expect=0):
        """Runs a command of a shell; gives what it prints, errors included."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY")}
        variables["PATH"] = self.box.path("bin") + ":" + variables["PATH"]
        done = self.box.run(*self.within, "bash", "-c", f"exec 2>&1\n{text}", expect=expect, env=variables)
        return done.stdout

    def start(self):
        """Starts the daemon with the options of the unit, or of the drop-in that the page has written."""
        unit = self.run(f"cat {UNIT} $(ls /etc/systemd/system/forebay.service.d/*.conf 2>/dev/null)")
        options = re.findall(r"^ExecStart=\S+/forebay daemon (.*)$", unit, re.MULTILINE)[-1]
        self.daemon.start(*options.split())

    def stop(self):
        check_equal(self.daemon.terminate()[0], 0, "the exit code of the daemon")

    def restart(self):
        self.stop()
        self.start()

    def pull_the_plug(self):
        """Kills the daemon and what outlives it, and does what a boot does."""
        self.daemon.kill()
        self.daemon.let_go()
        self.run("umount --lazy /srv")
        self.start()
        wait_for(lambda: "data" in self.run("ls /dev/forebay"), "the volume has a device")
        self.run("mount /srv")


@test
def the_page_is_true(box):
    need(*TOOLS)
    major, minor = re.match(r"(\d+)\.(\d+)", platform.release()).groups()
    if os.geteuid() != 0:
        skip("block devices take root")
    if not os.path.exists("/dev/fuse") or (int(major), int(minor)) < (6, 9):
        skip("a device by FUSE outlives the daemon from Linux 6.9 on")
    if box.path("").startswith("/var/tmp/"):
        skip("the page keeps its checksums in /var/tmp, which the test hides")
    host = Host(box)
    for command in commands(PAGE):
        stand_in = host.systemd.get(command.text)
        check(stand_in or not command.text.startswith("systemctl"), f"nothing stands in for {command.text}")
        if stand_in:
            stand_in()
        elif difference := command.difference(host.run(command.text)):
            raise Failure(f"{PAGE.name}, {difference}")


main()
