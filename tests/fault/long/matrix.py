"""The cache device, the origin and both are taken away under load, in every order and mode.

What each block may hold is known all the time: reads are judged while devices are away, after they are
back, and after a restart or a crash.
"""

import itertools
import os
import time

from harness import *

SIZE = 16 * MIB
BLOCKS = 2048
MODES = ("wb", "wt", "wa", "wo", "pt")
# What is taken away, one after the other.
ORDERS = (("cache",), ("origin",), ("cache", "origin"), ("origin", "cache"), ("cache+origin",))
FAULTS = ("gone", "fail", "fail write,sync")
# What happens then: the devices come back while the daemon runs, or it is killed before that or after.
ENDS = ("live", "killed away", "killed back")
# Failures that are printed of each mode.
SHOWN = int(os.environ.get("FOREBAY_FAULT_SHOWN", "4"))


class Cell:
    """One case of the matrix."""

    def __init__(self, box, number, mode, seed):
        self.daemon = box.daemon(name=f"d{number}")
        self.disks = {
            "cache": Disk(box, f"{number}.cache", 32 * MIB),
            "origin": Disk(box, f"{number}.origin", SIZE),
        }
        settings = ("--set", "idle=100ms", "--set", "commit_interval=100ms")
        self.mode = mode
        uri = self.daemon.create("v", self.disks["cache"].name, self.disks["origin"].name, "--mode", mode, *settings)
        self.recorder = Survivor(uri, connections=2, blocks=BLOCKS, seed=seed)

    def load(self, writes=150):
        """Some writes and a flush that may fail."""
        recorder = self.recorder
        recorder.write(writes)
        flushed = recorder.try_flush()
        recorder.settle()
        return flushed

    def take(self, what, fault):
        for name in what.split("+"):
            self.disks[name].faults(*fault.split("\n"))

    def heal(self):
        for disk in self.disks.values():
            disk.heal()

    def crash(self):
        self.recorder.forget()
        self.daemon.kill()

    def serve_again(self):
        """Has the volume served after everything is back; gives its URI."""
        self.daemon.start()
        if self.daemon.show("v")["state"] != "running":
            # It may have to be told which of its devices wins: nothing that was promised may be lost.
            done = verb(self.daemon, "start", "v")
            if done.returncode == 4:
                done = verb(self.daemon, "start", "--force", "v")
            check_equal(done.returncode, 0, f"the exit code of start ({done.stderr.strip()})")
        uri = self.daemon.uri("v")
        if not self.recorder.clients:
            self.recorder.reconnect(uri)
        return uri


def judge(cell, order, fault, end):
    recorder, daemon = cell.recorder, cell.daemon
    for _ in range(3):
        check(cell.load(), "a flush failed before anything did")
    for what in order:
        cell.take(what, fault)
        cell.load(100)
        away = recorder.check_reads(daemon.uri("v"), may_fail=True)
        needs_cache = cell.mode in ("wb", "wo")
        if order == ("cache",) and not needs_cache:
            check_equal((away, recorder.errors), (0, 0), "reads and requests that failed without a cache")
    if end == "killed away":
        cell.crash()
        cell.heal()
    elif end == "killed back":
        cell.heal()
        cell.crash()
    else:
        cell.heal()
        # A failed device may have to be started anew to be trusted again.
        recorder.check_reads(daemon.uri("v"), may_fail=True)
        recorder.forget()
        verb(daemon, "stop", "--force", "v")
        daemon.kill()
    uri = cell.serve_again()
    recorder.verify(uri)
    recorder.errors = 0
    check(cell.load(), "a flush fails although everything is back")
    check_equal(recorder.errors, 0, "errors after everything is back")
    done = verb(daemon, "delete", "--force", "v")
    check_equal(done.returncode, 0, f"the exit code of delete ({done.stderr.strip()})")
    with open(cell.disks["origin"].path, "rb") as file:
        for block in range(BLOCKS):
            version = read_stamp(file.read(BLOCK), block, recorder.seed)
            check_equal(version, recorder.acked[block], f"the version of block {block} on the origin")


def cells():
    every = list(itertools.product(MODES, ORDERS, FAULTS, ENDS))
    count = int(os.environ.get("FOREBAY_FAULT_CELLS", len(every)))
    step = max(1, len(every) // count)
    return every[:: step + (step % 3 == 0)] if count < len(every) else every


def matrix(box, mode):
    failures, count, began = [], 0, time.monotonic()
    for number, (of, order, fault, end) in enumerate(cells()):
        if of != mode:
            continue
        cell = Cell(box, number, mode, seed=number)
        count += 1
        try:
            judge(cell, order, fault, end)
        except Exception as error:
            failures.append(f"[{', '.join(order)}: '{fault}', {end}] {error}")
        if cell.daemon.is_alive():
            cell.daemon.kill()
        for disk in cell.disks.values():
            os.unlink(disk.path)
    check(count > 0, "no case was run")
    text = "; ".join(failures[:SHOWN])
    check(not failures, f"{len(failures)} of {count} cases of {mode} fail, the first of them: {text}")
    print(f"     {count} cases in {time.monotonic() - began:.0f} s")


@test
def writeback(box):
    matrix(box, "wb")


@test
def writethrough(box):
    matrix(box, "wt")


@test
def writearound(box):
    matrix(box, "wa")


@test
def writeonly(box):
    matrix(box, "wo")


@test
def passthrough(box):
    matrix(box, "pt")


main()
