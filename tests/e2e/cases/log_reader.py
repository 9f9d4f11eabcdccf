"""The reader of the daemon's log takes nothing: requests, commands, a hand-over and the end go on, and the log says later what is missing."""

import contextlib
import fcntl
import os
import re
import threading

from harness import *
from harness.http_unix import UnixConnection

MISSING = re.compile(r"(\d+) lines are missing here")
F_SETPIPE_SZ = 1031
# More than the pipe and the daemon keep.
LINES = 2500


class Log:
    """A pipe in the place of the log, which is read when a test says so."""

    def __init__(self, box):
        self.box, self.path, self.bytes, self.reading = box, box.path("fifo"), b"", threading.Event()
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self.fd, F_SETPIPE_SZ, 4096)
        os.set_blocking(self.fd, True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            self.reading.wait()
            part = os.read(self.fd, 4096)
            if not part:
                return
            self.bytes += part

    def text(self):
        return self.bytes.decode(errors="replace")

    def daemon(self, *arguments):
        """A daemon that logs so much that the pipe is full at once."""
        daemon = Daemon(self.box)
        daemon.log_path = self.path
        notify = daemon.launch("--log", "debug", *arguments)
        daemon.log_path = self.box.path("unused.log")
        daemon.wait_ready(notify)
        return daemon


def dropped(daemon):
    """How many lines the metrics say are missing."""
    connection = UnixConnection(daemon.socket)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.search(r"^forebay_log_lines_dropped_total (\d+)$", text, re.M)
    return int(found[1]) if found else None


def busy(box, daemon):
    """A volume whose origin fails, and requests that are logged by the lanes, until lines are dropped."""
    disk = Disk(box, "origin", 64 * MIB)
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), disk.name))
    check_equal(attempt(client.write, b"\x11" * BLOCK, 0), None, "a write")
    disk.faults("fail read")
    for block in range(1, 30):
        check(attempt(client.read, block * BLOCK) is not None, "a read of a disk that fails succeeds")
    # At the level debug each of these is a line.
    for _ in range(LINES):
        connection = UnixConnection(daemon.socket)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/volumes", headers={"Host": "foreign.example"})
            check_equal(connection.getresponse().status, 403, "the status")
    check(dropped(daemon), "no line was dropped")
    disk.faults("")
    check_equal(attempt(client.read, BLOCK), None, "a read after the failure")
    return client


@test
def requests_commands_and_the_end_wait_for_no_reader(box):
    log = Log(box)
    daemon = log.daemon()
    client = busy(box, daemon)
    daemon.cli("set", "v", "idle=0")
    daemon.cli("flush", "v")
    check_equal(bytes(client.read(0))[:BLOCK], b"\x11" * BLOCK, "what was written")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")


@test
def what_is_missing_is_said_where_it_is_missing(box):
    log = Log(box)
    daemon = log.daemon()
    busy(box, daemon)
    log.reading.set()
    wait_for(lambda: MISSING.search(log.text()), "the log says that lines are missing")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")
    wait_for(lambda: "stopped cleanly" in log.text(), "the last line")
    counts = [int(count) for count in MISSING.findall(log.text())]
    check(counts and counts[0] > 0, f"the counts: {counts}")
    check_equal(sum("stopped cleanly" in line for line in log.text().splitlines()[-3:]), 1, "the end of the log")


@test
def a_hand_over_goes_on_and_the_next_program_says_what_the_last_one_could_not(box):
    log = Log(box)
    daemon = log.daemon()
    client = busy(box, daemon)
    before = dropped(daemon)
    daemon.cli("daemon", "--take-over")
    check_equal(bytes(client.read(0))[:BLOCK], b"\x11" * BLOCK, "what was written")
    check(dropped(daemon) >= before, "the count of the program before is lost")
    log.reading.set()
    wait_for(lambda: MISSING.search(log.text()), "the log says that lines are missing")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")


main()
