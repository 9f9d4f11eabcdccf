"""Capabilities of the daemon's threads, and the system calls that each makes under load, within those that the unit allows.

Clients of NBD by a unix socket and by TLS, of the web page and of the metrics, a FUSE device if possible, and commands. Needs
root, strace, openssl, fio and systemd-analyze. FOREBAY_SECONDS: how long the calls are recorded.
"""

import collections
import http.client
import os
import pathlib
import re
import ssl
import subprocess
import threading
import time

from harness import *
from harness.seccomp import allowed
from harness.wire import Wire, free_port

UNIT = pathlib.Path(__file__).resolve().parents[2] / "dist/forebay.service"
SECONDS = float(os.environ.get("FOREBAY_SECONDS", "20"))
CALL = re.compile(r"^\d+<(.+?)> (?:<\.\.\. )?(\w+)(?:\(| resumed)")


def kind(name):
    """The name of a thread without its number."""
    return re.sub(r"[-:]?\d+$", "", name)


def visits(addresses, cert, ended):
    """Uses each way into the daemon again and again."""
    tls, web, metrics = addresses
    context = ssl.create_default_context(cafile=cert)
    while not ended.is_set():
        with Wire(("127.0.0.1", tls)) as wire:
            wire.greet()
            wire.start_tls(context)
        for port, target in ((web, "/"), (metrics, "/metrics")):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", target)
            connection.getresponse().read()
            connection.close()
        time.sleep(0.05)


def capabilities(daemon):
    """The effective capabilities of the threads, by their kind."""
    found = {}
    for task in pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir():
        try:
            status = (task / "status").read_text()
            found[kind((task / "comm").read_text().strip())] = re.search(r"CapEff:\s*(\w+)", status)[1]
        except OSError:
            pass
    return found


@test
def calls_of_each_thread(box):
    need("strace", "fio", "systemd-analyze")
    key, cert = box.self_signed()
    addresses = [free_port() for _ in range(3)]
    daemon = Daemon(box)
    daemon.start(
        "--nbd", f"127.0.0.1:{addresses[0]}", "--nbd-tls-cert", cert, "--nbd-tls-key", key,
        "--web", f"127.0.0.1:{addresses[1]}", "--metrics", f"127.0.0.1:{addresses[2]}",
    )  # fmt: skip
    uri = daemon.create("v", box.file("cache", 256 * MIB), box.file("origin", 64 * MIB), "--ram", "16M")
    daemon.create("guest", box.file("cache2", 64 * MIB), box.file("origin2", 64 * MIB), "--export", "vhost-user")
    disks = box.file("cache3", 64 * MIB), box.file("origin3", 64 * MIB)
    device = daemon.create_run("f", *disks, "--export", "fuse", expect=None).returncode == 0
    log, ended = box.path("calls"), threading.Event()
    pid = str(daemon.process.pid)
    tracer = box.spawn("strace", "-f", "-Y", "-qq", "-e", "signal=none", "-o", log, "-p", pid, stderr=subprocess.DEVNULL)
    load = box.start_fio(uri, "--rw=randrw", "--time_based", f"--runtime={SECONDS:.0f}", "--fsync=64")
    visitor = threading.Thread(target=visits, args=(addresses, cert, ended))
    visitor.start()
    if device:
        path = daemon.show("f")["export"]["device"]
        box.run("dd", "if=/dev/urandom", f"of={path}", "bs=1M", "count=8", "conv=fsync")
    for verb in (["flush", "v"], ["set", "v", "idle=7s"], ["drop", "v"], ["list"], ["stop", "guest"], ["start", "guest"]):
        daemon.cli(*verb)
    load.wait()
    privileges = capabilities(daemon)
    ended.set()
    visitor.join()
    tracer.terminate()
    tracer.wait()
    # In order, so that the FUSE device ends.
    check_equal(daemon.terminate()[0], 0, "the exit code")
    calls = collections.defaultdict(collections.Counter)
    with open(log, errors="replace") as lines:
        for line in lines:
            if found := CALL.match(line):
                calls[kind(found[1])][found[2]] += 1
    permitted = allowed(UNIT)
    print(f"     FUSE device: {device}")
    for name in sorted(calls):
        counts = calls[name]
        print(f"     {name} (capabilities {privileges.get(name, 'of the process')}): {', '.join(sorted(counts))}")
        check_equal(set(counts) - permitted, set(), f"calls of {name} that the unit refuses")


main()
