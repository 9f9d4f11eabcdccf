"""
Hand-overs by SIGHUP with a SIGTERM at a random moment, and stops by SIGTERM at a random moment of a start, FOREBAY_SIGNALS of
each (default 1000): every daemon ends in order with exit code 0, leaves no socket behind, and loses nothing.
"""

import os
import random
import signal
import time

from harness import *
from harness.faults import wait_for

TIMES = int(os.environ.get("FOREBAY_SIGNALS", "1000"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or time.time_ns() % 1_000_000_000


def ends(daemon, what):
    """Sends SIGTERM, and checks that the daemon ends in order."""
    code, seconds = daemon.terminate()
    check_equal(code, 0, f"{what}: the exit code ({daemon.last_line()})")
    for path in daemon.socket, daemon.nbd:
        check(not os.path.exists(path), f"{what}: {path} is left behind")
    return seconds


@test
def a_sigterm_during_a_hand_over_stops_in_order(box):
    daemon, rng = box.daemon(), random.Random(SEED)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    slowest, instead = 0.0, 0
    for round in range(TIMES):
        what = f"seed {SEED}, round {round}"
        data = round.to_bytes(8, "big") * 512
        client = connect(daemon.uri("v"))
        client.pwrite(data, round % 1000 * 4096)
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(rng.uniform(0, 0.4))
        slowest = max(slowest, ends(daemon, what))
        daemon.start()
        found = bytes(connect(daemon.uri("v")).pread(4096, round % 1000 * 4096))
        check(found == data, f"{what}: what was written is lost")
    instead = daemon.log().count("stopped instead of handed over")
    ends(daemon, "the last one")
    print(f"     seed {SEED}: {TIMES} SIGTERMs during hand-overs, {instead} before the next program, the slowest end {slowest:.2f} s")


@test
def a_sigterm_during_a_start_stops_in_order(box):
    daemon, rng = box.daemon(), random.Random(SEED)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    connect(daemon.uri("v")).pwrite(b"v" * 4096, 0)
    ends(daemon, "the first one")
    slowest = 0.0
    for round in range(TIMES):
        daemon.launch()
        # Before the program blocks signals, the system ends it.
        wait_for(lambda: os.path.exists(daemon.socket), "the daemon has begun")
        time.sleep(rng.uniform(0, 0.1))
        slowest = max(slowest, ends(daemon, f"seed {SEED}, round {round}"))
    daemon.start()
    check_equal(bytes(connect(daemon.uri("v")).pread(4096, 0)), b"v" * 4096, "what was written")
    print(f"     seed {SEED}: {TIMES} SIGTERMs during starts, the slowest end {slowest:.2f} s")


main()
