"""NBD by TCP: who may connect."""

import socket

from harness import *
from harness.wire import *

SIZE = 32 * MIB


def refused(address, source):
    """Whether the connection ends before a single byte comes."""
    with Wire(address, source) as wire:
        try:
            wire.receive(1)
        except (EOFError, ConnectionError):
            return True
        return False


@test
def only_the_networks_of_the_list_are_served(box):
    address = ("127.0.0.1", free_port())
    daemon = Daemon(box)
    tcp = ("--nbd", f"127.0.0.1:{address[1]}")
    daemon.start(*tcp, "--nbd-allow", "127.0.0.2", "--nbd-allow", "127.1.0.0/16")
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--set", "nbd=all")
    for source in ("127.0.0.2", "127.1.2.3"):
        with Wire(address, source) as wire:
            wire.greet()
            check_equal(wire.go("v"), SIZE, f"the size that {source} sees")
    for source in ("127.0.0.1", "127.0.0.3", "127.2.0.1"):
        for _ in range(20):
            check(refused(address, source), f"{source} was served")
    lines = [line for line in daemon.log().splitlines() if "turned away" in line]
    check(1 <= len(lines) <= 10, f"{len(lines)} lines about 60 refused connections")
    check("--nbd-allow" in lines[0], f"the log does not name the list: {lines[0]}")
    # The unix socket has no such list.
    opened(daemon.nbd, "v")[0].close()
    daemon.restart(*tcp)
    with Wire(address, "127.0.0.3") as wire:
        wire.greet()
        check_equal(wire.go("v"), SIZE, "the size without a list")


@test
def a_list_holds_for_both_families_at_one_port(box):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        skip(f"there is no IPv6 here: {error}")
    port = free_port()
    daemon = Daemon(box)
    # The socket of all interfaces shows clients of IPv4 with addresses of IPv6.
    daemon.start("--nbd", f"[::]:{port}", "--nbd-allow", "127.0.0.2", "--nbd-allow", "::1")
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--set", "nbd=all")
    for host, source in (("::1", None), ("127.0.0.1", "127.0.0.2")):
        with Wire((host, port), source) as wire:
            wire.greet()
            check_equal(wire.go("v"), SIZE, f"the size at {host}")
    check(refused(("127.0.0.1", port), "127.0.0.1"), "127.0.0.1 was served")


@test
def lists_that_cannot_be_meant_are_refused(box):
    daemon = Daemon(box)
    for arguments, reason in (
        (("--nbd-allow", "127.0.0.1"), "--nbd HOST:PORT"),
        (("--nbd", "127.0.0.1:1", "--nbd-allow", "127.0.0.1/8"), "127.0.0.0/8"),
        (("--nbd", "127.0.0.1:1", "--nbd-allow", "localhost"), "not a network"),
    ):
        done = box.run(*daemon.command(*arguments), expect=2)
        check(reason in done.stderr, f"{arguments}: {done.stderr}")


main()
