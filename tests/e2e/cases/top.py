"""top: its numbers are those of show, its screen leaves the terminal as it was, and it waits for the daemon."""

import contextlib
import json
import signal
import time

from harness import *
from harness.http_unix import UnixConnection
from harness.sandbox import environment
from harness.terminal import Terminal

BLOCK = 4096
ESCAPE = "\x1b"
# How a colour of characters is chosen.
COLOUR = b"38;5;"


def volume(box, daemon, name="v", *arguments):
    """A volume whose writeback waits."""
    return daemon.create(name, box.file(f"cache-{name}", 128 * MIB), box.file(f"origin-{name}", 64 * MIB), "--set", "idle=0", *arguments)


def top(daemon, *arguments):
    """The lines of JSON that top prints."""
    return [json.loads(line) for line in daemon.cli("top", "--json", *arguments).stdout.splitlines()]


def counts(report):
    """What grows with the requests of clients, from a report of show."""
    served, size = report["served"], report["bytes"]
    return {
        "reads": served["reads"]["total"], "missed": served["reads"]["origin"], "writes": served["writes"]["total"],
        "read": size["user_read"], "written": size["user_written"], "cold": report["why"]["miss"]["cold"],
        "measured": report["latency"]["write"]["count"], "origin": sum(report["devices"]["origin"]["read"]["latency"]["ranges"]),
    }  # fmt: skip


def counted(interval):
    """The same of an interval of top."""
    seconds, found = interval["seconds"], interval["volumes"][0]
    reads = found["read_iops"] * seconds
    ratio = found["hit_ratio"]
    return {
        "reads": reads, "missed": 0 if ratio is None else (1 - ratio) * reads, "writes": found["write_iops"] * seconds,
        "read": found["read_bytes_per_second"] * seconds, "written": found["write_bytes_per_second"] * seconds,
        "cold": found["miss"]["cold"], "measured": found["latency"]["write"]["count"],
        "origin": found["devices"]["origin"]["read"]["latency"]["count"],
    }  # fmt: skip


@test
def the_numbers_of_an_interval_are_within_those_of_show(box):
    need("fio")
    daemon = box.daemon()
    uri = volume(box, daemon)
    before = counts(daemon.show("v"))
    load = box.start_fio(uri, "--rw=randrw", "--time_based", "--runtime=60")
    while daemon.show("v")["served"]["writes"]["total"] == 0:
        time.sleep(0.05)
    started = counts(daemon.show("v"))
    intervals = top(daemon, "--once", "--interval", "1.5", "v")
    after = daemon.show("v")
    check(load.poll() is None, "the load ended too early")
    check_equal(len(intervals), 1, "the number of lines")
    check_equal([of["name"] for of in intervals[0]["volumes"]], ["v"], "the volumes")
    check(1.5 <= intervals[0]["seconds"] < 60, f"an interval of {intervals[0]['seconds']} s")
    found, ended = counted(intervals[0]), counts(after)
    for name, number in found.items():
        most = ended[name] - started[name]
        check(0 <= number <= most + 0.5, f"{name}: {number} in the interval, {most} around it")
    for name in ("reads", "writes", "read", "written", "measured"):
        check(found[name] > 0, f"there were no {name}")
    check(before["writes"] == 0, "something was written before the load")


@test
def without_requests_there_are_none_and_what_stays_is_as_in_show(box):
    daemon = box.daemon()
    client = connect(volume(box, daemon))
    for block in range(50):
        client.pwrite(b"x" * BLOCK, block * BLOCK)
    found = top(daemon, "--once", "--interval", "0.2")[0]["volumes"][0]
    report = daemon.show("v")
    check_equal(found["dirty_bytes"], report["blocks"]["dirty"] * BLOCK, "dirty bytes")
    check_equal(found["dirty_bytes"], 50 * BLOCK, "dirty bytes")
    for name, expected in (
        ("state", "running"), ("hit_ratio", None), ("iops", 0), ("write_bytes_per_second", 0), ("dirty_bytes_per_second", 0),
        ("deferred_bytes", 0), ("error", None), ("writeback", report["writeback"]),
    ):  # fmt: skip
        check_equal(found[name], expected, name)
    check_equal(found["latency"]["write"]["p99_us"], None, "the latency of no writes")
    table = daemon.cli("top", "--once", "--interval", "0.2").stdout.splitlines()
    check_equal(table[0].split()[:4], ["NAME", "STATE", "HIT", "IOPS"], "the headings")
    check_equal(table[1].split(), ["v", "running", "-", "0", "0", "-", "-", "200K", "0", "waits"], "the row")
    daemon.cli("stop", "--force", "v")
    stopped = top(daemon, "--once", "--interval", "0.2")[0]["volumes"][0]
    check_equal((stopped["state"], stopped["iops"], stopped["dirty_bytes"]), ("stopped", 0, None), "a stopped volume")


@test
def what_top_asks_for_counts_no_blocks(box):
    daemon = box.daemon()
    cache = box.file("cache", 128 * MIB)
    for name in ("a", "b"):
        client = connect(daemon.create(name, cache, box.file(f"origin-{name}", 64 * MIB)))

    def ask(path):
        with contextlib.closing(UnixConnection(daemon.socket)) as connection:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    check_equal(daemon.show("b")["blocks"]["cached"], 0, "cached blocks of the new volume")
    for block in range(16):
        client.pread(BLOCK, block * BLOCK)
    # So long show is content with its last count.
    time.sleep(2.2)
    top(daemon, "--once", "--interval", "0.2")
    blocks = {report["name"]: report["blocks"]["cached"] for report in ask("/v1/reports")["volumes"]}
    check_equal(blocks, {"a": 0, "b": 0}, "cached blocks as last counted")
    check_equal(daemon.show("b")["blocks"]["cached"], 16, "cached blocks as show counts them")
    check_equal(ask("/v1/reports/b")["blocks"]["cached"], 16, "cached blocks afterwards")


@test
def hits_misses_and_their_reasons_are_those_of_the_interval(box):
    daemon = box.daemon()
    client = connect(volume(box, daemon))
    for block in range(64):
        client.pread(BLOCK, 2 * block * BLOCK)
    process = box.spawn(
        *[daemon.binary, "--socket", daemon.socket, "top", "--json", "--interval", "0.3"], stdout=-1, text=True, env=environment()
    )
    first = json.loads(process.stdout.readline())
    check_equal(first["volumes"][0]["miss"]["cold"], 0, "misses before the interval")
    for block in range(96):
        client.pread(BLOCK, 2 * block * BLOCK)
    for block in range(32):
        client.pwrite(b"x" * BLOCK, block * BLOCK)
    # A request that is being counted may have its bytes in the next interval.
    reads = writes = cold = hits = read = written = 0
    while min(reads, read / BLOCK) < 96 or min(writes, written / BLOCK) < 32:
        interval = json.loads(process.stdout.readline())
        found = interval["volumes"][0]
        own = round(found["read_iops"] * interval["seconds"])
        reads, cold = reads + own, cold + found["miss"]["cold"]
        hits += round(own * (found["hit_ratio"] or 0))
        writes += round(found["write_iops"] * interval["seconds"])
        read += round(found["read_bytes_per_second"] * interval["seconds"])
        written += round(found["write_bytes_per_second"] * interval["seconds"])
    check_equal((reads, hits, cold), (96, 64, 32), "reads, hits and cold misses")
    check_equal((writes, read, written), (32, 96 * BLOCK, 32 * BLOCK), "writes, bytes read and written")
    # A volume that is new has done everything since the interval began.
    connect(volume(box, daemon, "w")).pwrite(b"x" * BLOCK, 0)
    writes = 0
    while writes == 0:
        interval = json.loads(process.stdout.readline())
        writes = sum(round(of["write_iops"] * interval["seconds"]) for of in interval["volumes"] if of["name"] == "w")
    check_equal(writes, 1, "writes to the new volume")
    process.stdout.close()
    check_equal(process.wait(60), 0, "how it ended when nobody read it any more")


@test
def the_screen_shows_the_volumes_and_leaves_the_terminal_as_it_was(box):
    daemon = box.daemon()
    client = connect(volume(box, daemon))
    volume(box, daemon, "other")
    client.pwrite(b"x" * BLOCK, 0)
    command = [daemon.binary, "--socket", daemon.socket, "top", "--interval", "0.2"]
    terminal = Terminal(box, *command)
    lines = terminal.wait("2 volumes", ">v ", "other", "q quit")
    check_equal(lines[1].split()[:3], ["NAME", "HIT", "IOPS"], "the headings")
    check(lines[2].endswith("waits") and "4K" in lines[2], lines[2])
    terminal.send("?")
    terminal.wait("Keys", "Ctrl-C")
    terminal.send("x")
    terminal.wait("q quit  ? keys  Enter")
    terminal.send("n\x1b[B")
    terminal.wait(">v ", " other", "by name")
    terminal.send("\r")
    terminal.wait("LATENCIES OF READS", "CACHE DEVICE", "now", "writeback, s3-fifo")
    terminal.send("\t")
    terminal.wait("LATENCIES OF WRITES")
    terminal.send(ESCAPE)
    terminal.wait("2 volumes", ">v ")
    daemon.cli("delete", "--force", "other")
    lines = terminal.wait("1 volumes", ">v ")
    check(not any("other" in line for line in lines), "a volume that was deleted is still there")
    terminal.send("q")
    terminal.check_restored(0)
    check(COLOUR in terminal.seen, "there were no colours")
    terminal = Terminal(box, *command, "v", NO_COLOR="1")
    terminal.wait("LATENCIES OF READS")
    terminal.send("\x03")
    terminal.check_restored(0)
    check(COLOUR not in terminal.seen, "there were colours")


@test
def signals_leave_the_terminal_as_it_was(box):
    daemon = box.daemon()
    volume(box, daemon)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        terminal = Terminal(box, daemon.binary, "--socket", daemon.socket, "top", "--no-color")
        terminal.wait(">v ")
        terminal.process.send_signal(number)
        terminal.check_restored(-number)
        check(COLOUR not in terminal.seen, "there were colours")


@test
def it_waits_for_a_daemon_that_is_started_again(box):
    daemon = box.daemon()
    uri = volume(box, daemon)
    connect(uri).pwrite(b"x" * BLOCK, 0)
    lines = box.spawn(
        *[daemon.binary, "--socket", daemon.socket, "top", "--json", "--interval", "0.2"], stdout=-1, stderr=-1, text=True,
        env=environment(),
    )  # fmt: skip
    terminal = Terminal(box, daemon.binary, "--socket", daemon.socket, "top", "--interval", "0.2")
    terminal.wait(">v ")
    json.loads(lines.stdout.readline())
    daemon.kill()
    terminal.wait("waiting for the daemon for", "no daemon answers")
    check("waiting for the daemon" in lines.stderr.readline(), "no word about the daemon beside JSON")
    daemon.start()
    started = time.time()
    terminal.wait("q quit", ">v ")
    # An interval needs two answers of the new daemon: reads before the first of them belong to none.
    while json.loads(lines.stdout.readline())["time"] < started:
        pass
    client = connect(daemon.uri("v"))
    for _ in range(32):
        client.pread(BLOCK, 0)
    reads = 0
    while reads < 32:
        interval = json.loads(lines.stdout.readline())
        reads += round(interval["volumes"][0]["read_iops"] * interval["seconds"])
    check_equal(reads, 32, "reads after the restart")
    terminal.send("q")
    terminal.check_restored(0)
    done = daemon.cli("top", "--once", "nothing", expect=2)
    check("nothing" in done.stderr, done.stderr)


@test
def what_is_no_terminal_gets_a_sentence_that_says_what_to_use(box):
    daemon = box.daemon()
    check("--once" in daemon.cli("top", expect=2).stderr, "no advice without a terminal")
    terminal = Terminal(box, daemon.binary, "--socket", daemon.socket, "top", TERM="dumb")
    terminal.wait("--once")
    check_equal(terminal.process.wait(60), 2, "how it ended on a dumb terminal")
    check_equal(daemon.cli("top", "--once", "--interval", "0.1").stdout.split()[:2], ["NAME", "STATE"], "an empty table")
    for wrong in ("0", "x", "1e9", "-1", "inf", "nan"):
        check("interval" in daemon.cli("top", "--once", "--interval", wrong, expect=2).stderr, wrong)


@test
def a_watched_volume_is_shown_in_place_or_in_blocks(box):
    daemon = box.daemon()
    client = connect(volume(box, daemon))
    process = box.spawn(
        *[daemon.binary, "--socket", daemon.socket, "show", "v", "--watch=0.2"], stdout=-1, text=True, env=environment()
    )
    blocks = [[]]
    while len(blocks) < 4:
        line = process.stdout.readline().rstrip("\n")
        # There are empty lines within the report as well.
        if line.startswith("volume") and blocks[-1]:
            check_equal(blocks[-1].pop(), "", "the line between two blocks")
            blocks.append([])
        blocks[-1].append(line)
    check_equal(blocks[1], daemon.cli("show", "v").stdout.splitlines(), "a block")
    process.stdout.close()
    check_equal(process.wait(60), 0, "how it ended when nobody read it any more")
    terminal = Terminal(box, daemon.binary, "--socket", daemon.socket, "show", "v", "--watch=0.2")
    terminal.wait("volume      v", "0 dirty", "every 0.2 s")
    client.pwrite(b"x" * BLOCK, 0)
    terminal.wait("volume      v", "1 dirty (4K)")
    terminal.send("\x1b[F")
    last = daemon.cli("show", "v").stdout.splitlines()[-1]
    terminal.wait(last)
    terminal.send("q")
    terminal.check_restored(0)
    done = daemon.cli("show", "nothing", "--watch", expect=2)
    check("nothing" in done.stderr, done.stderr)


main()
