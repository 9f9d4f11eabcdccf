"""Events: what happened is told, survives the daemon, and stays small."""

import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import threading
import time

from harness import *
from harness.http_unix import UnixConnection


def events(daemon, *arguments):
    """The events as the command prints them."""
    lines = daemon.cli("events", "--json", *arguments).stdout.splitlines()
    return [json.loads(line) for line in lines]


def kinds(daemon, *arguments):
    return [event["kind"] for event in events(daemon, *arguments)]


def on_disk(daemon):
    """The events in the state directory."""
    path = pathlib.Path(daemon.state) / "events.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def written(daemon):
    """Waits until every event that the daemon shows is in the state directory; gives their number."""
    last = events(daemon, "--limit", "1")[0]["id"]
    wait_for(lambda: any(f'"id":{last},' in line for line in on_disk(daemon)), "the events are written")
    return last


class Follower:
    """A command that follows the events."""

    def __init__(self, box, daemon, *arguments):
        command = [daemon.binary, "--socket", daemon.socket, "events", "--follow", "--json", *arguments]
        self.process = box.spawn(*command, stdout=subprocess.PIPE, text=True)
        self.events = []
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def kinds(self):
        return [event["kind"] for event in self.events]

    def wait(self, kind):
        wait_for(lambda: kind in self.kinds(), f"{kind} is followed; there are {self.kinds()}")


@test
def commands_tell_what_they_did(box):
    daemon = box.daemon()
    origin, cache = box.file("origin", 16 * MIB), box.file("cache", 64 * MIB)
    uri = daemon.create("v", cache, origin)
    daemon.cli("set", "v", "dirty_high=55", "idle=0")
    connect(uri).pwrite(b"\x07" * 8192, 0)
    daemon.cli("flush", "v")
    daemon.cli("set", "v", "mode=wt")
    daemon.cli("pin", "v", "0+1M")
    daemon.cli("unpin", "v", "--all")
    daemon.cli("stop", "v")
    daemon.cli("start", "v")
    daemon.cli("memory", "--limit", "700M")
    daemon.cli("delete", "v")
    found = events(daemon)
    check_equal(
        [event["kind"] for event in found],
        [
            "daemon-started", "created", "setting-changed", "setting-changed", "drained", "mode-switched", "pinned",
            "unpinned", "stopped", "started", "memory-limit-changed", "deleted",
        ],
        "the kinds of events",
    )  # fmt: skip
    check_equal(found[0]["fields"]["after"], "nothing", "how the daemon before the first ended")
    changed = {event["fields"].pop("setting"): event["fields"] for event in found[2:4]}
    check_equal(changed["dirty_high"]["to"], "55", "the new value of a setting")
    check(changed["dirty_high"]["from"] not in ("55", ""), f"the old value is {changed}")
    check_equal(found[4]["fields"], {"bytes": 8192}, "what was drained")
    check_equal(found[5]["fields"], {"from": "writeback", "to": "writethrough"}, "the modes")
    check_equal(found[1]["fields"]["origin"], origin, "the origin of the volume that was created")
    check(found[0]["id"] < found[1]["id"] and found[1]["time"].endswith("Z"), f"{found[1]}")
    text = daemon.cli("events").stdout.splitlines()
    check_equal(len(text), len(found), "the lines of text")
    check("mode-switched" in text[5] and "writethrough" in text[5], f"the text says {text[5]}")
    # What is asked for.
    check_equal(kinds(daemon, "v", "--kind", "stopped,started"), ["stopped", "started"], "by kind")
    check_equal(kinds(daemon, "other"), [], "of a volume that never was")
    check_equal(kinds(daemon, "--limit", "1"), ["deleted"], "the last one")
    check_equal(kinds(daemon, "--since", found[10]["time"]), ["memory-limit-changed", "deleted"], "since a time")
    check_equal(len(events(daemon, "--since", "1h")), len(found), "since an hour ago")
    # Counted as well.
    connection = UnixConnection(daemon.socket)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
    check('forebay_events_total{kind="setting-changed"} 2\n' in metrics, "the metrics do not count the events")


@test
def devices_that_fail_and_come_back_are_told(box):
    daemon = box.daemon()
    origin = Disk(box, "origin", 64 * MIB)
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin.name, "--set", "idle=0", "--set", "dirty_age=0")
    client = Client(uri)
    client.write_blocks(0, 100)
    origin.faults("fail")
    verb(daemon, "flush", "v")
    wait_for(lambda: "degraded" in kinds(daemon, "v"), "it is told that the volume is degraded")
    degraded = events(daemon, "v", "--kind", "degraded")[0]
    check_equal((degraded["device"], degraded["fields"]["cause"]), (origin.name, "origin-failed"), "what failed")
    check_equal(degraded["severity"], "warning", "the severity")
    check("operation-failed" in kinds(daemon, "v"), "it is not told that the flush failed")
    origin.heal()
    verb(daemon, "flush", "v")
    wait_for(lambda: "recovered" in kinds(daemon, "v"), "it is told that the volume has recovered")
    origin.faults("hang read,write,sync")
    client.start_write(b"\x01" * 4096, 0)
    daemon.cli("set", "v", "dirty_age=100ms")
    wait_for(lambda: "slow-device" in kinds(daemon, "v"), "it is told that the origin does not answer", 60)
    slow = events(daemon, "v", "--kind", "slow-device")[0]
    check_equal(slow["device"], origin.name, "the device that is slow")
    origin.heal()
    wait_for(lambda: kinds(daemon, "v").count("recovered") == 2, "it has recovered again")


@test
def a_single_error_is_told(box):
    daemon = box.daemon()
    origin = Disk(box, "origin", 64 * MIB)
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), origin.name))
    daemon.cli("show", "v")
    # Looked at once without an error.
    time.sleep(2)
    origin.faults("fail read 1M..1028K")
    check(attempt(client.read, MIB), "the read succeeds")
    check_equal(attempt(client.read, 8 * MIB), None, "a read elsewhere")
    wait_for(lambda: "degraded" in kinds(daemon, "v"), "the error is told")
    wait_for(lambda: "recovered" in kinds(daemon, "v"), "it is told that nothing fails any more")


@test
def lost_data_is_told_with_its_size(box):
    daemon = box.daemon()
    cache, origin = Disk(box, "cache", 64 * MIB), box.file("origin", 16 * MIB)
    uri = daemon.create("v", cache.name, origin, "--set", "idle=0", "--set", "dirty_age=0", "--set", "writeback_running=off")
    client = Client(uri)
    client.write_blocks(0, 100)
    client.flush()
    daemon.restart()
    client = Client(daemon.uri("v"))
    cache.faults("fail read")
    for block in range(4):
        attempt(client.read, block * BLOCK)
    wait_for(lambda: "data-lost" in kinds(daemon, "v"), "it is told that data is lost")
    lost = events(daemon, "v", "--kind", "data-lost")[0]
    check(lost["fields"]["bytes"] >= BLOCK and lost["severity"] == "error", f"{lost}")


@test
def events_survive_kills_and_a_torn_line(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    connect(uri).pwrite(b"\x07" * 8192, 0)
    for round in range(3):
        daemon.cli("set", "v", f"dirty_high={60 + round}")
        last = written(daemon)
        before = events(daemon)
        daemon.kill()
        if round == 1:
            with open(pathlib.Path(daemon.state) / "events.jsonl", "ab") as file:
                file.write(b'{"id":9999999999999999,"time":"20')
        daemon.start()
        after = events(daemon)
        check_equal(after[: len(before)], before, "the events of before")
        new = after[len(before) :]
        check_equal([event["kind"] for event in new], ["daemon-started", "recovered-after-crash", "started"], "new events")
        check_equal(new[0]["fields"]["after"], "crash", "how the daemon before it ended")
        check(all(event["id"] > last for event in new), f"the numbers of {new} are not above {last}")
    daemon.restart()
    check_equal(
        kinds(daemon)[-3:], ["daemon-stopped", "daemon-started", "started"], "the events of an orderly restart"
    )
    check_equal(events(daemon, "--kind", "daemon-started")[-1]["fields"]["after"], "stop", "how it ended")


@test
def a_hand_over_is_told_and_followers_go_on(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    follower = Follower(box, daemon)
    follower.wait("created")
    daemon.cli("set", "v", "dirty_high=61")
    follower.wait("setting-changed")
    daemon.cli("daemon", "--take-over")
    wait_for(lambda: json.loads(daemon.cli("list", "--json").stdout)["volumes"][0]["state"] == "running", "it runs")
    follower.wait("handed-over")
    handed = [event for event in follower.events if event["kind"] == "handed-over"][0]
    check(handed["fields"]["from"] == handed["fields"]["to"] != "unknown", f"the versions in {handed}")
    daemon.cli("stop", "v")
    follower.wait("stopped")
    daemon.kill()
    daemon.start()
    wait_for(lambda: follower.kinds().count("daemon-started") == 2, "the next daemon is followed too")
    ids = [event["id"] for event in follower.events]
    check_equal(ids, [event["id"] for event in events(daemon)], "what was followed: each once, in order")


@test
def a_follower_gets_what_it_asked_for_and_ends_with_its_reader(box):
    daemon = box.daemon()
    for name in "v", "w":
        daemon.create(name, "ram:64M", box.file(name, 16 * MIB))
    follower = Follower(box, daemon, "w", "--kind", "setting-changed")
    daemon.cli("set", "v", "dirty_high=61")
    daemon.cli("set", "w", "dirty_high=62")
    follower.wait("setting-changed")
    check_equal([event["volume"] for event in follower.events], ["w"], "the volumes of the events")
    # As a browser does it.
    connection = UnixConnection(daemon.socket)
    with contextlib.closing(connection):
        first = events(daemon)[0]["id"]
        connection.request("GET", "/v1/events", headers={"Accept": "text/event-stream", "Last-Event-ID": str(first)})
        answer = connection.getresponse()
        check_equal(answer.getheader("Content-Type"), "text/event-stream", "the type")
        lines = [answer.readline().decode() for _ in range(5)]
    check_equal(lines[0], "retry: 1000\n", "the first line")
    check(lines[2].startswith("id: ") and lines[3].startswith('data: {"id"'), f"the lines are {lines}")
    check(json.loads(lines[3].removeprefix("data: "))["kind"] == "created", f"the lines are {lines}")
    # A reader that has enough ends the command.
    command = f"{daemon.binary} --socket {daemon.socket} events --follow | head -n 2"
    reader = box.spawn("sh", "-c", command, stdout=subprocess.DEVNULL)

    values = itertools.cycle([63, 64])

    def has_ended():
        # It notices with the next event, which only another value causes.
        daemon.cli("set", "w", f"dirty_high={next(values)}")
        return reader.poll() is not None

    wait_for(has_ended, "the command ends with its reader")


@test
def too_many_followers_are_told_and_places_become_free(box):
    daemon = box.daemon()
    places = []
    for _ in range(8):
        connection = UnixConnection(daemon.socket)
        connection.request("GET", "/v1/events", headers={"Accept": "text/event-stream"})
        check_equal(connection.getresponse().status, 200, "the status")
        places.append(connection)
    done = daemon.cli("events", "--follow", expect=3)
    check("8 clients follow" in done.stderr, f"it says {done.stderr}")
    # Nobody else waits for them.
    check_equal(kinds(daemon), ["daemon-started"], "the events")
    for connection in places:
        connection.close()
        if connection.sock:
            connection.sock.close()

    def is_free():
        connection = UnixConnection(daemon.socket)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/events", headers={"Accept": "text/event-stream"})
            return connection.getresponse().status == 200

    wait_for(is_free, "places of clients that left are free")


@test
def the_file_stays_small_and_the_oldest_go_first(box):
    daemon = box.daemon()
    daemon.create("v", "ram:64M", box.file("origin", 16 * MIB))
    daemon.terminate()
    # As many as fit, and more.
    path = pathlib.Path(daemon.state) / "events.jsonl"
    line = on_disk(daemon)[0]
    event = json.loads(line)
    with open(path, "w") as file:
        for number in range(8000):
            file.write(json.dumps({**event, "id": event["id"] - 8000 + number}) + "\n")
    daemon.start()
    for number in range(10):
        daemon.cli("set", "v", f"dirty_high={60 + number}")
    written(daemon)
    size = sum(path.stat().st_size for path in pathlib.Path(daemon.state).glob("events*"))
    check(path.stat().st_size <= 512 * KIB, f"the file has {path.stat().st_size} bytes")
    check(size <= 3 * MIB, f"the files have {size} bytes")
    found = events(daemon)
    check_equal([event["kind"] for event in found[-10:]], ["setting-changed"] * 10, "the last events")
    check(len(found) < 8000, f"{len(found)} events are kept")


@test
def a_state_directory_that_cannot_take_events_harms_nobody(box):
    daemon = box.daemon()
    uri = daemon.create("v", "ram:64M", box.file("origin", 16 * MIB))
    daemon.terminate()
    path = pathlib.Path(daemon.state) / "events.jsonl"
    path.unlink()
    os.symlink("/dev/full", path)
    daemon.start()
    client = connect(uri)
    for number in range(20):
        daemon.cli("set", "v", f"dirty_high={60 + number}")
        client.pwrite(b"\x01" * 4096, 4096 * number)
    check_equal(kinds(daemon).count("setting-changed"), 20, "events in memory")
    said = [line for line in daemon.log().splitlines() if "events cannot be written" in line]
    check_equal(len(said), 1, "the lines that say so")
    path.unlink()
    wait_for(lambda: len(on_disk(daemon)) >= 22, "they are written when there is room")
    daemon.restart()
    check_equal(kinds(daemon).count("setting-changed"), 20, "events after a restart")


main()
