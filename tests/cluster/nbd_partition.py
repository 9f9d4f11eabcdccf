"""An origin on an NBD server, seen from a node whose network is cut: requests wait, and nothing is lost."""

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


main()
