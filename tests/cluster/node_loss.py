"""A node is lost with dirty blocks: it returns with its SSD, the SSD moves to another node, the SSD is gone too."""

import json
import os
import pathlib
import random
import time

from harness import *
from harness.ceph import *

need_cluster()
BLOCKS = 2048
# Whatever is dirty is on its way to the origin, so that a kill finds writes in flight to it.
EAGER = ("--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
# Nothing is written back that nobody asks for.
KEEP = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "dirty_high=100", "--set", "writeback_gap=0")
# How often a node is lost in each test.
ROUNDS = int(os.environ.get("FOREBAY_FAULT_ROUNDS", "4"))


def two_hosts(box, *names):
    hosts = [Host(box, name) for name in names]
    for host in hosts:
        host.boot()
    return hosts


def lost_versions(image, recorder):
    """The blocks of which the image alone lacks the version that was acknowledged last."""
    content = image.content()
    versions = [
        read_stamp(content[block * BLOCK : (block + 1) * BLOCK], block, recorder.seed)
        for block in range(recorder.blocks)
    ]
    return {block for block in range(recorder.blocks) if versions[block] != recorder.acked[block]}


def lost_report(daemon, *arguments):
    """What the daemon says is lost, and the blocks of it."""
    report = json.loads(daemon.cli("show", "v", "--lost", "--json").stdout)
    blocks = set()
    for one in report["ranges"]:
        check_equal((one["offset"] % BLOCK, one["len"] % BLOCK), (0, 0), f"the range {one} in blocks")
        blocks.update(range(one["offset"] // BLOCK, (one["offset"] + one["len"]) // BLOCK))
    check_equal(report["bytes"], len(blocks) * BLOCK, "bytes in all ranges")
    return report, blocks


def said(what, seconds):
    print(f"     {what}: median {sorted(seconds)[len(seconds) // 2]:.1f} s, longest {max(seconds):.1f} s")


@test
def a_node_that_returns_with_its_ssd_has_lost_nothing(box):
    image, store, host = Image(box, "returns"), Store(box), Host(box, "returns")
    host.boot()
    host.new_ssd()
    recorder = Recorder(host.daemon.create("v", host.ssd, image.origin, *EAGER), blocks=BLOCKS)
    took = {False: [], True: []}
    for number in range(ROUNDS):
        recorder.write(600)
        recorder.flush()
        # Every other time the object store fails before the node does.
        crash = number % 2 == 1
        if crash:
            store.kill()
        for _ in range(60):
            recorder.start_write()
        recorder.flush()
        host.lose()
        if crash:
            store.start()
        host.repair()
        since = time.monotonic()
        host.boot()
        uri = host.served()
        took[crash].append(time.monotonic() - since)
        recorder.reconnect(uri)
        recorder.verify(uri)
    said("from the start of the daemon to a served volume", took[False])
    if took[True]:
        said("the same, after the object store failed as well", took[True])


@test
def an_ssd_that_moves_takes_every_flushed_write_along(box):
    image, hosts = Image(box, "moves"), two_hosts(box, "mover-a", "mover-b")
    here, there = hosts
    here.new_ssd()
    recorder = Recorder(here.daemon.create("v", here.ssd, image.origin, *EAGER), blocks=BLOCKS)
    took, fenced = [], []
    for number in range(ROUNDS):
        recorder.write(600)
        recorder.flush()
        for _ in range(60):
            recorder.start_write()
        recorder.flush()
        watchers = image.watchers()
        here.lose()
        os.rename(here.ssd, there.ssd)
        since = time.monotonic()
        # Every other time an operator does not wait until the cluster misses the dead node.
        if number % 2:
            fence(box, watchers)
        there.daemon.create("v", there.ssd, image.origin, "--adopt")
        (fenced if number % 2 else took).append(time.monotonic() - since)
        uri = there.served()
        recorder.reconnect(uri)
        recorder.verify(uri)
        # The node that was lost comes back without its SSD, and does not get in the way.
        owner = image.owner()
        here.repair()
        here.boot()
        check_equal(here.daemon.show("v")["state"], "failed", "the volume on the node without an SSD")
        check_equal(image.owner(), owner, "the owner of the image")
        here, there = there, here
    here.daemon.cli("flush", "v")
    recorder.settle()
    here.daemon.cli("flush", "v")
    check_equal(lost_versions(image, recorder), set(), "blocks that the image lacks after a flush")
    print(f"     {recorder.flushes} flushes over {ROUNDS} moves, no flushed write is lost")
    said("from the move to a served volume", took)
    if fenced:
        said("the same, with the dead node fenced by an operator", fenced)


class Groups:
    """Writes in groups with a flush behind each, and what an image may hold that has them in this order."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.base = [0] * BLOCKS
        # The blocks of each group, and when its flush was answered.
        self.groups, self.answered, self.next = {}, {}, 1

    def begin(self, client, blocks=24):
        """Starts the writes of the next group."""
        number, self.next = self.next, self.next + 1
        self.groups[number] = self.random.sample(range(BLOCKS), blocks)
        return number, [
            client.aio_pwrite(bytearray(stamp(block, number)), block * BLOCK) for block in self.groups[number]
        ]

    def run(self, client, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            number, cookies = self.begin(client)
            while cookies := [cookie for cookie in cookies if not client.aio_command_completed(cookie)]:
                client.poll(100)
            client.flush()
            self.answered[number] = time.monotonic()

    def after(self, last):
        """The versions after a group, and nothing of later ones."""
        versions = list(self.base)
        for number in sorted(number for number in self.groups if number <= last):
            for block in self.groups[number]:
                versions[block] = number
        return versions

    def found(self, content, lost_at):
        """Fails unless the content is that after some group, with a part of the next. Gives the group, how many groups
        with answered flushes are missing, and how old the content is in seconds."""
        versions = [read_stamp(content[n * BLOCK : (n + 1) * BLOCK], n) for n in range(BLOCKS)]
        newest = max(versions)
        for last in (newest, newest - 1):
            expected, next_group = self.after(last), set(self.groups.get(last + 1, ()))
            wrong = [
                block for block in range(BLOCKS)
                if versions[block] != expected[block] and not (block in next_group and versions[block] == last + 1)
            ]  # fmt: skip
            if not wrong:
                missing = [number for number in self.answered if number > last]
                age = max([0] + [lost_at - self.answered[number] for number in missing])
                self.base, self.groups, self.answered = versions, {}, {}
                return last, len(missing), age
        raise Failure(f"the image is no state between two groups near {newest}: {len(wrong)} blocks, first {wrong[:5]}")


@test
def with_order_the_image_alone_is_whole_up_to_a_flush(box):
    image, hosts = Image(box, "ordered"), two_hosts(box, "order-a", "order-b")
    groups, ages, missing, partial = Groups(3), [], 0, 0
    here, there = hosts
    for number in range(2 * ROUNDS):
        here.new_ssd()
        uri = here.daemon.create("v", here.ssd, image.origin, "--ordered", *EAGER)
        client = connect(uri)
        groups.run(client, 1 + number % 3 * 0.7)
        # In the middle of a group.
        unfinished, _ = groups.begin(client)
        lost_at = time.monotonic()
        watchers = image.watchers()
        here.lose()
        os.remove(here.ssd)
        fence(box, watchers)
        last, short, age = groups.found(image.content(), lost_at)
        ages.append(age)
        missing += short
        partial += last + 1 == unfinished
        here.repair()
        here.boot()
        here.daemon.cli("delete", "--force", "v", "--discard-dirty")
        here, there = there, here
    check(missing > 0, "nothing was missing on the image: the test proves nothing")
    print(f"     {2 * ROUNDS} losses of node and SSD: the image was at a flush each time")
    said("how old it was", ages)


@test
def without_order_it_is_known_what_the_image_lacks(box):
    image, host = Image(box, "unordered"), Host(box, "unordered")
    host.boot()
    for how in ("the SSD fails", "it is gone after an orderly stop", "it is gone after a crash"):
        host.new_ssd()
        ssd = host.ssd if how != "the SSD fails" else f"faulty:{host.ssd}"
        uri = host.daemon.create("v", ssd, image.origin, *KEEP)
        recorder = Recorder(uri, blocks=BLOCKS, seed=len(how))
        # Every block has a version on the image, and some have a newer one on the SSD alone.
        for client, first in zip(recorder.clients, range(len(recorder.clients))):
            for block in range(first, BLOCKS, len(recorder.clients)):
                client.pwrite(stamp(block, 1, recorder.seed), block * BLOCK)
        recorder.submitted, recorder.acked = [1] * BLOCKS, [1] * BLOCKS
        recorder.flusher.flush()
        host.daemon.cli("flush", "v")
        note = pathlib.Path(host.daemon.state, "dirty", "v.json")
        wait_for(lambda note=note: not json.loads(note.read_text())["dirty"], "nothing is noted as dirty")
        recorder.write(300)
        recorder.flush()
        recorder.settle()
        recorder.flusher.flush()
        match how:
            case "the SSD fails":
                with open(f"{host.ssd}.faults", "w") as file:
                    file.write("gone\n")
                # A write that finds out; it changes nothing.
                block = next(block for block in range(BLOCKS) if recorder.acked[block] > 1)
                data = stamp(block, recorder.acked[block], recorder.seed)
                attempt(recorder.clients[0].pwrite, data, block * BLOCK)
                wait_for(lambda: host.daemon.show("v")["state"] == "degraded", "the loss is noticed")
                check(lost_report(host.daemon)[1], "nothing is named at once")
                # Some blocks are still in RAM, and are written back from there.
                wait_for(
                    lambda r=recorder: lost_report(host.daemon)[1] == lost_versions(image, r), "it is known exactly"
                )  # fmt: skip
            case "it is gone after an orderly stop":
                check_equal(host.daemon.terminate()[0], 0, "exit code")
                os.remove(host.ssd)
                host.boot()
            case _:
                host.lose()
                os.remove(host.ssd)
                host.repair()
                host.boot()
        report, named = lost_report(host.daemon)
        host.daemon.cli("delete", "--force", "v", "--discard-dirty")
        lost = lost_versions(image, recorder)
        check(len(lost) > 100, f"only {len(lost)} blocks are lost: the test proves little")
        check(report["known"], "nothing is known of the loss")
        check_equal(report["exact"], "crash" not in how, f"{how}: whether the ranges are exact")
        check_equal(lost - named, set(), f"{how}: blocks that are lost and not named")
        if report["exact"]:
            check_equal(named - lost, set(), f"{how}: blocks that are named and not lost")
        # A region is a 4096th of the volume.
        region = 32 * MIB // 4096 // BLOCK
        check_equal({b // region for b in named} - {b // region for b in lost}, set(), f"{how}: regions without a loss")
        print(f"     {how}: {len(lost)} blocks are lost, {len(named)} named")
        if os.path.exists(f"{host.ssd}.faults"):
            os.remove(f"{host.ssd}.faults")


def writes_elsewhere(image, host, blocks):
    """Another node with an SSD of its own has the image for a while."""
    host.new_ssd()
    client = connect(host.daemon.create("v", host.ssd, image.origin))
    for block in blocks:
        client.pwrite(stamp(block, 2), block * BLOCK)
    client.flush()
    client.shutdown()
    host.daemon.cli("delete", "--force", "v")


@test
def a_cache_that_was_left_behind_writes_and_serves_nothing_old(box):
    image, (one, two) = Image(box, "left-behind"), two_hosts(box, "left-a", "left-b")
    # Blocks of which no sample of the origin is taken.
    blocks = [block for block in range(100, BLOCKS) if block % 128 not in (0, 1, 127)][:200]
    for dirty in (True, False):
        one.new_ssd()
        client = connect(one.daemon.create("v", one.ssd, image.origin, *KEEP))
        for block in blocks:
            client.pwrite(stamp(block, 1), block * BLOCK)
        client.flush()
        if dirty:
            check_equal(one.daemon.dirty("v"), len(blocks), "dirty blocks")
            watchers = image.watchers()
            one.lose()
            fence(box, watchers)
        else:
            one.daemon.cli("flush", "v")
            client.shutdown()
            check_equal(one.daemon.terminate()[0], 0, "exit code")
        writes_elsewhere(image, two, blocks)
        before = image.digest()
        one.repair()
        one.boot()
        if dirty:
            check_equal(one.daemon.show("v")["state"], "failed", "the volume that was left behind")
            refused = one.daemon.cli("start", "v", expect=4)
            check("was written elsewhere" in refused.stderr, refused.stderr)
            one.daemon.create("v", one.ssd, image.origin, "--adopt", expect=4)
            one.daemon.cli("delete", "--force", "v", "--discard-dirty")
        else:
            client = connect(one.served())
            for block in blocks:
                check_equal(read_stamp(bytes(client.pread(BLOCK, block * BLOCK)), block), 2, f"block {block}")
            one.daemon.cli("delete", "--force", "v")
        check_equal(image.digest(), before, "the image")


main()
