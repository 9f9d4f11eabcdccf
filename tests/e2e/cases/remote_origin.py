"""Origins on NBD servers: volumes that work, servers that fail, hang, end and come back."""

import json
import os
import pathlib
import signal
import shutil
import socket
import subprocess
import time

from harness import *
from harness.wire import free_port

SIZE = 32 * MIB


class Server:
    """An NBD server of somebody else on a unix socket."""

    def __init__(self, box, *command, name="server", export=""):
        need(command[0])
        self.box, self.command, self.socket = box, command, box.path(f"{name}.sock")
        self.uri = f"nbd+unix:///{export}?socket={self.socket}"
        self.log = open(box.path(f"{name}.log"), "ab")
        self.process = None

    def start(self, *command):
        """Starts it, and waits until it listens."""
        self.command = command or self.command
        words = [self.socket if word == "SOCKET" else word for word in self.command]
        self.process = self.box.spawn(*words, stdout=self.log, stderr=self.log)
        wait_for(lambda: os.path.exists(self.socket), "the server listens")
        return self

    def kill(self):
        """Ends it as a crash would."""
        self.box.stop(self.process)
        if os.path.exists(self.socket):
            os.remove(self.socket)

    def limits(self, **seconds):
        """The URI with time limits."""
        return self.uri + "".join(f"&{name}={value}" for name, value in seconds.items())


def nbdkit(*arguments):
    """The command line of nbdkit; further words are those of the plug-in."""
    return ("nbdkit", "--foreground", "--threads=4", "--unix", "SOCKET", *arguments)


def qemu_nbd(path, *arguments):
    return ("qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--socket", "SOCKET", *arguments, path)


def settle(daemon, name="v"):
    """Writes everything back."""
    daemon.cli("flush", name)
    check_equal(daemon.dirty(name), 0, "dirty blocks")


def works(box, server):
    """A volume on this server keeps what is written, and writes it back."""
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + ",size=64M", server.uri))
    content = random_bytes("first", 2 * MIB)
    client.pwrite(content, 3 * MIB)
    # Clients see the sectors that the server has, and may ignore that.
    client.set_strict_mode(0)
    client.pwrite(b"x" * 512, 5 * MIB - 512)
    client.flush()
    settle(daemon)
    expected = content[:-512] + b"x" * 512
    check_equal(connect(server.uri).pread(2 * MIB, 3 * MIB) == expected, True, "the origin has it")
    check_equal(client.pread(2 * MIB, 3 * MIB) == expected, True, "the volume has it")
    client.zero(MIB, 3 * MIB)
    client.trim(MIB // 2, 4 * MIB)
    client.flush()
    settle(daemon)
    check_equal(connect(server.uri).pread(MIB, 3 * MIB), bytes(MIB), "zeroes on the origin")
    return daemon, client


@test
def a_volume_on_nbdkit_works_and_survives_a_restart(box):
    server = Server(box, *nbdkit("memory", "32M")).start()
    daemon, client = works(box, server)
    client.pwrite(b"k" * 8192, 0)
    client.flush()
    client.shutdown()
    daemon.kill()
    daemon.start()
    check_equal(connect(daemon.uri("v")).pread(8192, 0), b"k" * 8192, "after a crash of the daemon")
    settle(daemon)
    check_equal(connect(server.uri).pread(8192, 0), b"k" * 8192, "written back after it")


@test
def a_volume_on_qemu_nbd_works_on_one_connection_and_on_several(box):
    for count, shared in ((0, "--shared=1"), (1, "--shared=8")):
        path = box.file(f"disk{count}", SIZE)
        server = Server(box, *qemu_nbd(path, shared), name=f"q{count}").start()
        daemon = box.daemon("--lanes", "3", name=f"d{count}")
        uri = daemon.create("v", box.path(f"cache{count}") + ",size=64M", server.uri, "--set", "mode=passthrough")
        clients = [connect(uri) for _ in range(6)]
        for number, client in enumerate(clients):
            client.pwrite(bytes([number + 1]) * MIB, number * MIB)
        for number, client in enumerate(reversed(clients)):
            check_equal(client.pread(MIB, number * MIB), bytes([number + 1]) * MIB, f"MiB {number}")
        clients[0].flush()
        for client in clients:
            client.shutdown()
        daemon.terminate()


@test
def requests_have_the_sizes_that_the_server_wants(box):
    server = Server(box, *nbdkit(
        "--filter=blocksize-policy", "memory", "32M", "blocksize-minimum=4096", "blocksize-preferred=4096",
        "blocksize-maximum=2M", "blocksize-error-policy=error",
    )).start()  # fmt: skip
    daemon, client = works(box, server)
    daemon.cli("set", "v", "mode=passthrough")
    content = random_bytes("large", 3 * MIB)
    client.pwrite(content, 8 * MIB + 512)
    check_equal(client.pread(3 * MIB, 8 * MIB + 512) == content, True, "read back in sectors")


@test
def a_declaration_may_name_a_server(box):
    server = Server(box, *nbdkit("memory", "32M")).start()
    daemon = box.daemon()
    declaration = pathlib.Path(box.path("forebay.toml"))
    declaration.write_text(f"""
[volumes.v]
cache = "{box.path("cache")},size=64M"
origin = "{server.uri}"
""")
    daemon.cli("apply", "--config", declaration)
    check_equal(daemon.show("v")["state"], "running", "state")
    again = json.loads(daemon.cli("apply", "--config", declaration, "--json").stdout)
    check_equal([step["action"] for step in again["steps"]], ["keep"], "a second run")


@test
def tcp_and_tls_work_and_the_wrong_ones_are_refused(box):
    need("openssl")
    pki, port, plain = box.path("pki"), free_port(), free_port()
    os.mkdir(pki)

    def openssl(*arguments):
        box.run("openssl", *arguments, cwd=pki)

    def key(name):
        return ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}-key.pem")

    openssl("req", "-x509", *key("ca"), "-out", "ca-cert.pem", "-subj", "/CN=ca", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    for role, use in (("server", "serverAuth"), ("client", "clientAuth")):
        pathlib.Path(pki, "ext").write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n"
            f"keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage={use}\n"
        )
        openssl("req", *key(role), "-out", "request", "-subj", f"/CN={role}")
        openssl("x509", "-req", "-in", "request", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
                "-days", "2", "-extfile", "ext", "-out", f"{role}-cert.pem")  # fmt: skip
    disk = box.file("disk", SIZE)
    command = ("qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--bind=127.0.0.1")
    tls = ("--object", f"tls-creds-x509,id=t,dir={pki},endpoint=server,verify-peer=yes", "--tls-creds=t")
    box.spawn(*command, f"--port={port}", *tls, disk)
    box.spawn(*command, f"--port={plain}", "--export-name=a/b", box.file("plain", SIZE))
    for number in (port, plain):
        wait_for(lambda number=number: listens(number), "the server listens")
    daemon = box.daemon()
    for uri, why in (
        (f"nbd://localhost:{port}/", "insists on TLS"),
        (f"nbds://localhost:{plain}/a%2Fb?tls-certificates={pki}", "has no TLS"),
        (f"nbds://localhost:{port}/?tls-certificates={box.dir}", "cannot be used for TLS"),
        (f"nbd://localhost:{plain}/c", "has no export 'c'"),
    ):
        refused = daemon.create_run("v", "none", uri, "--ram", "8M", expect=2)
        check(why in refused.stderr, f"{uri}: {refused.stderr}")
    refused = daemon.create_run("v", f"nbd://localhost:{plain}/a%2Fb", disk, expect=2)
    check("cannot be a cache device" in refused.stderr, refused.stderr)
    good = (f"nbds://localhost:{port}/?tls-certificates={pki}", f"nbd://127.0.0.1:{plain}/a%2Fb")
    for name, uri in zip("vw", good):
        client = connect(daemon.create(name, box.path(f"cache-{name}") + ",size=64M", uri))
        check_equal(daemon.show(name)["origin"]["path"], uri, "the origin's name")
        content = random_bytes(name, 4 * MIB)
        client.pwrite(content, MIB)
        settle(daemon, name)
        daemon.cli("drop", name)
        check_equal(client.pread(4 * MIB, MIB) == content, True, "read back from the server")
        client.shutdown()
    # Names that lead to the same export.
    refused = daemon.create_run("x", box.path("c") + ",size=64M", good[1] + "?timeout=9", expect=3)
    check("is the origin of volume 'w'" in refused.stderr, refused.stderr)


def listens(port):
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@test
def a_server_that_delays_and_fails_is_waited_for_and_reported(box):
    switch = box.path("errors")
    server = Server(box, *nbdkit(
        "--filter=error", "--filter=delay", "memory", "32M", "rdelay=20ms", "wdelay=20ms",
        "error-rate=1", f"error-file={switch}",
    )).start()  # fmt: skip
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + ",size=64M", server.uri))
    content = random_bytes("errors", MIB)
    client.pwrite(content, 0)
    client.flush()
    pathlib.Path(switch).touch()
    check(attempt(client.pread, 4096, 16 * MIB), "a read of a failing origin succeeds")
    daemon.cli("flush", "v", expect=None)
    check(daemon.dirty("v") > 0, "dirty blocks went to an origin that fails")
    os.remove(switch)
    settle(daemon)
    check_equal(connect(server.uri).pread(MIB, 0) == content, True, "the origin has it at last")


@test
def nothing_is_lost_when_a_server_forgets_what_it_had_not_flushed(box):
    disk = box.file("disk", SIZE)
    # The filter keeps writes until a flush, and a kill loses them. They are slow, so that it comes in between.
    server = Server(box, *nbdkit(
        "--filter=delay", "--filter=cache", "file", disk, "cache=writeback", "wdelay=5ms",
    )).start()  # fmt: skip
    daemon = box.daemon("--lanes", "2")
    settings = ("--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
    uri = daemon.create("v", box.path("cache") + ",size=64M", server.limits(reconnect=120), *settings)
    recorder = Recorder(uri, blocks=8192)
    for number in range(8):
        recorder.write(300)
        recorder.flush()
        time.sleep(0.15 + number * 0.05)
        server.kill()
        recorder.write(50)
        server.start()
    recorder.settle()
    settle(daemon)
    check("the connection is lost" in daemon.log(), "the server was never missed")
    for client in recorder.clients:
        client.shutdown()
    recorder.flusher.shutdown()
    check_equal(daemon.terminate()[0], 0, "exit code")
    # What was not flushed is lost now.
    server.kill()
    with open(disk, "rb") as file:
        for block in range(recorder.blocks):
            version = read_stamp(file.read(BLOCK), block, recorder.seed)
            check_equal(version, recorder.acked[block], f"block {block} on the origin")


@test
def a_flush_fails_where_the_server_may_have_lost_direct_writes(box):
    disk = box.file("disk", SIZE)
    server = Server(box, *nbdkit("--filter=cache", "file", disk, "cache=writeback")).start()
    daemon = box.daemon()
    settings = ("--set", "mode=passthrough", "--set", "commit_interval=60s")
    client = connect(daemon.create("v", box.path("cache") + ",size=64M", server.uri, *settings))
    client.pwrite(b"1" * BLOCK, 0)
    client.flush()
    server.kill()
    server.start()
    client.flush()
    client.pwrite(b"2" * BLOCK, 0)
    server.kill()
    server.start()
    check(attempt(client.flush), "a flush promises what the server has forgotten")
    check_equal(connect(server.uri).pread(BLOCK, 0), b"1" * BLOCK, "what the server remembers")
    client.shutdown()
    daemon.cli("stop", "v", expect=None)
    daemon.cli("start", "v")
    client = connect(daemon.uri("v"))
    client.pwrite(b"3" * BLOCK, 0)
    client.flush()


@test
def a_server_with_another_size_or_content_is_refused(box):
    disk = box.file("disk", SIZE, random_bytes("disk", SIZE))
    server = Server(box, *qemu_nbd(disk)).start()
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + ",size=64M", server.limits(reconnect=5)))
    client.pwrite(b"d" * BLOCK, 5 * MIB)
    client.flush()
    server.kill()
    other = box.file("other", SIZE // 2, random_bytes("disk", SIZE // 2))
    server.start(*qemu_nbd(other))
    check(attempt(client.pread, BLOCK, 8 * MIB), "a read of another disk succeeds")
    check_equal(client.pread(BLOCK, 5 * MIB), b"d" * BLOCK, "cached blocks are served")
    check("another size" in daemon.log(), "the log does not say why")
    client.shutdown()
    daemon.cli("stop", "v")
    refused = daemon.cli("start", "v", expect=3)
    check("bytes" in refused.stderr, refused.stderr)
    server.kill()
    content = box.file("content", SIZE, random_bytes("another", SIZE))
    server.start(*qemu_nbd(content))
    refused = daemon.cli("start", "v", expect=4)
    server.kill()
    server.start(*qemu_nbd(disk))
    daemon.cli("start", "v")
    settle(daemon)
    check_equal(connect(server.uri).pread(BLOCK, 5 * MIB), b"d" * BLOCK, "the dirty block")
    # And while it runs.
    server.kill()
    server.start(*qemu_nbd(content))
    client = connect(daemon.uri("v"))
    check(attempt(client.pread, BLOCK, 8 * MIB), "a read of another content succeeds")
    check("other content" in daemon.log(), "the log does not say why")


@test
def a_server_that_is_away_fails_requests_in_time_and_is_found_again(box):
    disk = box.file("disk", SIZE, random_bytes("disk", SIZE))
    server = Server(box, *qemu_nbd(disk)).start()
    daemon = box.daemon()
    uri = server.limits(reconnect=2, timeout=2)
    client = connect(daemon.create("v", box.path("cache") + ",size=64M", uri))
    # One that hangs, and one that is not there.
    for place, (leave, come) in enumerate((
        (lambda: server.process.send_signal(signal.SIGSTOP), lambda: server.process.send_signal(signal.SIGCONT)),
        (server.kill, server.start),
    ), 8):
        leave()
        check(attempt(client.pread, BLOCK, place * MIB), "a read without a server succeeds")
        client.pwrite(b"w" * BLOCK, 0)
        client.flush()
        come()
        wait_for(lambda place=place: not attempt(client.pread, BLOCK, place * MIB), "the server is found again")
    settle(daemon)
    check_equal(connect(server.uri).pread(BLOCK, 0), b"w" * BLOCK, "written back")
    client.shutdown()
    # A daemon that starts before the server waits for it.
    daemon.kill()
    server.kill()
    notify = daemon.launch()
    wait_for(lambda: "waiting for a device: origin" in daemon.log(), "the log says why it waits")
    server.start()
    daemon.wait_ready(notify)
    wait_for(lambda: daemon.show("v")["state"] == "running", "the volume is started")


@test
def an_export_becomes_the_origin_of_one_volume(box):
    server = Server(box, *nbdkit("--filter=delay", "memory", "32M", "delay-open=1")).start()
    daemon = box.daemon()
    create = lambda name: [
        daemon.binary, "--socket", daemon.socket, "create", name,
        "--cache", box.path(f"cache-{name}") + ",size=64M", "--origin", server.uri,
    ]  # fmt: skip
    both = [box.spawn(*create(name), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for name in "ab"]
    said = [process.communicate(timeout=60)[1] for process in both]
    check_equal(sorted(process.returncode for process in both), [0, 3], f"the exit codes: {said}")
    daemon.cli(*create("c")[3:], expect=3)


@test
def an_older_copy_is_not_accepted_for_a_volume_that_waits(box):
    server = Server(box, *nbdkit("file", box.file("remote", 32 * MIB))).start()
    daemon, cache = box.daemon(), box.file("cache", 64 * MIB)
    origins = {"a": server.limits(timeout=20), "b": box.file("origin", 16 * MIB)}
    for name, origin in origins.items():
        daemon.create(name, cache, origin, "--set", "writeback_running=off")
    def write(byte):
        for name in origins:
            client = connect(daemon.uri(name))
            client.pwrite(byte * 65536, 0)
            client.flush()
            client.shutdown()
        for name in origins:
            daemon.cli("stop", name)
    write(b"1")
    shutil.copy(cache, box.path("old"))
    for name in origins:
        daemon.cli("start", name)
    write(b"2")
    shutil.copy(box.path("old"), cache)
    server.kill()
    waits = box.spawn(
        daemon.binary, "--socket", daemon.socket, "start", "a",
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: daemon.show("a")["state"] in ("recovering", "waiting"), "it waits for its server")
    daemon.cli("start", "--force", "b")
    server.start()
    said = waits.communicate(timeout=60)[1]
    check_equal(waits.returncode, 4, f"the exit code of the start that waited: {said}")
    check("start --force a" in said, said)
    daemon.cli("start", "--force", "a")
    check_equal(bytes(connect(daemon.uri("a")).pread(4096, 0)), b"1" * 4096, "the older data")


main()
