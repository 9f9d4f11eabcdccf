"""Requests to the admin socket that nobody should send: answered or cut off, nothing changes."""

import contextlib
import json
import socket

from harness import *
from harness.http_unix import UnixConnection

PATIENCE = 30


def ask(daemon, method, target, body=None, headers=None):
    """The status and the answer as JSON."""
    connection = UnixConnection(daemon.socket)
    with contextlib.closing(connection):
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


def served(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    return daemon, connect(uri)


def unchanged(daemon, client, before):
    daemon.check_alive()
    check_equal(daemon.show("v")["settings"], before, "the settings")
    client.pwrite(b"\x05" * 4096, 0)
    check_equal(bytes(client.pread(4096, 0)), b"\x05" * 4096, "a read beside the requests")


@test
def paths_and_bodies(box):
    daemon, client = served(box)
    before = daemon.show("v")["settings"]
    deep = "[" * 100000
    for method, target, body, statuses in (
        ("GET", "/", None, (404,)),
        ("GET", "/v1/nothing", None, (404,)),
        ("GET", "/v1/volumes/nobody", None, (404,)),
        ("GET", "/v1/volumes/..%2f..", None, (400, 404)),
        ("DELETE", "/v1/volumes/v", None, (404,)),
        ("POST", "/v1/volumes/v/set", "", (400,)),
        ("POST", "/v1/volumes/v/set", "{", (400,)),
        ("POST", "/v1/volumes/v/set", deep, (400,)),
        ("POST", "/v1/volumes/v/set", '{"settings": ' + deep, (400,)),
        ("POST", "/v1/volumes/v/set", '{"settings": {"mode": "wt"}, "more": 1}', (400,)),
        ("POST", "/v1/volumes/v/set", '{"settings": {"mode": "wt", "mode": "wb"}}', (400,)),
        ("POST", "/v1/volumes/v/set", '{"settings": {"dirty_high": 1e30}}', (400,)),
        ("POST", "/v1/volumes", '{"name": "w", "cache": "ram:64M"}', (400,)),
        ("GET", "/v1/operations/999999", None, (404,)),
        ("GET", "/v1/operations/x", None, (400,)),
    ):
        status, answer = ask(daemon, method, target, body)
        check(status in statuses, f"{method} {target} {(body or '')[:40]}: {status}, not {statuses}")
        check(answer["error"]["message"], f"{method} {target}: no message")
    unchanged(daemon, client, before)


@test
def foreign_hosts_and_origins(box):
    daemon, client = served(box)
    before = daemon.show("v")["settings"]
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "192.0.2.1", "[2001:db8::1]"):
        body = '{"settings": {"mode": "wt"}}'
        status, _ = ask(daemon, "POST", "/v1/volumes/v/set", body, {"Host": host})
        check_equal(status, 403, f"the answer to a request for {host}")
    for origin in ("https://evil.example", "null", "http://localhost:8080"):
        for verb in ("set", "stop"):
            status, _ = ask(daemon, "POST", f"/v1/volumes/v/{verb}", body, {"Origin": origin})
            check_equal(status, 403, f"the answer to a request of a page of {origin}")
    unchanged(daemon, client, before)


@test
def requests_without_an_end(box):
    daemon, client = served(box)
    before = daemon.show("v")["settings"]
    open_ones = []
    for start in (
        b"",
        b"GET",
        b"GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{",
        b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551615\r\n\r\n{",
        b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    ):
        for _ in range(3):
            stream = socket.socket(socket.AF_UNIX)
            stream.settimeout(PATIENCE)
            stream.connect(daemon.socket)
            stream.sendall(start)
            open_ones.append(stream)
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(PATIENCE)
    stream.connect(daemon.socket)
    with contextlib.suppress(OSError):
        stream.sendall(b"GET /v1/volumes HTTP/1.1\r\n")
        for _ in range(200):
            stream.sendall(b"X-Filler: " + b"x" * 4000 + b"\r\n")
    unchanged(daemon, client, before)
    for stream in open_ones:
        # Each is answered or cut off within the daemon's own deadline.
        with contextlib.suppress(ConnectionError):
            while stream.recv(4096):
                pass
    unchanged(daemon, client, before)


main()
