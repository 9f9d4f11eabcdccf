"""The Ceph cluster that scripts/cluster-test has started, and nodes with networks of their own beside it."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess

from .cases import Failure, check
from .daemon import Daemon
from .faults import wait_for
from .sandbox import MIB

HELPER = pathlib.Path(__file__).resolve().parent.parent.parent / "cluster" / "ceph"
# The addresses of nodes end with these.
_next = iter(range(2, 250))


class Image:
    """An image of the cluster; it is removed with the test."""

    def __init__(self, box, name, size=32 * MIB, *arguments):
        self.box, self.name = box, name
        self.conf = os.environ["FOREBAY_CEPH_CONF"]
        # As a daemon is run: with the rights that the documentation asks for, and no others.
        self.origin = f"rbd:rbd/{name}?conf={self.conf}&id=forebay"
        self.make(size, *arguments)
        # Whoever has not given it up by then is gone.
        box.at_end(self.remove)

    def make(self, size, *arguments):
        rbd(self.box, "create", "--size", f"{size}B", *arguments, self.name)

    def remove(self):
        wait_for(lambda: not self.watchers(), "nobody uses the image any more")
        rbd(self.box, "rm", "--no-progress", self.name)

    def limit(self, seconds):
        """The origin with another time limit."""
        return f"{self.origin}&timeout={seconds}"

    def watchers(self):
        """The addresses of the clients that have it open."""
        status = json.loads(rbd(self.box, "status", "--format", "json", self.name).stdout)
        return [watcher["address"] for watcher in status["watchers"]]

    def owner(self):
        """The address of the client that has the lock; None if nobody has."""
        locks = json.loads(rbd(self.box, "lock", "ls", "--format", "json", self.name).stdout)
        return locks[0]["address"] if locks else None

    def used(self):
        """How many bytes of it the cluster stores."""
        extents = json.loads(rbd(self.box, "diff", "--format", "json", self.name).stdout)
        return sum(int(extent["length"]) for extent in extents if extent["exists"] == "true")

    def content(self):
        """All that the cluster holds."""
        done = subprocess.run(
            ["rbd", "export", "--no-progress", self.name, "-"], stdout=subprocess.PIPE, check=True, timeout=120
        )
        return done.stdout

    def digest(self):
        return hashlib.blake2b(self.content()).hexdigest()


def rbd(box, *arguments, **options):
    return box.run("rbd", *arguments, **options)


def ceph(box, *arguments):
    return box.run("ceph", *arguments)


class Store:
    """The object store of the cluster."""

    def __init__(self, box):
        self.box = box
        self.dir = pathlib.Path(os.environ["FOREBAY_CEPH_CONF"]).parent
        box.at_end(self.start)

    def pid(self):
        return int((self.dir / "osd.0.pid").read_text())

    def is_running(self):
        """Whether a thread of it is left: with the last one the locks of its files end, not with the first."""
        try:
            threads = list(pathlib.Path(f"/proc/{self.pid()}/task").glob("*/stat"))
        except (OSError, ValueError):
            return False
        for thread in threads:
            try:
                if thread.read_text().rpartition(")")[2].split()[0] not in "ZX":
                    return True
            except OSError:
                pass
        return False

    def kill(self):
        os.kill(self.pid(), signal.SIGKILL)
        wait_for(lambda: not self.is_running(), "the object store has ended")

    def stop(self):
        """Has it answer nothing."""
        os.kill(self.pid(), signal.SIGSTOP)

    def go_on(self):
        os.kill(self.pid(), signal.SIGCONT)

    def start(self):
        if not self.is_running():
            self.box.run(HELPER, "osd", self.dir)


class Node:
    """A network namespace with an address of its own in the network of the cluster."""

    def __init__(self, box, name):
        self.name, self.box, self.link = name, box, f"to-{name}"
        self.address = f"10.117.0.{next(_next)}"
        # Words in front of a command that runs there. It sees the same mounts: a block device belongs to no network.
        self.within = ["nsenter", f"--net=/run/netns/{name}"]
        box.run("ip", "netns", "add", name)
        box.at_end(self.remove)
        box.run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", name)
        box.run("ip", "link", "set", self.link, "master", "storage", "up")
        for words in (("link", "set", "lo", "up"), ("address", "add", f"{self.address}/24", "dev", "eth0"),
                      ("link", "set", "eth0", "up")):  # fmt: skip
            box.run(*self.within, "ip", *words)

    def part(self):
        """Cuts it off, in both directions."""
        self.box.run("ip", "link", "set", self.link, "down")

    def join(self):
        self.box.run("ip", "link", "set", self.link, "up")

    def remove(self):
        self.box.run("ip", "netns", "del", self.name)


class Host:
    """A machine: a network of its own, a daemon with its state, and a place for one SSD."""

    def __init__(self, box, name):
        self.box, self.name, self.node = box, name, Node(box, name)
        self.daemon = Daemon(box, name=name, within=self.node.within)
        self.ssd, self.exports = box.path(f"ssd-{name}"), box.path(f"exp-{name}")

    def boot(self):
        self.daemon.start("--lanes", "2", "--export-dir", self.exports)

    def lose(self):
        """It loses its power."""
        self.daemon.kill()
        self.node.part()

    def repair(self):
        self.node.join()

    def new_ssd(self):
        """The SSD is replaced by an empty one."""
        if os.path.exists(self.ssd):
            os.remove(self.ssd)
        self.box.file(os.path.basename(self.ssd), 64 * MIB)

    def served(self, name="v"):
        wait_for(lambda: self.daemon.show(name)["state"] == "running", "the volume is served", 90)
        return self.daemon.uri(name)


def fence(box, addresses):
    """Has the cluster refuse everything that these clients send."""
    for address in addresses:
        ceph(box, "osd", "blocklist", "add", address)


def need_cluster():
    """Fails unless there is one."""
    conf = os.environ.get("FOREBAY_CEPH_CONF")
    check(conf is not None, "there is no cluster: run scripts/cluster-test")
    if not os.path.exists(conf):
        raise Failure(f"there is no {conf}")
