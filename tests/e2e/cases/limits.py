"""Limits of a volume's clients: requests wait for their turn, and never in anybody's way."""

import threading
import time

import nbd

from harness import *

SIZE = 16 * MIB


def timed(act):
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


class Waiting(threading.Thread):
    """A client with a read that waits for its turn."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client, self.data, self.error = client, None, None
        self.start()

    def run(self):
        try:
            self.data = self.client.pread(4096, 0)
        except Exception as error:
            self.error = error


def nearly_stopped(box):
    """A daemon with a volume of one request each second, and a client that waits for the thirtieth of them."""
    daemon = box.daemon()
    content = random_bytes("origin", SIZE)
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE, content), "--set", "limit_iops=1")
    for _ in range(30):
        waiting = Waiting(connect(uri))
    check(waiting.is_alive(), "nobody waits")
    return daemon, connect(uri), waiting, content


def read_at_once(client, count):
    """Has all reads in flight, so that each comes before its turn, however slow this machine is."""
    buffers = [nbd.Buffer(4096) for _ in range(count)]
    reads = [client.aio_pread(buffer, 0) for buffer in buffers]
    while reads:
        client.poll(-1)
        reads = [read for read in reads if not client.aio_command_completed(read)]


@test
def requests_and_bytes_are_limited(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE, random_bytes("origin", SIZE)))
    client = connect(uri)
    client.pread(MIB, 0)
    daemon.cli("set", "v", "limit_iops=100")
    # 5 begin at once.
    took = timed(lambda: read_at_once(client, 105))
    check(took >= 0.99, f"105 reads of 100 per second took {took} s")
    daemon.cli("set", "v", "limit_iops=0", "limit_bandwidth=1M")
    took = timed(lambda: [client.pwrite(bytes(64 << 10), 0) for _ in range(17)])
    check(took >= 0.94, f"17/16 MiB written at 1 MiB per second took {took} s")
    shown = daemon.cli("show", "v").stdout
    check("1M bytes per second" in shown and "requests have waited" in shown, shown)
    report = daemon.show("v")
    check(report["requests"]["limited"] > 90 and report["requests"]["limited_ms"] > 1000, f"{report['requests']}")
    daemon.cli("set", "v", "limit_bandwidth=0")
    before = daemon.show("v")["requests"]["limited"]
    for _ in range(1000):
        client.pread(4096, 0)
    check_equal(daemon.show("v")["requests"]["limited"], before, "requests that waited without a limit")
    check("limits" not in daemon.cli("show", "v").stdout.split("SETTING")[0], "limits are shown that are none")


@test
def other_volumes_and_flushes_do_not_wait(box):
    daemon, client, waiting, content = nearly_stopped(box)
    other = connect(daemon.create("w", box.path("cache"), box.file("other", SIZE, content)))
    for block in range(1000):
        check_equal(other.pread(4096, block * 4096), content[block * 4096 :][:4096], "a block")
    client.flush()
    check(waiting.is_alive(), "a request did not wait")


@test
def a_limit_that_is_lifted_concerns_those_that_wait(box):
    daemon, _client, waiting, content = nearly_stopped(box)
    daemon.cli("set", "v", "limit_iops=0")
    waiting.join(30)
    check_equal(waiting.data, content[:4096], "the block")


@test
def nobody_waits_for_a_turn_when_the_volume_or_the_daemon_ends(box):
    daemon, _client, waiting, _content = nearly_stopped(box)
    took = timed(lambda: daemon.cli("stop", "--force", "v"))
    check(took < 30, f"a stop took {took} s")
    waiting.join(30)
    check(not waiting.is_alive(), "the client still waits")
    daemon.cli("start", "v")
    daemon.restart()
    check_equal(daemon.show("v")["settings"]["limit_iops"], 1, "limit_iops")


@test
def a_hand_over_answers_those_that_wait(box):
    daemon, client, waiting, content = nearly_stopped(box)
    daemon.cli("daemon", "--take-over")
    waiting.join(30)
    check_equal(waiting.error, None, "the error")
    check_equal(waiting.data, content[:4096], "the block")
    check_equal(client.pread(4096, 0), content[:4096], "the block again")


main()
