"""An idle daemon looks idle to those who watch the machine."""

import os
import time

from harness import *

IDLE = 3


@test
def an_idle_daemon_does_not_wait_for_io(box):
    """top and PSI would show a disk that is always busy, and hide one that is."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (6, 15):
        skip(f"Linux {os.uname().release} counts a wait for clients as one for I/O; 6.15 can be told")
    daemon = Confined(box, PressureGroup(box))
    daemon.start()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    client = Client(uri)
    check_equal(client.write_blocks(0, 16, 1), 16, "blocks acknowledged")
    client.flush()
    # Once the background work of the first second is over.
    time.sleep(1)
    before = daemon.group.waits()
    time.sleep(IDLE)
    waited = daemon.group.waits() - before
    check(waited < IDLE / 10, f"an idle daemon waited for I/O for {waited:.2f} of {IDLE} s")


main()
