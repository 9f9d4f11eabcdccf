"""The memory of a daemon stays under its limit, whatever clients do, and other clients are served.

The daemon runs in a control group that kills it if it takes more than the group may have; of that it
may take three quarters by its own default.
"""

import json
import pathlib
import resource
import statistics
import time

from harness import *
from harness.wire import *

LIMIT = 3 * GIB // 2
SIZE = 4 * GIB


class Limited(Confined):
    """A daemon in a control group, and a client of it that behaves."""

    def __init__(self, box, mode="writeback"):
        super().__init__(box, MemoryGroup(box, LIMIT))
        self.start()
        uri = self.create("v", box.file("cache", 256 * MIB), box.file("origin", SIZE), "--mode", mode)
        self.client = connect(uri)

    def command(self, *arguments):
        return ["sh", "-c", 'ulimit -n 4096 && exec "$@"', "sh", *super().command(*arguments)]

    def peak(self):
        """The most bytes of RAM that the daemon ever had."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * KIB for line in status.splitlines() if "VmHWM" in line)

    def check_served(self):
        """Another client is served, with small requests and with a large one."""
        self.check_alive()
        data = random_bytes(7, MIB)
        for number in range(16):
            self.client.pwrite(data[: 64 * KIB], number * 4 * MIB)
            check(self.client.pread(64 * KIB, number * 4 * MIB) == data[: 64 * KIB], "other data")
        self.client.pwrite(data, SIZE - MIB)
        check(self.client.pread(MIB, SIZE - MIB) == data, "other data")
        self.client.flush()
        self.check_under()

    def check_under(self):
        memory = self.show("v")["memory"]
        limit, used = LIMIT // 4 * 3, sum(memory.get("used_bytes", {}).values())
        check_equal(memory.get("limit_bytes"), limit, "the limit that the daemon chose")
        check(used <= limit, f"{used} bytes are counted, of {limit}: {memory}")
        check(self.peak() <= limit, f"{self.peak()} bytes of RAM, of {limit}: {memory}")


def idle(daemon, part):
    """Waits until what clients took is given back, but for what lanes keep and the one client has."""
    end = time.monotonic() + 60
    while daemon.show("v")["memory"]["used_bytes"][part] > 5 * MIB:
        check(time.monotonic() < end, f"memory is not given back: {daemon.show('v')['memory']}")


@test
def prefetches_are_counted(box):
    # Nothing is filled, which takes long; they are read all the same.
    daemon = Limited(box, "passthrough")
    wires = [opened(daemon.nbd, "v")[0] for _ in range(4)]
    for number in range(256):
        for place, wire in enumerate(wires):
            wire.request(CACHE, (place * 256 + number) * 2 * MIB, 2 * MIB)
    daemon.check_served()
    for wire in wires:
        for _ in range(256):
            check_equal(wire.reply()[1], 0, "a prefetch")
        wire.close()
    daemon.check_served()
    idle(daemon, "requests")


def unread(daemon, connections, reads, length):
    """Clients that ask for much and never take a reply."""
    wires = []
    for number in range(connections):
        wire, _ = opened(daemon.nbd, "v")
        for read in range(reads):
            wire.request(READ, (number * reads + read) * length % (SIZE - length), length)
        wires.append(wire)
    return wires


@test
def a_few_clients_that_never_read_do_not_take_it_all(box):
    daemon = Limited(box)
    wires = unread(daemon, 16, 64, 2 * MIB)
    daemon.check_served()
    for wire in wires:
        wire.close()
    daemon.check_served()
    idle(daemon, "requests")


@test
def a_thousand_clients_that_never_read_do_not_take_it_all(box):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    daemon = Limited(box)
    wires = unread(daemon, 1000, 4, MIB)
    daemon.check_served()
    # Nor do those that stop in the middle of a write.
    for wire in wires:
        try:
            wire.request(WRITE, 0, 32 * MIB, bytes(1000))
        except OSError:
            pass  # It has been dropped.
    daemon.check_served()
    for wire in wires:
        wire.close()
    daemon.check_served()
    idle(daemon, "requests")
    idle(daemon, "connections")


@test
def a_cache_that_does_not_fit_is_refused_with_a_way_out(box):
    daemon = box.daemon("--memory-limit", "256M")
    origin = box.file("origin", SIZE)
    cache = box.file("cache", 256 * GIB)
    before = digest_start(cache)
    error = daemon.create_run("v", cache, origin, expect=3).stderr
    check("--memory-limit" in error, f"no way out: {error}")
    check_equal(digest_start(cache), before, "the device of a cache that was refused")
    daemon.create("w", box.file("small", 256 * MIB), origin)
    box.run(daemon.binary, "daemon", "--memory-limit", "1M", expect=2)
    # A service has to start on a machine that has less than its unit says.
    daemon.restart("--memory-limit", "1P")
    check("--memory-limit: 1P is more than this machine" in daemon.log(), daemon.log())
    check(daemon.show("w")["memory"]["limit_bytes"] < 1 << 50, "the limit is what there is")


@test
def the_limit_can_be_changed_while_volumes_are_served(box):
    daemon = box.daemon("--memory-limit", "512M", "--lanes", "2")
    origin = box.file("origin", GIB)
    client = connect(daemon.create("v", "none", origin, "--ram", "64M"))

    def memory(*arguments, **options):
        return daemon.cli("memory", *arguments, **options)

    def resident():
        status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
        return next(int(line.split()[1]) * KIB for line in status.splitlines() if "VmRSS" in line)

    said = daemon.cli("set", "v", "ram=512M", expect=3).stderr
    check("forebay memory --limit" in said, f"no way out: {said}")
    memory("--limit", "2G")
    check_equal(json.loads(memory("--json").stdout)["limit_bytes"], 2 * GIB, "the limit")
    before = resident()
    daemon.cli("set", "v", "ram=512M")
    for offset in range(0, GIB, MIB):
        client.pread(MIB, offset)
        client.pwrite(bytes(64 * KIB), offset)
    # The cap: not one percent more than what is counted.
    counted = json.loads(memory("--json").stdout)["used_bytes"]["ram_tiers"]
    taken = resident() - before
    check(taken <= counted * 1.01 + 4 * MIB, f"{taken} bytes were taken, {counted} are counted")
    check(taken >= 500 * MIB, f"the tier has only {taken} bytes")
    said = memory("--limit", "600M", expect=3).stderr
    check("ram=SIZE" in said, f"no way out: {said}")
    check_equal(json.loads(memory("--json").stdout)["limit_bytes"], 2 * GIB, "the limit")
    daemon.cli("set", "v", "ram=64M")
    memory("--limit", "512M")
    check("512M" in memory().stdout, memory().stdout)
    check(resident() - before < 80 * MIB, "the smaller tier has given nothing back")
    for limit, words in ("1M", "--limit: 1M is too little"), ("1P", "--limit: 1P is more than"):
        said = memory("--limit", limit, expect=2).stderr
        check(words in said and said.count("\n") == 1, said)
    daemon.cli("set", "v", "ram=512M", expect=3)
    check_equal(len(client.pread(MIB, 0)), MIB, "bytes read")


SECTORS = 50_000


@test
def blocks_that_are_valid_in_part_do_not_take_it_all(box):
    limit = 256 * MIB
    daemon = box.daemon("--memory-limit", "256M", "--lanes", "2")
    # The index and the buffers leave some 5 MiB for masks.
    daemon.create("v", box.file("cache", 12 * GIB), box.file("origin", 8 * GIB))
    wire = opened(daemon.nbd, "v")[0]

    def rss():
        status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
        return next(int(line.split()[1]) * KIB for line in status.splitlines() if "VmRSS" in line)

    def write(places, length):
        """Writes at these places, many at a time."""
        data, pending = bytes([1]) * length, 0
        for place in places:
            wire.request(WRITE, place, length, data)
            pending += 1
            if pending == 64:
                check_equal(wire.reply()[1], 0, "a write")
                pending -= 1
        for _ in range(pending):
            check_equal(wire.reply()[1], 0, "a write")

    # The pages of the index and the buffers are in use before anything is measured.
    write(range(4 * GIB, 4 * GIB + 256 * MIB, 128 * KIB), 128 * KIB)
    sizes = [rss()]
    for round in range(20):
        start = round * SECTORS * 4 * KIB
        write(range(start, start + SECTORS * 4 * KIB, 4 * KIB), 512)
        sizes.append(rss())
    memory = daemon.show("v")["memory"]
    used = sum(memory["used_bytes"].values())
    check(used <= limit, f"{used} bytes are counted, of {limit}: {memory}")
    # Four rounds fill the part for masks; the sixteen after them would take 1.9 MiB more each. A log
    # buffer takes its 4 MiB when it is first used, and on a slow device the last of the ten is used late:
    # at most eight in these rounds, as two or more are in use before. So eight rounds without show the rest.
    check(memory["buffer_bytes"] <= 40 * MIB, f"more log buffers than the rounds allow for: {memory}")
    growth = [after - before for before, after in zip(sizes[4:], sizes[5:])]
    more = statistics.median_low(growth)
    check(more <= MIB // 2, f"{more} bytes of RAM for {SECTORS} sectors more: {sizes}, {memory}")
    wire.request(READ, 4 * KIB, 4 * KIB)
    check_equal(wire.reply()[1], 0, "a read")
    data = wire.receive(4 * KIB)
    check(data == bytes([1]) * 512 + bytes(4 * KIB - 512), "other data")


def digest_start(path):
    with open(path, "rb") as file:
        return file.read(16 * MIB)


main()
