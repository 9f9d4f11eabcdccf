"""Hits while clients connect and say nothing, and while others shake hands by TLS; how long a client of the unix socket waits.

Needs openssl and fio. FOREBAY_SILENT and FOREBAY_HANDSHAKES: silent connections, and handshakes a second; FOREBAY_KEY: the
daemon's key, as openssl's -newkey has it: rsa:4096 costs it most, and p256 is common.
"""

import multiprocessing
import os
import resource
import ssl
import time

from harness import *
from harness.wire import *

SILENT = int(os.environ.get("FOREBAY_SILENT", "10000"))
HANDSHAKES = int(os.environ.get("FOREBAY_HANDSHAKES", "200"))
KEY = os.environ.get("FOREBAY_KEY", "rsa:4096")
# Each figure is of so many seconds.
SECONDS = float(os.environ.get("FOREBAY_SECONDS", "10"))
SIZE = 64 * MIB
PROCESSES = 4


def shakes_hands(address, cert, done, ended):
    """Begins its part of the handshakes, whether or not they end in time."""
    # Clients are on other machines: these take no time from the lanes.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    context = ssl.create_default_context(cafile=cert)
    pause, at = PROCESSES / HANDSHAKES, time.monotonic()
    while not ended.is_set():
        at += pause
        time.sleep(max(0, at - time.monotonic()))
        try:
            with Wire(address) as wire:
                wire.greet()
                wire.start_tls(context)
                with done.get_lock():
                    done.value += 1
        except (OSError, EOFError, Failure):
            pass


def hits(daemon):
    """Hits a second, for some seconds."""
    before, begun = daemon.show("v")["requests"]["read_hits"], time.monotonic()
    time.sleep(SECONDS)
    return (daemon.show("v")["requests"]["read_hits"] - before) / (time.monotonic() - begun)


def waits(daemon):
    """The longest of some connections by the unix socket up to the answer to a read, in milliseconds."""
    longest = 0
    for _ in range(50):
        begun = time.monotonic()
        with opened(daemon.nbd, "v")[0] as wire:
            check_equal(wire.ask(READ, 0, 4096)[0], 0, "the error of a read")
        longest = max(longest, time.monotonic() - begun)
    return longest * 1e3


@test
def hits_while_others_connect(box):
    need("fio")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    key, cert = box.self_signed() if KEY == "p256" else box.self_signed(kind=[KEY])
    address = ("127.0.0.1", free_port())
    daemon = Daemon(box)
    daemon.start("--nbd", f"127.0.0.1:{address[1]}", "--nbd-tls-cert", cert, "--nbd-tls-key", key)
    uri = daemon.create("v", box.file("cache", 256 * MIB), box.file("origin", SIZE))
    client = connect(uri)
    for start in range(0, SIZE, MIB):
        client.pread(MIB, start)
    load = box.start_fio(uri, "--rw=randread", "--time_based", f"--runtime={20 * SECONDS:.0f}")
    time.sleep(2)
    undisturbed = hits(daemon)
    print(f"     undisturbed: {undisturbed:.0f} hits/s, a client of the unix socket waits {waits(daemon):.1f} ms at most")

    silent = [Wire(address, f"127.0.0.{2 + number % 8}") for number in range(SILENT)]
    now = hits(daemon)
    print(f"     {SILENT} silent connections: {now / undisturbed:.3f} of that, {waits(daemon):.1f} ms")
    for wire in silent:
        wire.close()

    again = hits(daemon)
    done, ended = multiprocessing.Value("i", 0), multiprocessing.Event()
    all_of_them = [multiprocessing.Process(target=shakes_hands, args=(address, cert, done, ended)) for _ in range(PROCESSES)]
    for process in all_of_them:
        process.start()
    time.sleep(1)
    before, begun = done.value, time.monotonic()
    now, wait = hits(daemon), waits(daemon)
    rate = (done.value - before) / (time.monotonic() - begun)
    print(f"     {HANDSHAKES} TLS handshakes/s begun, {rate:.0f}/s completed: {now / again:.3f} of the hits before, {wait:.1f} ms")
    ended.set()
    for process in all_of_them:
        process.join()
    load.kill()


main()
