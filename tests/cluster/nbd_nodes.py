"""An origin on an NBD server, seen from nodes whose network is cut, or that are lost: nothing is lost with them."""

import os
import pathlib
import signal
import subprocess
import time

from harness import *
from harness.ceph import *
from harness.wire import free_port

need_cluster()


@test
def a_cut_to_an_nbd_server_costs_nothing(box):
    need("qemu-nbd")
    node, port, disk = Node(box, "nbd-client"), free_port(), box.file("disk", 32 * MIB)
    box.spawn("qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--bind=10.117.0.1", f"--port={port}", disk)
    wait_for(lambda: box.run("ss", "-Hltn", f"sport = :{port}").stdout, "the server listens")
    daemon = box.daemon("--lanes", "2", within=node.within)
    settings = ("--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
    origin = f"nbd://10.117.0.1:{port}/?timeout=4&reconnect=60"
    recorder = Recorder(daemon.create("v", box.path("cache") + ",size=64M", origin, *settings), blocks=1024)
    # Shorter and longer than a request may take.
    for number, seconds in enumerate((2, 10)):
        recorder.write(500)
        node.part()
        recorder.write(500)
        recorder.flush()
        recorder.settle()
        reader = Client(daemon.uri("v"))
        cookie, _ = reader.start_read((16 + number) * MIB, BLOCK)
        time.sleep(seconds)
        node.join()
        failed = attempt(reader.finish, cookie, "a read during the cut", 60)
        check(seconds > 4 or failed is None, f"a read failed with {failed} in a cut of {seconds} s")
        wait_for(lambda: daemon.dirty("v") == 0, "everything is written back", 60)
    daemon.cli("flush", "v")
    with open(disk, "rb") as file:
        for block in range(recorder.blocks):
            version = read_stamp(file.read(BLOCK), block, recorder.seed)
            check_equal(version, recorder.acked[block], f"block {block} on the server")


@test
def an_ssd_moves_to_another_node_of_a_slow_server_that_fails_and_restarts(box):
    need("nbdkit")
    port, disk, errors = free_port(), box.file("disk", 32 * MIB), pathlib.Path(box.path("errors"))
    # nbdkit 1.32 aborts at times when a client is gone ("raw_send_socket: Assertion `sock >= 0' failed"), so it has a
    # supervisor, as a service has.
    nbdkit = (
        "nbdkit", "--foreground", "--threads=8", "--ipaddr=10.117.0.1", f"--port={port}",
        "--filter=error", "--filter=delay", "file", disk, "rdelay=2ms", "wdelay=5ms",
        "error-rate=5%", f"error-file={errors}",
    )  # fmt: skip
    supervisor, pid = 'while :; do "$@" & echo $! >"$0"; wait; sleep 0.3; done', pathlib.Path(box.path("pid"))
    box.spawn("sh", "-c", supervisor, pid, *nbdkit, stderr=subprocess.DEVNULL)
    wait_for(lambda: box.run("ss", "-Hltn", f"sport = :{port}").stdout, "the server listens")
    origin = f"nbd://10.117.0.1:{port}/?timeout=10&reconnect=60"
    here, there = Host(box, "nbd-a"), Host(box, "nbd-b")
    for host in (here, there):
        host.boot()
    here.new_ssd()
    settings = ("--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
    recorder = Recorder(here.daemon.create("v", here.ssd, origin, *settings), blocks=1024)
    for number in range(4):
        errors.touch()
        recorder.write(400)
        recorder.flush()
        if number % 2:
            os.kill(int(pid.read_text()), signal.SIGKILL)
            recorder.write(100)
            recorder.flush()
        for _ in range(40):
            recorder.start_write()
        recorder.flush()
        # NBD has no fence: the node has to be gone before the other one starts.
        here.lose()
        os.rename(here.ssd, there.ssd)
        errors.unlink()
        there.daemon.create("v", there.ssd, origin, "--adopt")
        recorder.reconnect(there.served())
        recorder.verify(there.daemon.uri("v"))
        here.repair()
        here.boot()
        here, there = there, here
    recorder.settle()
    here.daemon.cli("flush", "v")
    with open(disk, "rb") as file:
        for block in range(recorder.blocks):
            check_equal(read_stamp(file.read(BLOCK), block, recorder.seed), recorder.acked[block], f"block {block} on the server")


main()
