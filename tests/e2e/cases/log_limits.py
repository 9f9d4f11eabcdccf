"""The log of a daemon whose disks fail: a few lines, and a line that counts the others."""

import contextlib
import re

from harness import *
from harness.http_unix import UnixConnection

SUMMARY = re.compile(r"(\d+) similar messages were left out: (.*)")


def left_out(daemon):
    """How many messages the metrics say are not in the log."""
    connection = UnixConnection(daemon.socket)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return int(re.search(r"^forebay_log_messages_left_out_total (\d+)$", text, re.M)[1])


def summaries(daemon):
    """The lines that count what was left out: numbers and beginnings of messages."""
    return [(int(count), said) for count, said in SUMMARY.findall(daemon.log())]


def about(daemon, text):
    """The lines of the log with a text, without those that count."""
    return [line for line in daemon.log().splitlines() if text in line and not SUMMARY.search(line)]


@test
def a_disk_that_fails_every_read_does_not_fill_the_log(box):
    daemon = box.daemon()
    bad, other = Disk(box, "bad", 64 * MIB), Disk(box, "other", 64 * MIB)
    clients = {}
    for name, disk in ("v", bad), ("w", other):
        clients[name] = Client(daemon.create(name, box.file(f"cache-{name}", 64 * MIB), disk.name))
        disk.faults("fail read")
    reads = 2000
    failed = sum(attempt(clients["v"].read, block * BLOCK) is not None for block in range(reads))
    check_equal(failed, reads, "reads that fail")
    for block in range(3):
        check(attempt(clients["w"].read, block * BLOCK), "a read succeeds")
    lines = about(daemon, "cannot be read")
    # Of the other volume all, of this one a few from each place in the program.
    others = [line for line in lines if 'volume="w"' in line]
    check(len(others) >= 3, f"the lines about the other volume: {others}")
    check(10 <= len(lines) - len(others) <= 40, f"{len(lines) - len(others)} lines about {reads} errors")
    before = left_out(daemon)
    check(before >= reads - 40, f"{before} messages are left out")
    wait_for(lambda: sum(count for count, _ in summaries(daemon)) == left_out(daemon), "all are counted in the log", 60)
    counts = summaries(daemon)
    check(len(counts) <= 4, f"the lines that count: {counts}")
    check(all('volume="v"' in said and "cannot be read" in said for _, said in counts), f"they say {counts}")
    # The message itself is as readable as ever, and what comes later as well.
    check(bad.path in lines[0], f"the first line: {lines[0]}")
    size = len(daemon.log())
    check(size < 64 * KIB, f"the log has {size} bytes")


@test
def what_is_left_out_is_counted_when_the_daemon_ends(box):
    daemon = box.daemon()
    bad = Disk(box, "bad", 64 * MIB)
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), bad.name))
    bad.faults("fail read")
    for block in range(100):
        attempt(client.read, block * BLOCK)
    bad.heal()
    missing = left_out(daemon)
    check(missing >= 60, f"{missing} messages are left out")
    daemon.terminate()
    check_equal(sum(count for count, _ in summaries(daemon)), missing, "messages that the log counts")


@test
def an_operator_who_asks_for_details_gets_all(box):
    daemon = box.daemon("--log", "debug")
    for number in range(30):
        connection = UnixConnection(daemon.socket)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/volumes", headers={"Host": f"{number}.example"})
            connection.getresponse().read()
    check_equal(len(about(daemon, "was turned down")), 30, "lines of the level debug")


main()
