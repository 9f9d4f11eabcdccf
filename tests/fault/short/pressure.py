"""Another process needs the memory: a RAM tier gives half of its own back, and serves on."""

import os
import pathlib
import subprocess
import time

from harness import *

LIMIT = 768 * MIB
TIER = 320 * MIB

# Takes memory, then reads more of a file than there is page cache for, again and again.
GREEDY = """
import sys
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
print("holding", flush=True)
while True:
    with open(sys.argv[2], "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
"""


class Confined(Daemon):
    """A daemon in a group with little memory."""

    def __init__(self, box):
        self.group = MemoryGroup(box, LIMIT)
        super().__init__(box)

    def command(self, *arguments):
        return self.group.enter(*super().command(*arguments))

    def rss(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * KIB for line in status.splitlines() if "VmRSS" in line)


@test
def half_of_the_tier_is_given_back(box):
    daemon = Confined(box)
    daemon.start()
    daemon.restart("--memory-limit", "640M")
    uri = daemon.create("v", "none", box.file("origin", GIB), "--ram", "320M")
    client = connect(uri)
    for number in range(64):
        client.pwrite(random_bytes(number, MIB), number * MIB)
    for place in range(0, TIER + 32 * MIB, MIB):
        client.pread(MIB, place)
    full, before = daemon.show("v")["ram"], daemon.rss()
    check(full["used"] > TIER // 10 * 9, f"the tier is not full: {full}")
    ballast = box.file("ballast", 512 * MIB)
    with open(ballast, "wb") as file:
        for _ in range(512):
            file.write(random_bytes(1, MIB))
        file.flush()
        os.fsync(file.fileno())
        # So that it enters the page cache of the group.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    held = LIMIT - before - 96 * MIB
    greedy = subprocess.Popen(
        daemon.group.enter("python3", "-c", GREEDY, str(held), ballast), stdout=subprocess.PIPE
    )
    box.at_end(greedy.kill)
    greedy.stdout.readline()
    since = time.monotonic()
    while daemon.show("v")["ram"]["used"] > full["used"] // 2:
        check(time.monotonic() < since + 60, f"nothing is given back: {daemon.show('v')['ram']}")
        time.sleep(0.1)
    took = time.monotonic() - since
    after = daemon.rss()
    check(before - after > TIER // 10 * 4, f"{before} bytes of RAM before and {after} after")
    print(f"{(before - after) // MIB} MiB after {took:.1f} s")
    for number in range(64):
        check(client.pread(MIB, number * MIB) == random_bytes(number, MIB), "other data")
    check_equal(daemon.group.kills(), 0, "processes that the kernel killed")
    daemon.check_alive()


main()
