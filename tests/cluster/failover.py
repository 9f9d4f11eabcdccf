"""Two nodes with an image between them, as docs/nodes.md says: its configuration, and the commands of its unit."""

import os
import pathlib
import re
import shlex
import time

from harness import *
from harness.ceph import *
from harness.devices import mount
from harness.files import Files, newest_file

need_cluster()
ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE, UNIT = ROOT / "docs/nodes.md", ROOT / "dist/forebay-volume@.service"


def block(kind):
    """The blocks of code of this kind in the guide."""
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def commands(unit):
    """The commands of a unit, by the key; an empty one takes back those before it."""
    found = {}
    for key, command in re.findall(r"^(Exec\w+)=(.*)$", unit, re.MULTILINE):
        found[key] = [*found.get(key, ()), command] if command else []
    return found


class Managed(Host):
    """A host on which a service manager has the unit for the volume `data`: as it is, or with the drop-in for an SSD that
    all nodes reach."""

    def __init__(self, box, name, image, shares_ssd=False):
        super().__init__(box, name)
        self.image, self.device = image, None
        self.names = {"/dev/disk/by-partlabel/forebay": self.ssd, "rbd:rbd/data?id=forebay": image.origin, "%i": "data"}
        [text], [drop_in] = (block(kind) for kind in ("toml", "ini"))
        self.file = pathlib.Path(box.path(f"{name}.toml"))
        self.file.write_text(self.here(text))
        self.names["/etc/forebay/volumes/data.toml"] = self.file
        self.commands = commands(UNIT.read_text())
        if shares_ssd:
            self.commands |= commands(drop_in)
        self.new_ssd()
        self.boot()
        box.at_end(self.detach)

    def here(self, text):
        """A text of the guide with the names of this host."""
        for place, own in self.names.items():
            text = text.replace(place, str(own))
        return text

    def unit(self, *keys):
        """Runs the commands of the unit as systemd does: in turn, until one fails. Gives the last one's result."""
        for command in [command for key in keys for command in self.commands.get(key, ())]:
            program, *words = shlex.split(self.here(command))
            check(program in ("/usr/bin/forebay", "-/usr/bin/forebay"), f"the program: {command}")
            done = self.daemon.cli(*words, expect=None)
            if done.returncode != 0 and not program.startswith("-"):
                break
        return done

    def try_start(self):
        return self.unit("ExecStartPre", "ExecStart")

    def start(self):
        """Starts the unit, and mounts the volume. Gives the directory."""
        done = self.try_start()
        check_equal(done.returncode, 0, f"ExecStart on {self.name}: {done.stderr.strip()}")
        self.device = self.daemon.show("data")["export"]["device"]
        if not self.box.run("blkid", "-p", self.device, expect=None).stdout:
            self.box.run("mkfs.ext4", "-q", self.device)
        return mount(self.box, "ext4", self.device, f"mnt-{self.name}")

    def stop(self):
        self.box.run("umount", self.box.path(f"mnt-{self.name}"))
        done = self.unit("ExecStop")
        check_equal(done.returncode, 0, f"ExecStop on {self.name}: {done.stderr.strip()}")

    def die(self):
        """Loses its power, under whatever runs on it."""
        self.lose()
        self.detach()

    def detach(self):
        """Removes what the kernel, which all nodes share here, has kept of the volume."""
        self.box.run("umount", "-l", self.box.path(f"mnt-{self.name}"), expect=None)
        if self.device:
            self.box.run("losetup", "-d", self.device, expect=None)
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[4].startswith(self.exports):
                self.box.run("umount", "-l", line.split()[4])


def written(point, first, number):
    """Writes files that are durable one after the other; gives the next number."""
    files = Files(point, first)
    for _ in range(number):
        files.write(files.next)
        files.next += 1
    return files.next


def timed(what, function, *arguments):
    since = time.monotonic()
    result = function(*arguments)
    print(f"     {what}: {time.monotonic() - since:.1f} s")
    return result


@test
def a_planned_switch_takes_everything_along(box):
    need("losetup", "mount", "mkfs.ext4", "blkid")
    image = Image(box, "planned", 96 * MIB)
    one, two = Managed(box, "plan-a", image), Managed(box, "plan-b", image)
    following, here, there = 1, one, two
    point = here.start()
    for _ in range(4):
        following = written(point, following, 60)
        refused = there.try_start()
        check("another client, at" in refused.stderr, f"the other node is not refused: {refused.stderr}")
        timed("stopped here", here.stop)
        point = timed("started there", there.start)
        check_equal(newest_file(point), following - 1, "the last file on the other node")
        here, there = there, here
    here.stop()


@test
def a_node_that_is_lost_is_replaced_and_comes_back(box):
    image = Image(box, "replaced", 96 * MIB)
    one, two = Managed(box, "lost-a", image), Managed(box, "lost-b", image)
    point = one.start()
    one.daemon.cli("flush", "data")
    files = Files(point, 1)
    files.start()
    time.sleep(6)
    lost_at = time.monotonic()
    one.die()
    files.join(60)
    point = timed("served by the other node after the first was lost", two.start)
    newest = newest_file(point)
    # The file that was being written may be there.
    lacking = [when for number, when in files.durable if number > newest]
    check(newest <= files.next, f"file {newest} was never written")
    age = lost_at - min(lacking, default=lost_at)
    print(f"     {newest} files are there, {len(lacking)} are not: {age:.1f} s")
    following = written(point, newest + 1, 30)
    # The first node comes back: neither while the other one has the image, nor afterwards, does it bring back anything.
    one.repair()
    one.boot()
    refused = one.try_start()
    check(refused.returncode != 0, "the node that is back has the volume")
    two.stop()
    refused = one.try_start()
    check("was written elsewhere" in refused.stderr, f"the old cache is not refused: {refused.returncode} {refused.stderr}")
    check_equal(refused.returncode, 4, "the exit code")
    one.daemon.cli("delete", "--force", "data", "--discard-dirty")
    point = one.start()
    check_equal(newest_file(point), following - 1, "the last file on the node that is back")
    one.stop()


@test
def an_ssd_that_both_nodes_reach_is_adopted_with_all_that_was_flushed(box):
    image = Image(box, "adopted", 96 * MIB)
    one, two = (Managed(box, name, image, shares_ssd=True) for name in ("dual-a", "dual-b"))
    # There is nothing to adopt the first time.
    one.daemon.cli("apply", "--config", one.file)
    point = one.start()
    following, here, there = 1, one, two
    for number in range(3):
        following = written(point, following, 40)
        # It is not on the image, and the definition on the SSD is not that of the other node.
        here.daemon.cli("set", "data", "writeback_running=off", f"idle={20 + number}s")
        following = written(point, following, 40)
        check(here.daemon.dirty("data") > 0, "nothing is dirty")
        here.die()
        os.replace(here.ssd, there.ssd)
        point = timed("adopted by the other node", there.start)
        check_equal(newest_file(point), following - 1, "the last file after the move")
        here.repair()
        here.boot()
        here, there = there, here
        here.daemon.cli("set", "data", "writeback_running=on")
    here.stop()


main()
