"""Another program takes over from the daemon: clients stay connected and see a pause, never an error."""

import errno
import fcntl
import http.client
import json
import mmap
import os
import pathlib
import random
import signal
import socket
import subprocess
import threading
import time

from harness import *
from harness.devices import let_go
from harness.data import BLOCK
from harness.faults import Client, Disk, attempt, verb, wait_for
from harness.http_unix import UnixConnection
from harness.wire import free_port

TIMES = 10
PATIENCE = 60
# What a busy machine may add to a pause; the figures in docs/notebook/data-path.md are of a quiet one.
LONGEST = 10


def take_over(daemon):
    said = daemon.cli("daemon", "--take-over").stdout
    check("has taken over" in said, f"it said {said.strip()}")


def state(daemon):
    return request(daemon, "GET", "/v1/daemon")[1]


def hand_overs(daemon):
    """How many programs there were before the present one; `None` as long as that does not serve everything."""
    try:
        now = state(daemon)
    except (OSError, http.client.HTTPException):
        return None
    return now["hand_overs"] if now["ready"] else None


def is_ready(daemon):
    return hand_overs(daemon) is not None


def request(daemon, method, path, body=None):
    connection = UnixConnection(daemon.socket)
    connection.request(method, path, json.dumps(body) if body is not None else None)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


class Reader(threading.Thread):
    """Reads one sector after the other, and notes how long each took."""

    def __init__(self, uri):
        super().__init__(daemon=True)
        self.client, self.times, self.error, self.ended = connect(uri), [], None, False

    def run(self):
        try:
            while not self.ended:
                start = time.monotonic()
                self.client.pread(4096, 4096 * (len(self.times) % 1000))
                self.times.append(time.monotonic() - start)
        except Exception as error:
            self.error = error

    def end(self):
        self.ended = True
        self.join(PATIENCE)
        check(self.error is None, f"a read failed: {self.error}")
        return max(self.times)


@test
def clients_of_nbd_stay_connected(box):
    need("fio")
    daemon = box.daemon("--nbd", box.path("nbd"), "--nbd", f"127.0.0.1:{free_port()}")
    uri = daemon.create("v", box.file("cache", 128 * MIB), box.file("origin", 256 * MIB))
    idle = connect(uri)
    idle.pwrite(b"x" * 4096, 200 * MIB)
    reader = Reader(uri)
    reader.start()
    pid = daemon.process.pid
    load = box.start_fio(
        uri, "--rw=randrw", "--iodepth=16", "--bsrange=512-256k", "--verify=crc32c", "--verify_backlog=64",
        "--verify_fatal=1", "--fsync=32", "--time_based", "--runtime=3600",
    )  # fmt: skip
    for round in range(TIMES):
        time.sleep(0.3)
        take_over(daemon)
        check_equal(state(daemon)["hand_overs"], round + 1, "the number of programs before")
        check(load.poll() is None, "fio has ended")
    check_equal(state(daemon)["pid"], pid, "the process")
    check(reader.end() < LONGEST, f"a read took {max(reader.times):.1f} s")
    check_equal(bytes(idle.pread(4096, 200 * MIB)), b"x" * 4096, "what an idle client had written")
    load.send_signal(signal.SIGTERM)
    load.wait(PATIENCE)
    check("verify" not in daemon.log(), "fio found wrong data")
    # Whoever comes later is served too, and the admin API and an orderly end work as ever.
    check_equal(bytes(connect(uri).pread(4096, 200 * MIB)), b"x" * 4096, "what a new client reads")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check(not os.path.exists(box.path("nbd")), "the socket is left behind")
    daemon.start("--nbd", box.path("nbd"))
    check_equal(bytes(connect(daemon.uri("v")).pread(4096, 200 * MIB)), b"x" * 4096, "after a restart")


@test
def fio_verifies_what_it_wrote_meanwhile(box):
    need("fio")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 256 * MIB))
    load = box.start_fio(
        uri, "--rw=randwrite", "--iodepth=32", "--bs=4k", "--verify=crc32c", "--verify_fatal=1",
        "--do_verify=1", "--loops=3", "--number_ios=30000", size="192m",
    )  # fmt: skip
    times = 0
    while load.poll() is None:
        take_over(daemon)
        times += 1
    check_equal(load.wait(), 0, "the exit code of fio")
    check(times >= 3, f"only {times} hand-overs while fio ran")


@test
def a_request_that_has_come_in_part_is_executed_by_the_next_program(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    address = uri.split("socket=")[1]
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(address)
    handshake(raw, b"v")
    payload = random_bytes("part", 20000 // 512 * 512)
    header = (0x25609513).to_bytes(4, "big") + (0).to_bytes(2, "big") + (1).to_bytes(2, "big")
    header += (7).to_bytes(8, "big") + (4096).to_bytes(8, "big") + len(payload).to_bytes(4, "big")
    for cut in (3, 27, 28, 1000, 9000, 19000):
        raw.sendall((header + payload)[:cut])
        time.sleep(0.1)
        take_over(daemon)
        raw.sendall((header + payload)[cut:])
        answer = receive(raw, 16)
        check_equal(answer, (0x67446698).to_bytes(4, "big") + bytes(4) + (7).to_bytes(8, "big"), f"cut at {cut}")
    check(bytes(connect(uri).pread(len(payload), 4096)) == payload, "the data differs")


def receive(raw, count):
    raw.settimeout(PATIENCE)
    data = b""
    while len(data) < count:
        more = raw.recv(count - len(data))
        check(more, "the daemon has closed the connection")
        data += more
    return data


def handshake(raw, name):
    """Negotiates as a client that wants simple replies."""
    receive(raw, 18)
    raw.sendall((3).to_bytes(4, "big"))
    raw.sendall(b"IHAVEOPT" + (1).to_bytes(4, "big") + len(name).to_bytes(4, "big") + name)
    receive(raw, 10)


@test
def dirty_and_deferred_data_stays(box):
    daemon = box.daemon()
    uri = daemon.create(
        "v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB),
        "--ram", "32M", "--durability", "deferred", "--defer", "1h",
    )  # fmt: skip
    daemon.cli("set", "v", "writeback_running=off")
    client, content = connect(uri), random_bytes("kept", 4 * MIB)
    for start in range(0, len(content), MIB):
        client.pwrite(content[start : start + MIB], start)
    take_over(daemon)
    found = b"".join(bytes(client.pread(MIB, start)) for start in range(0, len(content), MIB))
    check_equal(first_difference(found, content), None, "the first difference")
    check(daemon.dirty("v") >= len(content) // 4096, "dirty blocks became clean by themselves")


@test
def a_program_that_cannot_take_over_is_refused_and_nothing_changes(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    client = connect(uri)
    for program, reason in (("/bin/true", "not a forebay"), ("forebay", "absolute"), ("/nowhere", "cannot take over")):
        status, body = request(daemon, "POST", "/v1/daemon/hand-over", {"program": program})
        check(status >= 400 and reason in body["error"]["message"], f"{program}: {status} {body}")
    bad = daemon.cli("daemon", "--take-over", "--lanes", "2", expect=2).stderr
    check("cannot be used with" in bad, f"it said {bad.strip()}")
    client.pwrite(bytes(4096), 0)
    check_equal(state(daemon)["hand_overs"], 0, "hand-overs")


@test
def a_client_goes_on_with_no_other_volume_of_that_name(box):
    for cache in box.file("cache", 64 * MIB), "ram:32M":
        daemon, gone = box.daemon(name=cache[:3].strip("/")), box.path("gone")
        origin = box.file("origin", 64 * MIB)
        client = connect(daemon.create("v", cache, origin))
        client.pwrite(b"a" * 4096, 0)
        # The origin disappears in the pause, so that the volume does not come back.
        script = f'case "$*" in *--check*|hand-over-version) ;; *) mv {origin} {gone};; esac; exec $FOREBAY "$@"'
        request(daemon, "POST", "/v1/daemon/hand-over", {"program": program(box, "moves", script)})
        wait_for(lambda: hand_overs(daemon) == 1, "the next program is ready")
        check(daemon.show("v")["state"] != "running", "the volume has come back")
        daemon.cli("delete", "--discard-dirty", "v")
        daemon.create("v", box.file("other-cache", 64 * MIB), box.file("other", 64 * MIB))
        refused = attempt(client.pread, 4096, 0)
        check(refused is not None, "the client goes on with another volume of that name")
        check("another one has the name" in daemon.log(), "the log does not say so")
        connect(daemon.uri("v")).pread(4096, 0)
        daemon.terminate()
        os.unlink(gone)


@test
def nothing_is_taken_in_the_pause_for_good(box):
    daemon, cache = box.daemon(), box.file("cache", 64 * MIB)
    client = connect(daemon.create("v", cache, box.file("origin", 64 * MIB)))
    client.pwrite(b"a" * 4096, 0)
    pause, go_on = pathlib.Path(box.path("pause")), pathlib.Path(box.path("go-on"))
    script = f'touch {pause}; while [ ! -e {go_on} ]; do sleep .05; done'
    script = f'case "$*" in *--check*|hand-over-version) ;; *) {script};; esac; exec $FOREBAY "$@"'
    request(daemon, "POST", "/v1/daemon/hand-over", {"program": program(box, "waits", script)})
    wait_for(pause.exists, "the pause")
    # The state stays claimed. A device does not, and is waited for as long as clients wait.
    second = [daemon.binary, "--socket", box.path("second.sock"), "daemon", "--state-dir", daemon.state]
    refused = box.run(*second, "--nbd", box.path("second-nbd.sock"), expect=3).stderr
    check("another daemon uses the state directory" in refused, f"it said {refused.strip()}")
    with open(cache, "rb+") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        go_on.touch()
        wait_for(lambda: hand_overs(daemon) == 1, "the next program is ready")
        check("is in use" in json.dumps(daemon.show("v")["waiting_for"]), f"it shows {daemon.show('v')}")
    check_equal(bytes(client.pread(4096, 0)), b"a" * 4096, "what the client reads")
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")


def program(box, name, script):
    """A program that is a script, with the path of the daemon's program as $FOREBAY."""
    path = pathlib.Path(box.path(name))
    path.write_text(f"#!/bin/sh\nFOREBAY={os.environ['FOREBAY']}\n{script}\n")
    path.chmod(0o755)
    return str(path)


@test
def the_next_program_checks_options_and_state_before_anything_is_closed(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    client = connect(uri)
    state_file = pathlib.Path(daemon.state, "state.json")
    good = state_file.read_text()
    newer = json.loads(good) | {"version": 99}
    # An older program would not know an option, or not read the state.
    older = program(box, "older", 'case "$*" in *--check*) exec $FOREBAY "$@" --of-tomorrow;; esac; exec $FOREBAY "$@"')
    status, body = request(daemon, "POST", "/v1/daemon/hand-over", {"program": older})
    check_equal(status, 409, "the status of a program that does not know an option")
    check("--of-tomorrow" in body["error"]["message"], f"it said {body}")
    state_file.write_text(json.dumps(newer))
    refused = daemon.cli("daemon", "--take-over", expect=3).stderr
    check("has version 99" in refused, f"it said {refused.strip()}")
    state_file.write_text(good)
    silent = program(box, "silent", 'case "$*" in *--check*) sleep 60;; esac; exec $FOREBAY "$@"')
    status, body = request(daemon, "POST", "/v1/daemon/hand-over", {"program": silent})
    check("does not answer" in body["error"]["message"], f"it said {body}")
    client.pwrite(bytes(4096), 0)
    check_equal(state(daemon)["hand_overs"], 0, "hand-overs")
    # A program that was executed by another one asks the next as well.
    take_over(daemon)
    take_over(daemon)
    client.pwrite(bytes(4096), 0)


@test
def a_program_that_fails_after_all_ends_with_a_code_that_restarts_the_service(box):
    unit = pathlib.Path(__file__).resolve().parents[3] / "dist" / "forebay.service"
    [final] = [line.split("=")[1].split() for line in unit.read_text().splitlines() if "RestartPreventExit" in line]
    for name, arguments in ("option", '"$@" --of-tomorrow'), ("lanes", '"$@" --nbd-allow ::1'):
        daemon = box.daemon(name=name)
        daemon.create("v", box.file(f"{name}.cache", 64 * MIB), box.file(f"{name}.origin", 64 * MIB))
        script = f'case "$*" in *--check*|hand-over-version) exec $FOREBAY "$@";; esac; exec $FOREBAY {arguments}'
        request(daemon, "POST", "/v1/daemon/hand-over", {"program": program(box, f"{name}.program", script)})
        code = daemon.process.wait(PATIENCE)
        check(code > 0 and str(code) not in final, f"{name}: it ended with {code}: {daemon.last_line()}")
        daemon.start()
        connect(daemon.uri("v")).pread(4096, 0)


@test
def sighup_hands_over_to_the_program_at_the_same_path(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    client = connect(uri)
    client.pwrite(b"y" * 4096, 0)
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: hand_overs(daemon) == 1, "SIGHUP has an effect")
    check_equal(bytes(client.pread(4096, 0)), b"y" * 4096, "what a client reads afterwards")


@test
def requests_that_come_while_the_daemon_starts_are_one(box):
    daemon, gone = box.daemon(), box.path("gone")
    origin = box.file("origin", 64 * MIB)
    daemon.create("v", box.file("cache", 64 * MIB), origin)
    daemon.terminate()
    os.rename(origin, gone)
    notify = daemon.launch("--device-wait", "1h")
    wait_for(lambda: daemon.cli("list", expect=None).returncode == 0, "the admin API answers")
    for _ in range(100):
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(0.002)
    names = [path.read_text().strip() for path in pathlib.Path(f"/proc/{daemon.process.pid}/task").glob("*/comm")]
    check(names.count("reload") <= 1, f"each has a thread of its own: {names}")
    check_equal(state(daemon)["ready"], False, "whether it is ready without the origin")
    os.rename(gone, origin)
    wait_for(lambda: hand_overs(daemon) == 1 and is_ready(daemon), "the next program is ready")
    notify.close()
    connect(daemon.uri("v")).pread(4096, 0)
    check("SIGHUP" not in daemon.log(), "a request was refused")


@test
def signals_during_a_hand_over_are_neither_fatal_nor_lost(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    client = connect(uri)
    client.pwrite(b"z" * 4096, 0)
    # At every moment of several hand-overs, that of `execve` among them.
    end = time.monotonic() + 4
    while time.monotonic() < end:
        daemon.check_alive()
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(0.0005)
    wait_for(lambda: is_ready(daemon), "the last program is ready")
    check(state(daemon)["hand_overs"] > 1, "there were no hand-overs")
    check_equal(bytes(client.pread(4096, 0)), b"z" * 4096, "what a client reads afterwards")
    client.shutdown()
    rng = random.Random(1)
    for _ in range(TIMES):
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(rng.uniform(0, 0.3))
        code, _ = daemon.terminate()
        check_equal(code, 0, "the exit code after SIGTERM")
        daemon.start()


@test
def nobody_hands_over_beside_a_device_that_hangs(box):
    daemon = box.daemon()
    origin = Disk(box, "origin", 64 * MIB)
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin.name)
    other = connect(daemon.create("w", box.file("other-cache", 64 * MIB), box.file("other", 64 * MIB)))
    origin.faults("hang read")
    waits = Client(uri)
    cookie, _ = waits.start_read(MIB, 4096)
    wait_for(lambda: daemon.show("v")["state"] == "degraded", "the hang is noticed")
    refused = daemon.cli("daemon", "--take-over", expect=3).stderr
    check("has failed or does not answer" in refused, f"it said {refused.strip()}")
    other.pwrite(bytes(4096), 0)
    origin.heal()
    waits.finish(cookie, "the read")
    wait_for(lambda: daemon.show("v")["state"] == "running", "the device answers")
    take_over(daemon)
    other.pread(4096, 0)


@test
def nobody_hands_over_while_a_deleted_volume_still_waits_for_its_origin(box):
    daemon, disk = box.daemon(), Disk(box, "origin", 64 * MIB)
    waits = Client(daemon.create("v", box.file("cache", 64 * MIB), disk.name))
    other = connect(daemon.create("w", box.file("other-cache", 64 * MIB), box.file("other", 64 * MIB)))
    disk.faults("hang read")
    waits.start_read(MIB, 4096)
    wait_for(lambda: 'rule="hang read"' in daemon.log(), "the origin hangs")
    daemon.cli("delete", "--force", "--discard-dirty", "v")
    refused = daemon.cli("daemon", "--take-over", expect=3).stderr
    check("still waits for a device" in refused, f"it said {refused.strip()}")
    other.pwrite(b"w" * 4096, 0)
    disk.heal()
    wait_for(lambda: verb(daemon, "daemon", "--take-over").returncode == 0, "it is taken over")
    check_equal(bytes(other.pread(4096, 0)), b"w" * 4096, "what the other client reads")


def in_ram(box, name, place):
    """A volume with 500 blocks that only RAM has, its disk, and a client."""
    disk = Disk(box, f"{name}.origin", 16 * MIB)
    daemon = box.daemon(name=name)
    arguments = {
        "deferred": ("none", "--ram", "32M", "--durability", "deferred", "--set", "write_down=infinite"),
        "cache": ("ram:32M", "--set", "writeback_running=off"),
    }
    cache, *settings = arguments[place]
    client = Client(daemon.create("v", cache, disk.name, *settings))
    check_equal(client.write_blocks(0, 500), 500, "writes that were acknowledged")
    return daemon, disk, client


@test
def nothing_is_handed_over_while_an_origin_does_not_take_what_only_ram_has(box):
    for place in "deferred", "cache":
        for rule, reason in ("fail write", "write"), ("hang write", "has taken nothing for"):
            daemon, disk, client = in_ram(box, f"{place}-{rule.split()[0]}", place)
            disk.faults(rule)
            refused = daemon.cli("daemon", "--take-over", expect=3).stderr
            check("nothing is handed over" in refused and reason in refused, f"{place}, {rule}: {refused.strip()}")
            # Everything is served as before.
            check_equal(client.write_blocks(500, 100), 100, f"{place}, {rule}: writes afterwards")
            if place == "deferred":
                check(daemon.show("v")["ram"]["deferred"] >= 100 * BLOCK, "writes are not deferred any more")
            disk.heal()
            wait_for(lambda: attempt(client.flush) is None, "a flush succeeds")
            daemon.cli("flush", "v")
            wait_for(lambda: daemon.show("v")["state"] == "running", "the device answers")
            client.write_blocks(0, 10)
            take_over(daemon)
            for block in range(600):
                client.check_block(block, 1)
            check_equal(attempt(client.flush), None, f"{place}, {rule}: a flush afterwards")


@test
def a_hand_over_writes_down_what_clients_write_meanwhile(box):
    for place in "deferred", "cache":
        daemon, disk, client = in_ram(box, place, place)
        disk.faults("delay 300ms write")
        command = [daemon.binary, "--socket", daemon.socket, "daemon", "--take-over"]
        process, version = box.spawn(*command, stdout=subprocess.DEVNULL), 1
        while process.poll() is None:
            version += 1
            client.write_blocks(0, 500, version)
        check_equal(process.returncode, 0, "the exit code of the hand-over")
        for block in range(500):
            client.check_block(block, version)


@test
def clients_of_a_volume_that_does_not_end_in_order_are_cut_off_and_no_others(box):
    disk = Disk(box, "origin", 64 * MIB)
    daemon = box.daemon()
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), disk.name, "--mode", "wt"))
    other = connect(daemon.create("w", box.file("other-cache", 64 * MIB), box.file("other", 64 * MIB)))
    # On the origin, and not durable there: the stop has to sync it, and fails.
    client.pwrite(b"v" * 4096, 0)
    other.pwrite(b"w" * 4096, 0)
    disk.faults("fail sync")
    take_over(daemon)
    check("its clients are cut off" in daemon.log(), "the log does not say so")
    check(attempt(client.pread, 4096, 0) is not None, "the client goes on as if nothing had happened")
    check_equal(bytes(other.pread(4096, 0)), b"w" * 4096, "what the other client reads")
    disk.heal()
    verb(daemon, "start", "v")
    check_equal(bytes(connect(daemon.uri("v")).pread(4096, 0)), b"v" * 4096, "what a new client reads")


@test
def users_of_the_device_of_such_a_volume_get_errors(box):
    if os.geteuid() != 0:
        skip("block devices take root")
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(path):
            skip(f"there is no {path}")
    daemon, disk = box.daemon(), Disk(box, "origin", 64 * MIB)
    arguments = ("--mode", "wt", "--export", "nbd,fuse")
    made = daemon.create_run("v", box.file("cache", 64 * MIB), disk.name, *arguments, expect=None)
    if "CAP_SYS_ADMIN" in made.stderr or "modprobe" in made.stderr:
        skip(made.stderr.strip())
    check_equal(made.returncode, 0, f"create: {made.stderr.strip()}")
    device = os.open(made.stdout.strip(), os.O_RDONLY | os.O_DIRECT)
    box.at_end(os.close, device)
    connect(daemon.uri("v")).pwrite(b"v" * 4096, 0)
    disk.faults("fail sync")
    take_over(daemon)
    try:
        os.preadv(device, [mmap.mmap(-1, 4096)], 0)
        check(False, "the device goes on as if nothing had happened")
    except OSError as error:
        check(error.errno in (errno.EIO, errno.ENXIO, errno.ENODEV), f"the error is {error}")
    disk.heal()
    verb(daemon, "start", "v")
    with open(daemon.show("v")["export"]["device"], "rb") as again:
        check_equal(again.read(4096), b"v" * 4096, "what its new device reads")
    daemon.terminate()


@test
def sigterm_during_a_hand_over_is_an_orderly_stop(box):
    for rules, code in (["delay 3s sync"], 0), (["delay 3s sync", "fail sync"], 1):
        disk = Disk(box, f"origin{code}", 64 * MIB)
        daemon = box.daemon(name=f"d{code}")
        uri = daemon.create("v", box.file(f"cache{code}", 64 * MIB), disk.name, "--mode", "wt")
        # On the origin, and not durable there: a stop has to sync it.
        connect(uri).pwrite(bytes(4096), 0)
        disk.faults(*rules)
        command = [daemon.binary, "--socket", daemon.socket, "daemon", "--take-over"]
        box.spawn(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: "handing over" in daemon.log(), "the hand-over has begun")
        ended, _ = daemon.terminate()
        check("instead of handed over" in daemon.log(), f"it was no hand-over: {daemon.log()}")
        check_equal(ended, code, f"the exit code with {rules}")
        for path in daemon.nbd, daemon.socket:
            check(not os.path.exists(path), f"{path} is left behind")
        disk.heal()
        daemon.start()
        kinds = [event["fields"].get("clean") for event in events(daemon) if event["kind"] == "daemon-stopped"]
        check_equal(kinds, [code == 0], "the stops that were recorded, and whether they were clean")


@test
def sigterm_does_not_wait_for_a_volume_that_is_not_back(box):
    daemon, gone = box.daemon(), box.path("gone")
    origin = box.file("origin", 64 * MIB)
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), origin))
    client.pwrite(bytes(4096), 0)
    script = f'case "$*" in *--check*|hand-over-version) ;; *) mv {origin} {gone};; esac; exec $FOREBAY "$@"'
    request(daemon, "POST", "/v1/daemon/hand-over", {"program": program(box, "moves", script)})
    wait_for(lambda: hand_overs(daemon) == 1, "the next program is ready")
    code, seconds = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check(seconds < 5, f"the stop took {seconds:.1f} s")


def events(daemon):
    return request(daemon, "GET", "/v1/events")[1]["events"]


@test
def a_mounted_filesystem_stays_mounted(box):
    need("fio", "losetup", "mount", "mkfs.ext4", "e2fsck")
    if os.geteuid() != 0:
        skip("block devices take root")
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(path):
            skip(f"there is no {path}")
    daemon = box.daemon()
    made = daemon.create_run(
        "v", box.file("cache", 256 * MIB), box.file("origin", 512 * MIB), "--export", "nbd,fuse", expect=None
    )  # fmt: skip
    if "CAP_SYS_ADMIN" in made.stderr or "modprobe" in made.stderr:
        skip(made.stderr.strip())
    check_equal(made.returncode, 0, f"create: {made.stderr.strip()}")
    device, point = made.stdout.strip(), box.path("mnt")
    box.at_end(unmount, box, daemon, point)
    box.run("mkfs.ext4", "-q", "-F", device)
    os.makedirs(point)
    box.run("mount", device, point)
    load = box.spawn(
        "fio", "--name=verify", f"--directory={point}", "--rw=randrw", "--bs=4k", "--size=48m",
        "--ioengine=libaio", "--iodepth=16", "--direct=1", "--fsync=32", "--verify=crc32c",
        "--verify_backlog=128", "--verify_fatal=1", "--time_based", "--runtime=3600",
        stdout=subprocess.DEVNULL, stderr=open(box.path("fio.err"), "wb"), cwd=box.dir,
    )  # fmt: skip
    time.sleep(1)
    longest = 0
    for _ in range(TIMES):
        take_over(daemon)
        start = time.monotonic()
        with open(f"{point}/probe", "wb") as file:
            file.write(b"z" * 4096)
            file.flush()
            os.fsync(file.fileno())
        longest = max(longest, time.monotonic() - start)
        check(load.poll() is None, f"fio has ended: {pathlib.Path(box.path('fio.err')).read_text()}")
        check_equal(daemon.show("v")["export"]["device"], device, "the device")
    load.send_signal(signal.SIGTERM)
    load.wait(PATIENCE)
    box.run("umount", point)
    box.run("e2fsck", "-f", "-n", device)
    daemon.cli("stop", "v")
    check(let_go(box, device), "the device is left behind")


def unmount(box, daemon, point):
    box.run("umount", "-l", point, expect=None)
    if daemon.process.poll() is None:
        daemon.terminate()


main()
