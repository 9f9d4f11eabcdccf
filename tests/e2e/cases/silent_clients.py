"""Clients that connect and say nothing: others connect and are served all the same."""

from harness import *
from harness.wire import *

SIZE = 32 * MIB
# More than there are places for handshakes, by every transport.
SILENT = 600


def served(box):
    """A daemon at a port and a unix socket, with a volume."""
    port = free_port()
    daemon = Daemon(box)
    daemon.start("--nbd", f"127.0.0.1:{port}")
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--set", "nbd=all")
    return daemon, ("127.0.0.1", port)


def uses(address, source=None):
    """Opens the volume, and reads."""
    with Wire(address, source) as wire:
        wire.greet()
        check_equal(wire.go("v"), SIZE, f"the size at {address}")
        check_equal(wire.ask(READ, 0, 4096)[0], 0, "the error of a read")


def is_served(address, source=None):
    """Whether it is not turned away."""
    try:
        uses(address, source)
    except (EOFError, ConnectionError):
        return False
    return True


def silent(address, number, source=None):
    return [Wire(address, source) for _ in range(number)]


@test
def silent_clients_by_tcp_lock_out_nobody_else(box):
    daemon, address = served(box)
    with opened(daemon.nbd, "v")[0] as before:
        wires = [silent(address, SILENT, f"127.0.0.{number}") for number in range(2, 8)]
        # By the unix socket, and from an address that has fewer connections than others.
        uses(daemon.nbd)
        uses(address, "127.0.0.9")
        check_equal(before.ask(READ, 0, 4096)[0], 0, "the error of a read of one that was there")
        check_equal(len(daemon.show("v")["clients"]), 1, "the clients")
        # One of those addresses has a place again when its oldest silent connection has had its time.
        wait_for(lambda: is_served(address, "127.0.0.2"), "a client of such an address is served")
        lines = [line for line in daemon.log().splitlines() if "turned away" in line]
        check(1 <= len(lines) <= 10, f"{len(lines)} lines about {6 * SILENT} silent connections")
        for wire in sum(wires, []):
            wire.close()


@test
def silent_clients_by_the_unix_socket_lock_out_nobody_for_long(box):
    daemon, address = served(box)
    wires = silent(daemon.nbd, SILENT)
    uses(address)
    wait_for(lambda: is_served(daemon.nbd), "a client of the same user is served")
    for wire in wires:
        wire.close()
    uses(daemon.nbd)


main()
