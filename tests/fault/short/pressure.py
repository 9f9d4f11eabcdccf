"""Another process needs the memory: a RAM tier gives half of its own back, and serves on."""

import pathlib
import subprocess
import time

from harness import *

LIMIT = 768 * MIB
TIER = 320 * MIB

# Takes memory, as much as it is told at once and the rest at 64 MiB a second, and keeps it.
GREEDY = """
import sys, time
held = []
def take(size):
    held.append(bytearray(size))
    held[-1][::4096] = b"x" * len(held[-1][::4096])
take(int(sys.argv[1]))
print("holding", flush=True)
for _ in range(int(sys.argv[2]) >> 20):
    time.sleep(1 / 64)
    take(1 << 20)
print("done", flush=True)
time.sleep(3600)
"""


def rss(daemon):
    status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) * KIB for line in status.splitlines() if "VmRSS" in line)


@test
def half_of_the_tier_is_given_back(box):
    daemon = Confined(box, MemoryGroup(box, LIMIT))
    daemon.start()
    daemon.restart("--memory-limit", "640M")
    uri = daemon.create("v", "none", box.file("origin", GIB), "--ram", "320M")
    client = connect(uri)
    for number in range(64):
        client.pwrite(random_bytes(number, MIB), number * MIB)
    for place in range(0, TIER + 32 * MIB, MIB):
        client.pread(MIB, place)
    full, before = daemon.show("v")["ram"], rss(daemon)
    check(full["used"] > TIER // 10 * 9, f"the tier is not full: {full}")
    # All but a tenth of the memory, then half a tier more than there is.
    at_once = LIMIT - before - LIMIT // 10
    more = LIMIT // 10 + TIER // 2
    command = daemon.group.enter("python3", "-c", GREEDY, str(at_once), str(more))
    greedy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    box.at_end(greedy.kill)
    check_equal(greedy.stdout.readline(), "holding\n", "the other process")
    since = time.monotonic()
    while (left := daemon.show("v")["ram"]["used"]) > full["used"] // 2:
        check(time.monotonic() < since + 60, f"{left} bytes are still held")
        time.sleep(0.05)
    took = time.monotonic() - since
    check_equal(greedy.stdout.readline(), "done\n", "the other process")
    after = rss(daemon)
    check(before - after > TIER // 10 * 4, f"{before} bytes of RAM before and {after} after")
    print(f"{(before - after) // MIB} MiB after {took:.1f} s")
    for number in range(64):
        check(client.pread(MIB, number * MIB) == random_bytes(number, MIB), "other data")
    check_equal(daemon.group.kills(), 0, "processes that the kernel killed")
    daemon.check_alive()


main()
