"""Metrics: what is counted is what was done, over both addresses, and the TCP one answers nothing else."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess

from harness import *
from harness.http_unix import UnixConnection
from harness.wire import free_port

PATIENCE = 30
BLOCK = 4096


def ask(connection, method="GET", target="/metrics", headers=None):
    """Status, media type and text of an answer."""
    with contextlib.closing(connection):
        connection.request(method, target, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def tcp(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)


def values(text):
    """The numbers by their names with labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, number in (line.rsplit(" ", 1) for line in lines)}


def metered(box, *arguments):
    port = free_port()
    daemon = Daemon(box)
    daemon.start("--metrics", f"127.0.0.1:{port}", *arguments)
    return daemon, port


@test
def what_is_counted_is_what_was_done(box):
    daemon, port = metered(box)
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB), "--set", "idle=0")
    client = connect(uri)
    for block in range(8):
        client.pwrite(bytes([block]) * BLOCK, block * BLOCK)
    for block in range(16):
        client.pread(BLOCK, block * BLOCK)
    client.flush()
    status, kind, text = ask(tcp(port))
    check_equal(status, 200, "the status")
    # A client that names no format gets the one that everything reads.
    check(kind.startswith("text/plain; version=0.0.4"), kind)
    check("# EOF" not in text and not re.search(r"^# TYPE \S+ (info|stateset|unknown)$", text, re.M), "it is not the classic text")
    _, kind, newer = ask(tcp(port), headers={"Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3"})
    check(kind.startswith("application/openmetrics-text; version=1.0.0"), kind)
    check(newer.endswith("# EOF\n"), "the end is missing")
    found = values(text)
    for name, expected in (
        ('forebay_volume_state{volume="v",state="running"}', 1),
        ('forebay_volume_state{volume="v",state="degraded"}', 0),
        ('forebay_volume_requests_total{volume="v",operation="read",served_by="cache"}', 8),
        ('forebay_volume_requests_total{volume="v",operation="read",served_by="origin"}', 8),
        ('forebay_volume_requests_total{volume="v",operation="write",served_by="cache"}', 8),
        ('forebay_volume_misses_total{volume="v",reason="cold"}', 8),
        ('forebay_volume_client_bytes_total{volume="v",operation="read"}', 16 * BLOCK),
        ('forebay_volume_client_bytes_total{volume="v",operation="write"}', 8 * BLOCK),
        ('forebay_volume_dirty_bytes{volume="v"}', 8 * BLOCK),
        ('forebay_volume_cached_bytes{volume="v"}', 16 * BLOCK),
        ('forebay_volume_flushes_total{volume="v"}', 1),
        ('forebay_volume_failed_requests_total{volume="v"}', 0),
        ('forebay_volume_size_bytes{volume="v"}', 16 * MIB),
    ):
        check_equal(found.get(name), expected, name)
    cache = re.search(r'forebay_volume_info\{volume="v",cache="([^"]*)"', text)[1]
    # The commit of the flush was written and synced; each miss was read, and each of the samples of the origin.
    check(found[f'forebay_cache_device_bytes_total{{cache="{cache}",operation="write"}}'] >= 8 * BLOCK, "bytes written")
    check(found[f'forebay_cache_device_operation_duration_seconds_count{{cache="{cache}",operation="sync"}}'] >= 1, "syncs")
    check(found['forebay_origin_operation_duration_seconds_count{volume="v",operation="read"}'] >= 8, "reads")
    check(found['forebay_origin_bytes_total{volume="v",operation="read"}'] >= 8 * BLOCK, "bytes read")
    check_equal(found.get('forebay_origin_bytes_total{volume="v",operation="write"}'), 0, "bytes written back")
    daemon.cli("flush", "v")
    found = values(ask(UnixConnection(daemon.socket))[2])
    check_equal(found['forebay_volume_dirty_bytes{volume="v"}'], 0, "dirty bytes on the admin socket")
    check_equal(found['forebay_volume_time_to_clean_seconds{volume="v"}'], 0, "the time to clean")
    check_equal(found['forebay_volume_written_back_blocks_total{volume="v",reason="drain"}'], 8, "blocks written back")
    check_equal(found['forebay_origin_bytes_total{volume="v",operation="write"}'], 8 * BLOCK, "bytes written back")


@test
def the_tcp_address_answers_nothing_else(box):
    daemon, port = metered(box)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    for method, target, expected in (
        ("GET", "/", 404),
        ("GET", "/v1/volumes", 404),
        ("GET", "/v1/daemon", 404),
        ("GET", "/metrics/../v1/volumes", 404),
        ("POST", "/v1/volumes/v/stop", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/metrics?name=v", 200),
    ):
        status, _, text = ask(tcp(port), method, target)
        check_equal(status, expected, f"{method} {target}")
        check(status == 200 or json.loads(text)["error"]["message"], "no message")
    check_equal(daemon.show("v")["state"], "running", "the state")
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"GET /metrics HTTP/1.1\r\n")
        check_equal(ask(tcp(port))[0], 200, "the answer beside a client that says nothing more")


@test
def silent_clients_and_pages_of_other_sites_do_not_reach_the_metrics(box):
    _, port = metered(box)
    for host in ("evil.example", f"evil.example:{port}", "192.0.2.1"):
        status, _, text = ask(tcp(port), headers={"Host": host})
        check_equal(status, 403, f"the answer to {host}")
        check("--metrics" in json.loads(text)["error"]["message"], text)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)]
        for half in silent[::2]:
            half.sendall(b"GET /metrics HTTP/1.1\r\n")
        check_equal(ask(tcp(port))[0], 200, "the answer beside as many silent clients as there are places")


@test
def an_address_that_is_taken_is_refused_and_the_admin_socket_needs_none(box):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = Daemon(box)
        notify = daemon.launch("--metrics", f"127.0.0.1:{port}")
        try:
            daemon.wait_ready(notify)
        except Failure as failure:
            check("ended with 3" in str(failure) and "--metrics" in str(failure), str(failure))
        else:
            raise Failure("the daemon started")
    daemon.start()
    status, kind, text = ask(UnixConnection(daemon.socket), headers={"Accept": "text/plain"})
    check_equal(status, 200, "the status")
    check(kind.startswith("text/plain; version=0.0.4"), kind)
    check('forebay_ready 1\n' in text and "# EOF" not in text, text)


@test
def metrics_go_on_after_a_hand_over(box):
    daemon, port = metered(box)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    daemon.cli("daemon", "--take-over")
    found = values(ask(tcp(port))[2])
    check_equal(found["forebay_hand_overs_total"], 1, "hand-overs")


@test
def promtool_accepts_them(box):
    if shutil.which("promtool") is None:
        skip("there is no promtool (Debian's package prometheus)")
    daemon, port = metered(box)
    # Two volumes on one cache, one with a RAM tier, and one that is stopped.
    cache = box.file("cache", 64 * MIB)
    for name, more in (("a", ()), ("b", ("--ram", "8M")), ("c", ())):
        client = connect(daemon.create(name, cache, box.file(f"origin-{name}", 16 * MIB), *more))
        client.pwrite(b"x" * BLOCK, 0)
        client.shutdown()
    daemon.cli("stop", "c")
    text = ask(tcp(port), headers={"Accept": "text/plain"})[2]
    judged = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    check_equal((judged.returncode, judged.stdout + judged.stderr), (0, ""), "promtool's judgement")
    check('forebay_volume_state{volume="c",state="stopped"} 1\n' in text, "the stopped volume")
    check('forebay_volume_flushes_total{volume="c"}' not in text, "counters of a stopped volume")


main()
