"""Recorded requests: a known pattern is in the trace, and advise makes of it what it makes of the volume."""

import contextlib
import json
import os
import pathlib
import pty
import subprocess
import threading
import time

from harness import *
from harness.http_unix import UnixConnection

SIZE = 64 * MIB
REQUEST = 16 * KIB


def requests_in(path):
    """The requests of a trace, and what its last line says."""
    lines = pathlib.Path(path).read_text().splitlines()
    check_equal(lines[0], "ts_us,op,offset,size", "heading")
    check(lines[-1].startswith("# requests="), f"the last line: {lines[-1]}")
    found = [line.split(",") for line in lines[1:-1]]
    times = [float(line[0]) for line in found]
    check(times == sorted(times), "times go back")
    end = dict(field.split("=") for field in lines[-1][2:].split())
    check_equal(int(end["requests"]), len(found), "requests by the last line")
    return [(op, int(offset), int(size)) for _, op, offset, size in found], end


class Recording:
    """A recording in the background, for a while that is long enough; it ends with the volume."""

    def __init__(self, daemon, path):
        self.daemon, self.path, self.result = daemon, path, None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        wait_for(lambda: pathlib.Path(path).exists(), "the recording")

    def run(self):
        self.result = self.daemon.cli("trace", "v", "--seconds", "3600", "--output", self.path)

    def end(self):
        self.daemon.cli("stop", "v")
        self.thread.join()
        return self.result


@test
def what_clients_ask_is_recorded_and_advise_reads_it(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))
    client = connect(uri)
    client.pread(REQUEST, 0)
    recording = Recording(daemon, box.path("v.csv"))
    around, expected = 8 * MIB, []
    client.pwrite(b"w" * 512, 512)
    client.flush()
    client.zero(8192, 65536)
    client.trim(1 * MIB, 32 * MIB)
    expected += [("W", 512, 512), ("W", 65536, 8192), ("D", 32 * MIB, 1 * MIB)]
    for _ in range(4):
        for at in range(0, around, REQUEST):
            client.pread(REQUEST, at)
            expected.append(("R", at, REQUEST))
    client.shutdown()
    said = recording.end()
    found, end = requests_in(recording.path)
    check_equal(found, expected, "requests")
    check_equal(end["left_out"], "0", "requests left out")
    check(f"{len(expected):,}".replace(",", "") in said.stderr, f"the number is not in: {said.stderr}")
    # Once new, three times again.
    advice = json.loads(daemon.cli("advise", recording.path, "--sizes", "4M,16M", "--json").stdout)
    check_equal((advice["format"], advice["requests"]), ("csv", len(expected)), "the trace")
    shares = [row["reads"]["share"] for row in advice["rows"]]
    check(shares[0] < 0.01 and abs(shares[1] - 0.75) < 0.01, f"shares of a loop: {shares}")


@test
def a_terminal_shows_how_much_time_has_passed(box):
    daemon = box.daemon()
    connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))).shutdown()
    ours, theirs = pty.openpty()
    path = box.path("v.csv")
    command = [os.environ["FOREBAY"], "--socket", daemon.socket, "trace", "v", "--seconds", "2", "--output", path]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # The end of a terminal.
        while more := os.read(ours, 4096):
            said += more
    os.close(ours)
    check_equal(process.wait(), 0, "exit code")
    text = said.decode()
    check("Recording v: 0 of 2 s" in text and "Recording v: 1 of 2 s" in text, f"the progress: {text!r}")
    check("v: 0 requests in 2" in text.rsplit("Recording", 1)[-1], f"the last line: {text!r}")
    requests_in(path)


@test
def it_ends_by_itself_and_says_what_is_wrong(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))
    client = connect(uri)
    begun = time.monotonic()
    # On standard output.
    said = daemon.cli("trace", "v", "--seconds", "1")
    check(time.monotonic() - begun >= 1 and "v: 0 requests" in said.stderr, f"{said.stderr}")
    lines = said.stdout.splitlines()
    check_equal((len(lines), lines[0]), (2, "ts_us,op,offset,size"), "an empty trace")
    recording = Recording(daemon, box.path("v.csv"))
    client.pread(REQUEST, 0)
    client.shutdown()
    kept = box.path("kept")
    pathlib.Path(kept).write_text("kept")
    for arguments, code, word in (
        (("v", "--output", kept), 3, "recorded already"),
        (("w",), 2, "w"),
        (("v", "--seconds", "0"), 2, "--seconds"),
    ):
        said = daemon.cli("trace", *arguments, expect=code).stderr
        check(word in said and len(said.strip().splitlines()) == 1, f"'{word}' is not in: {said}")
    check_equal(pathlib.Path(kept).read_text(), "kept", "a file that nothing was recorded to")
    recording.end()
    check_equal(requests_in(recording.path)[0], [("R", 0, REQUEST)], "requests")
    said = daemon.cli("trace", "v", expect=3).stderr
    check("start it first" in said, said)


@test
def a_reader_that_is_gone_or_slow_holds_nothing_up(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))
    client = connect(uri)
    connection = UnixConnection(daemon.socket)
    connection.request("GET", "/v1/volumes/v/trace?seconds=3600")
    answer = connection.getresponse()
    check_equal((answer.status, answer.getheader("Content-Type")), (200, "text/csv"), "the answer")
    # Nobody reads it: the client goes on, whatever is left out.
    for at in range(0, 32 * MIB, 4 * KIB):
        client.pread(4 * KIB, at % (1 * MIB))
    # Both: the answer has the connection.
    answer.close()
    connection.close()
    # Its end is noticed with the next requests, and another recording can begin.
    def again():
        client.pread(4 * KIB, 0)
        return "recorded already" not in daemon.cli("trace", "v", "--seconds", "1", expect=None).stderr
    wait_for(again, "another recording")


main()
