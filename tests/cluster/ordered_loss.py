"""File systems and PostgreSQL on images behind ordered volumes: node and SSD are lost again and again, and the image alone
is whole each time, a little old.

A loss is looked at in two ways. The daemon is stopped for a moment: what the image holds then is all that a loss at this
moment would have left. At the end of each round the daemon is killed, its SSD is gone, and a volume with another SSD
goes on with the image.
"""

import os
import pathlib
import signal
import time

from harness import *
from harness.ceph import *
from harness.devices import clean_up, mount
from harness.files import Files, newest_file
from harness.postgresql import TABLE, Inserter, Server

need_cluster()
# Writeback has something to do all the time.
EAGER = ("--set", "dirty_low=0", "--set", "dirty_high=1", "--set", "idle=20ms", "--set", "dirty_age=200ms")
ROUNDS = int(os.environ.get("FOREBAY_LOSS_ROUNDS", "2"))
# Looks at the image in each round, beside the loss at its end.
LOOKS = int(os.environ.get("FOREBAY_LOSS_LOOKS", "4"))


class Loss:
    """An ordered volume on an image, with a file system, whose node and SSD are lost now and then."""

    def __init__(self, box, kind, size):
        need("losetup", "mount", f"mkfs.{kind}", "xfs_repair" if kind == "xfs" else "e2fsck")
        self.box, self.kind = box, kind
        self.image = Image(box, f"loss-{kind}-{size // MIB}", size)
        self.number, self.points, self.ages = 0, 0, []

    def begin(self, *arguments):
        """A node with an empty SSD has the image."""
        box, self.number = self.box, self.number + 1
        self.daemon = box.daemon("--lanes", "2", name=f"n{self.number}")
        self.ssd = box.file(f"ssd{self.number}", 192 * MIB)
        box.at_end(clean_up, box, self.daemon)
        made = self.daemon.create_run("v", self.ssd, self.image.origin, "--export", "fuse", *EAGER, *arguments, expect=None)
        if "CAP_SYS_ADMIN" in made.stderr or "modprobe" in made.stderr:
            skip(made.stderr.strip())
        check_equal(made.returncode, 0, f"create: {made.stderr.strip()}")
        self.device = made.stdout.strip()
        if self.number == 1:
            self.box.run(f"mkfs.{self.kind}", "-q", self.device)
            # Until then there is no file system that could be whole.
            self.daemon.cli("flush", "v")
        return mount(box, self.kind, self.device, "mnt")

    def look(self, judge):
        """Has the image judged as it is in the middle of everything, while the node does nothing."""
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            at = time.monotonic()
            # Requests that are under way arrive.
            time.sleep(0.2)
            copy = self.export()
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.judge(copy, at, judge)

    def lose(self, judge):
        """Node and SSD are gone for good, and the cluster is told so."""
        at, watchers = time.monotonic(), self.image.watchers()
        self.daemon.kill()
        os.remove(self.ssd)
        fence(self.box, watchers)
        copy = self.export()
        clean_up(self.box, self.daemon)
        self.judge(copy, at, judge)

    def export(self):
        copy = self.box.path("copy")
        pathlib.Path(copy).unlink(missing_ok=True)
        rbd(self.box, "export", "--no-progress", self.image.name, copy)
        return copy

    def judge(self, copy, at, judge):
        """Mounts the copy, which replays its journal, has its content judged, and checks the file system."""
        box, point = self.box, self.box.path("copy-mnt")
        os.makedirs(point, exist_ok=True)
        loop = box.run("losetup", "--find", "--show", copy).stdout.strip()
        try:
            # The one on the volume has the same UUID.
            box.run("mount", "-t", self.kind, *(["-o", "nouuid"] if self.kind == "xfs" else []), loop, point)
            try:
                self.ages.append(at - min([at, *judge(point, at)]))
            finally:
                box.run("umount", point)
            box.run(*(["xfs_repair", "-n"] if self.kind == "xfs" else ["e2fsck", "-f", "-n"]), loop)
        finally:
            box.run("losetup", "-d", loop)
        self.points += 1

    def report(self, what):
        ages = sorted(self.ages)
        print(f"     {what}: {self.points} losses, all whole; age: median {ages[len(ages) // 2]:.1f} s, most {ages[-1]:.1f} s")
        check(ages[-1] > 0, "nothing was missing on the image: the test proves nothing")


def files_survive(box, kind, size):
    loss, oldest = Loss(box, kind, size), 0
    for _ in range(ROUNDS):
        point = loss.begin("--ordered")
        newest = newest_file(point)
        check(newest >= oldest, f"file {oldest} was on the image already, the last is {newest} now")
        files = Files(point, newest + 1)
        files.start()

        def missing(point, at, files=files):
            """When those files were durable that the image lacks."""
            nonlocal oldest
            newest = newest_file(point)
            check(oldest <= newest <= files.next, f"the last file is {newest}, after {oldest} and before {files.next}")
            oldest = newest
            return [when for number, when in files.durable if number > newest and when < at]

        for number in range(LOOKS):
            time.sleep(0.5 + number % 4 * 0.4)
            check(files.is_alive(), "the writer of files has failed")
            loss.look(missing)
        loss.lose(missing)
        files.join(60)
    loss.report(f"{kind}, {oldest} files")


@test
def ext4_on_the_image_alone_is_whole(box):
    files_survive(box, "ext4", 96 * MIB)


@test
def xfs_on_the_image_alone_is_whole(box):
    files_survive(box, "xfs", 320 * MIB)


@test
def without_order_it_is_not(box):
    loss, broken = Loss(box, "ext4", 97 * MIB), 0
    point = loss.begin("--set", "writeback_rate_max=1M", "--set", "writeback_rate_min=0")
    files = Files(point, 1)
    files.start()
    for _ in range(12):
        time.sleep(1)
        try:
            loss.look(lambda point, _: [newest_file(point)] and [])
        except (Failure, OSError):
            broken += 1
    print(f"     {broken} of 12 states without an order are broken")
    check(broken > 0, "all were whole: the other tests prove nothing")


@test
def postgresql_on_the_image_alone_starts_with_the_first_of_its_commits(box):
    loss, commits, inserters = Loss(box, "ext4", 512 * MIB), 0, []
    for round in range(ROUNDS):
        server = Server(box, loss.begin("--ordered"))
        if round == 0:
            server.initialise()
        server.start()
        if round == 0:
            server.ask(TABLE)
            loss.daemon.cli("flush", "v")
        running = [Inserter(server, 10 * round + number) for number in range(4)]
        inserters += running
        for inserter in running:
            inserter.start()

        def missing(point, at, running=running):
            """When those commits were acknowledged that the image lacks."""
            nonlocal commits
            # It holds the number of a process that still runs on this machine.
            pathlib.Path(f"{point}/data/postmaster.pid").unlink(missing_ok=True)
            copy = Server(box, point, "copy-pg")
            copy.start()
            try:
                last = copy.check_rows(inserters)
            finally:
                copy.stop()
            check_equal(
                [last[one] for one in inserters if one not in running],
                [one.kept for one in inserters if one not in running], "rows of earlier rounds",
            )  # fmt: skip
            commits = sum(last.values())
            for inserter in running:
                inserter.kept = last[inserter]
                check(last[inserter] <= inserter.sent, f"client {inserter.number} has rows that it did not insert")
            asked = max((one.sent_at[last[one] - 1] for one in running if last[one]), default=0)
            lacking = [when for one in running for when in one.acknowledged_at[last[one] :]]
            # One commit is there that a client asked for after it had heard of another: that one is there too.
            check(all(when >= asked for when in lacking), "a commit is there, and one before it is not")
            return [when for when in lacking if when < at]

        for number in range(LOOKS):
            time.sleep(1 + number % 4 * 0.5)
            check(all(inserter.is_alive() for inserter in running), f"a client has failed: {server.log()[-300:]}")
            loss.look(missing)
        loss.lose(missing)
        server.stop(signal.SIGQUIT)
        for inserter in running:
            inserter.session.kill()
            inserter.join()
    loss.report(f"PostgreSQL, {commits} commits")


main()
