"""One writer at a time: a node that is stopped or cut off loses its image to another one, and writes nothing later."""

import shutil
import signal
import time

from harness import *
from harness.ceph import *

need_cluster()
# Whatever is dirty is on its way to the origin.
EAGER = ("--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
# Blocks of the first node that it has not written back.
LATE = 1024


def first_node(box, image, **options):
    """A node with dirty blocks that it is about to write back. Gives daemon, its client, and the cache."""
    daemon = box.daemon("--lanes", "2", name="one", **options)
    cache = box.file("cache-one", 64 * MIB)
    recorder = Recorder(daemon.create("v", cache, image.origin, *EAGER), blocks=LATE)
    recorder.write(3000)
    recorder.flush()
    recorder.settle()
    daemon.cli("flush", "v")
    return daemon, recorder, cache


def load(recorder, number=LATE):
    """Acknowledged and flushed, and only on the cache device, as long as nothing is written back."""
    recorder.write(number)
    recorder.flush()
    recorder.settle()


def copy_of(box, cache, daemon=None):
    """The cache device as it is at one moment."""
    moved = box.path("cache-two")
    if daemon:
        daemon.process.send_signal(signal.SIGSTOP)
    shutil.copy(cache, moved)
    if daemon:
        daemon.process.send_signal(signal.SIGCONT)
    return moved


def take_over(box, recorder, moved, image, **options):
    """Another node adopts the volume with a copy of the cache device: it is the device, moved."""
    node = box.daemon(name="two", **options)
    since = time.monotonic()
    node.create("v", moved, image.origin, "--adopt")
    print(f"     taken over {time.monotonic() - since:.1f} s after the other node was gone")
    check_flushed(connect(node.uri("v")), recorder)
    return node


def check_flushed(client, recorder):
    """Fails if a write that was flushed is gone, or anything is there that was not written."""
    for block in range(recorder.blocks):
        version = read_stamp(bytes(client.pread(BLOCK, block * BLOCK)), block, recorder.seed)
        if version < recorder.durable[block]:
            raise Failure(f"block {block}: version {version}, but {recorder.durable[block]} was flushed")


def overwrite(node, recorder):
    """The second node's clients go on with versions of their own, which reach the image."""
    client = connect(node.uri("v"))
    for block in range(recorder.blocks):
        client.pwrite(stamp(block, 1_000_000 + block, recorder.seed), block * BLOCK)
    client.flush()
    node.cli("flush", "v")


def check_no_late_writes(image, recorder, before):
    content = image.content()
    late = sum(
        read_stamp(content[block * BLOCK : (block + 1) * BLOCK], block, recorder.seed) != 1_000_000 + block
        for block in range(recorder.blocks)
    )
    check_equal(late, 0, "late writes of the node that was fenced")
    check_equal(image.digest(), before, "the image")


def is_fenced(daemon):
    return "is lost" in (daemon.show("v")["errors"]["last"] or "")


def stopped_while_taken_over(box, image, fence):
    daemon, recorder, cache = first_node(box, image)
    daemon.cli("set", "v", "writeback_running=off")
    load(recorder)
    daemon.cli("set", "v", "writeback_running=on")
    # Between a decision to write back and its last write, with requests at the cluster.
    daemon.process.send_signal(signal.SIGSTOP)
    box.at_end(daemon.process.send_signal, signal.SIGCONT)
    if fence:
        [address] = image.watchers()
        ceph(box, "osd", "blocklist", "add", address)
    node = take_over(box, recorder, copy_of(box, cache), image)
    overwrite(node, recorder)
    before = image.digest()
    daemon.process.send_signal(signal.SIGCONT)
    wait_for(lambda: is_fenced(daemon), "the node that wakes up notices")
    dirty = daemon.dirty("v")
    check(dirty > 0, "the fenced node has nothing that it could write late")
    print(f"     {dirty} blocks are kept from being written late")
    client = connect(daemon.uri("v"))
    check(attempt(client.pwrite, b"x" * BLOCK, 0), "a client of the fenced node can write")
    # Several attempts of its writeback.
    time.sleep(5)
    check_no_late_writes(image, recorder, before)
    check("was fenced" in daemon.log(), daemon.last_line())
    # The volume is not to be had while the other node lives.
    client.shutdown()
    daemon.cli("stop", "--force", "v", expect=None)
    refused = daemon.cli("start", "v", expect=None)
    check("another client, at" in refused.stderr, f"{refused.returncode}: {refused.stderr}")
    check_no_late_writes(image, recorder, before)
    check_equal(node.terminate()[0], 0, "exit code of the second node")


@test
def a_node_that_is_fenced_by_an_operator_writes_nothing_late(box):
    stopped_while_taken_over(box, Image(box, "fence-operator"), fence=True)


@test
def a_node_that_is_stopped_is_fenced_by_the_next_and_writes_nothing_late(box):
    stopped_while_taken_over(box, Image(box, "fence-stopped"), fence=False)


@test
def a_node_that_is_cut_off_is_fenced_by_the_next_and_writes_nothing_late(box):
    image, one, two = Image(box, "fence-cut"), Node(box, "one"), Node(box, "two")
    daemon, recorder, cache = first_node(box, image, within=one.within)
    check(one.address in image.owner(), f"the owner is {image.owner()}")
    load(recorder, 100)
    one.part()
    # Writeback begins, and its requests wait for a network.
    load(recorder)
    node = take_over(box, recorder, copy_of(box, cache, daemon), image, within=two.within)
    check(two.address in image.owner(), f"the owner is {image.owner()}")
    overwrite(node, recorder)
    before = image.digest()
    check(daemon.dirty("v") > 0, "the node that is cut off has nothing that it could write late")
    one.join()
    wait_for(lambda: is_fenced(daemon), "the node that is back notices", 60)
    time.sleep(5)
    check_no_late_writes(image, recorder, before)


@test
def a_short_cut_costs_nothing(box):
    image, one = Image(box, "cut"), Node(box, "three")
    daemon, recorder, _ = first_node(box, image, within=one.within)
    # Shorter and longer than the cluster waits for a client, while nobody else wants the image.
    for seconds in (3, 20):
        one.part()
        load(recorder, 300)
        time.sleep(seconds)
        one.join()
        wait_for(lambda: daemon.dirty("v") == 0, "everything is written back", 60)
        check(not is_fenced(daemon), "the image is lost without a reason")
    check_flushed(connect(daemon.uri("v")), recorder)
    content = image.content()
    for block in range(recorder.blocks):
        data = content[block * BLOCK : (block + 1) * BLOCK]
        check_equal(read_stamp(data, block, recorder.seed), recorder.acked[block], f"block {block} of the image")


main()
