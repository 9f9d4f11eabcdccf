"""How long a neighbour waits while the index of its cache is widened for an origin that is much larger."""

import os
import threading
import time

from harness import *

TIB = 1 << 40
ROUNDS = 5
# The cache has an index for 32 times as many addresses as it has blocks. All of it is widened, whatever is cached.
CACHE = 64 * GIB
# Blocks that the neighbour reads.
CACHED = 1 << 16


def quantiles(waits):
    ordered = sorted(waits)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6 for share in (0.5, 0.99, 1)]


class Reader(threading.Thread):
    """Reads cached blocks, one after the other, and notes how long each took."""

    def __init__(self, uri):
        super().__init__()
        self.client, self.over, self.waits = connect(uri), False, []

    def run(self):
        block = 0
        while not self.over:
            begun = time.monotonic()
            self.client.pread(BLOCK, block * BLOCK)
            self.waits.append(time.monotonic() - begun)
            block = (block + 7919) % CACHED


def measured(uri, action):
    """The waits of a neighbour during an action, and the seconds that this took."""
    reader = Reader(uri)
    reader.start()
    time.sleep(0.3)
    reader.waits.clear()
    begun = time.monotonic()
    action()
    took = time.monotonic() - begun
    reader.over = True
    reader.join()
    return reader.waits, took


@test
def the_index_is_widened_beside_a_reader(box):
    print(f"     {'':<28} {'p50 us':>8} {'p99 us':>8} {'longest':>8} {'seconds':>8}")
    for number in range(ROUNDS):
        daemon, size = box.daemon(name=f"d{number}"), CACHED * BLOCK
        cache, origin = box.file("cache", CACHE), box.file("origin", 2 * size)
        uri = daemon.create("v", cache, origin, "--set", "sequential_cutoff=0", "--set", "writeback_running=off")
        box.run("fio", "--name=fill", "--ioengine=nbd", f"--uri={uri}", "--rw=write", "--bs=256k", f"--size={size}", "--iodepth=8")
        small, large = box.file("small", size), f"/dev/shm/forebay-{os.getpid()}"
        box.at_end(lambda path: os.path.exists(path) and os.remove(path), large)
        with open(large, "wb") as file:
            file.truncate(64 * TIB)
        for what, path in ("a volume of the same size", small), ("one of 64 TiB", large):
            waits, took = measured(uri, lambda path=path: daemon.create(f"w{os.path.basename(path)}", cache, path))
            print(f"     {what:<28} {' '.join(f'{value:8.0f}' for value in quantiles(waits))} {took:8.2f}")
        daemon.kill()
        for path in cache, origin, small, large:
            os.remove(path)


main()
