"""A thousand clients that never read their replies, and clients that stop in the middle."""

import os
import signal
import struct
import time

from harness import *
from harness.wire import *

SIZE = 64 * MIB


def served(box, *settings):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), *settings)
    return daemon, uri


def check_served(daemon, uri, version):
    """Whether a client that behaves is served."""
    client = Client(uri)
    check_equal(client.write_blocks(0, 64, version), 64, "blocks acknowledged to a client that behaves")
    client.flush()
    for block in (0, 63):
        client.check_block(block, version)
    daemon.check_alive()
    client.nbd.shutdown()


@test
def a_thousand_that_never_read(box):
    daemon, uri = served(box)
    check_served(daemon, uri, 1)
    wires = []
    for number in range(1000):
        wire, _ = opened(daemon.nbd, "v")
        wire.socket.settimeout(0.05)
        wires.append(wire)
        try:
            for _ in range(16):
                wire.request(READ, number * 65536 % SIZE, 65536)
        except TimeoutError:
            # The daemon takes no more of it: that is its right.
            pass
    check_served(daemon, uri, 2)
    for wire in wires:
        wire.close()
    check_served(daemon, uri, 3)
    _, took = daemon.terminate()
    check(took < 30, f"SIGTERM took {took} s")


@test
def sigterm_ends_with_clients_that_never_read(box):
    daemon, uri = served(box)
    wires = [opened(daemon.nbd, "v")[0] for _ in range(100)]
    for wire in wires:
        for _ in range(32):
            wire.request(READ, 0, 65536)
    code, took = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check(took < 30, f"SIGTERM took {took} s")


@test
def writers_that_stop_in_the_middle(box):
    daemon, uri = served(box)
    head = struct.pack(">IHHQQI", REQUEST_MAGIC, 0, WRITE, 1, 32 * MIB, MIB)
    wires = []
    for number in range(200):
        wire, _ = opened(daemon.nbd, "v")
        wire.send((head + bytes(MIB))[: 1 + number * 5000 % (len(head) + MIB - 1)])
        wires.append(wire)
    check_served(daemon, uri, 1)
    for wire in wires[::2]:
        wire.close()
    check_served(daemon, uri, 2)
    verb(daemon, "stop", "--force", "v")
    check_equal(verb(daemon, "start", "v").returncode, 0, "the exit code of start")
    check_served(daemon, daemon.uri("v"), 3)
    for block in range(8192, 8192 + 256):
        data = Client(uri).read(block * BLOCK) if block % 64 == 0 else bytes(BLOCK)
        check_equal(data, bytes(BLOCK), f"block {block}, which was never wholly sent")


@test
def a_stopped_client_holds_nobody_up(box):
    need("fio")
    daemon, uri = served(box)
    loads = [
        box.start_fio(uri, "--rw=randrw", "--time_based", "--runtime=600", "--offset=32m", size="16m")
        for _ in range(4)
    ]
    time.sleep(1)
    for load in loads:
        os.kill(load.pid, signal.SIGSTOP)
    check_served(daemon, uri, 1)
    check_equal(verb(daemon, "flush", "v").returncode, 0, "the exit code of flush")
    check_equal(verb(daemon, "set", "v", "mode=wt").returncode, 0, "the exit code of set")
    for load in loads:
        os.kill(load.pid, signal.SIGKILL)
    check_served(daemon, uri, 2)
    check_equal(verb(daemon, "delete", "--force", "v").returncode, 0, "the exit code of delete")


@test
def a_hung_disk_and_clients_that_leave(box):
    daemon = box.daemon()
    origin = Disk(box, "origin", SIZE)
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin.name)
    origin.faults("hang read")
    wires = [opened(daemon.nbd, "v")[0] for _ in range(50)]
    for number, wire in enumerate(wires):
        wire.request(READ, number * MIB, 4096)
        wire.close()
    client = Client(uri)
    client.write_blocks(0, 64)
    client.flush()
    client.check_block(5, 1)
    origin.heal()
    check_served(daemon, uri, 2)


main()
