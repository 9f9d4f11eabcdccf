"""
Hand-overs by SIGHUP with a second SIGHUP at a random moment, FOREBAY_SIGNALS of them (default 1000), below a client that
verifies what it wrote: no client gets an error, no daemon ends, and a later hand-over always works.
"""

import http.client
import json
import os
import random
import signal
import threading
import time

from harness import *
from harness.data import BLOCK
from harness.faults import wait_for
from harness.http_unix import UnixConnection

TIMES = int(os.environ.get("FOREBAY_SIGNALS", "1000"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or time.time_ns() % 1_000_000_000
BLOCKS = 2000


def hand_overs(daemon):
    """How many there were, once the present program serves everything."""
    connection = UnixConnection(daemon.socket)
    try:
        connection.request("GET", "/v1/daemon")
        now = json.loads(connection.getresponse().read())
        return now["hand_overs"] if now["ready"] else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Client(threading.Thread):
    """Writes blocks, and reads what it wrote."""

    def __init__(self, uri, seed):
        super().__init__(daemon=True)
        self.connection, self.rng = connect(uri), random.Random(seed)
        self.versions, self.done, self.slowest, self.error, self.ended = [0] * BLOCKS, 0, 0.0, None, False

    def content(self, block):
        return (self.versions[block] << 32 | block).to_bytes(8, "big") * (BLOCK // 8)

    def step(self):
        block = self.rng.randrange(BLOCKS)
        if self.rng.random() < 0.5:
            self.versions[block] += 1
            self.connection.pwrite(self.content(block), block * BLOCK)
        elif self.versions[block]:
            found = bytes(self.connection.pread(BLOCK, block * BLOCK))
            check(found == self.content(block), f"block {block} is not what was written")
        if self.rng.random() < 0.05:
            self.connection.flush()

    def run(self):
        try:
            while not self.ended:
                begun = time.monotonic()
                self.step()
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.done += 1
        except Exception as error:
            self.error = error


@test
def no_hand_over_is_lost_and_no_client_sees_one(box):
    daemon, rng = box.daemon(), random.Random(SEED)
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    client = Client(uri, SEED)
    client.start()
    pid, longest, count = daemon.process.pid, 0.3, 0
    for round in range(TIMES):
        begun = time.monotonic()
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(rng.uniform(0, longest))
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: (hand_overs(daemon) or 0) > count, f"seed {SEED}, round {round}: there is a hand-over")
        longest = 0.9 * longest + 0.1 * (time.monotonic() - begun)
        # The second one may be waiting for the end of the first.
        time.sleep(rng.uniform(0, longest))
        count = wait_for(lambda: hand_overs(daemon), f"seed {SEED}, round {round}: the program is ready")
        daemon.check_alive()
        check(client.error is None, f"seed {SEED}, round {round}: the client got an error: {client.error}")
    client.ended = True
    client.join(60)
    check(client.error is None, f"seed {SEED}: the client got an error: {client.error}")
    check_equal(daemon.process.pid, pid, "the process")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check("disconnected" not in daemon.log() and "cut off" not in daemon.log(), "the log names clients that were cut off")
    said = f"{2 * TIMES} SIGHUPs, {count} hand-overs, {client.done} requests, the slowest {client.slowest:.2f} s"
    print(f"     seed {SEED}: {said}")


main()
