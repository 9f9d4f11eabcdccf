"""A volume that clients have open: they are listed, and not cut off without being asked."""

import os

from harness import *
from harness.wire import *

SIZE = 32 * MIB


def started(box, *arguments):
    daemon = box.daemon(*arguments)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))
    return daemon


def connected(address, name="v"):
    """A client that has a volume open and is idle."""
    wire = Wire(address)
    wire.greet()
    check_equal(wire.go(name), SIZE, "the size of the volume")
    return wire


def is_served(wire):
    wire.socket.settimeout(PATIENCE)
    return wire.ask(READ, 0, 4096)[0] == 0


@test
def a_volume_that_clients_have_open_is_neither_stopped_nor_deleted(box):
    port = free_port()
    daemon = Daemon(box)
    daemon.start("--nbd", f"127.0.0.1:{port}")
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--set", "nbd=all")
    pid = os.getpid()
    with connected(daemon.nbd) as one, connected(daemon.nbd) as two, connected(("127.0.0.1", port)) as three:
        host, source = three.socket.getsockname()
        clients = daemon.show("v")["clients"]
        process = {"front_end": "nbd", "transport": "unix", "address": None, "pid": pid, "process": "python3"}
        machine = {"front_end": "nbd", "transport": "tcp", "address": f"{host}:{source}", "pid": None, "process": None}
        process["process"] = clients[0]["process"]
        check("python" in process["process"], f"the name of the process: {process['process']}")
        check_equal(sorted(clients, key=str), sorted([process, process, machine], key=str), "the clients")
        shown = daemon.cli("show", "v").stdout
        for row in (f"process {pid} ({process['process']})", "nbd, unix socket", "2"), (host, "nbd, TCP", "1"):
            check(any(all(cell in line for cell in row) for line in shown.splitlines()), f"no row of {row}: {shown}")

        for command in ["stop"], ["delete"], ["delete", "--discard-dirty"], ["delete", "--wipe"]:
            said = daemon.cli(*command, "v", expect=3).stderr
            wanted = (f"process {pid} ({process['process']}) by unix socket (2 connections)", f"{host}:{source} by TCP")
            for text in *wanted, f"'forebay {command[0]} --force v'":
                check(text in said, f"{command} does not say '{text}': {said}")
            check(all(is_served(wire) for wire in (one, two, three)), f"after {command} a client is not served")
            check_equal(daemon.show("v")["state"], "running", f"the state after {command}")
            connected(daemon.nbd).close()
        # Another volume has nothing to do with them.
        daemon.create("w", box.path("cache"), box.file("other", SIZE))
        daemon.cli("stop", "w")
        daemon.cli("stop", "--force", "v")
        check(all(wire.is_closed() for wire in (one, two, three)), "a client is connected after a stop by force")
    daemon.cli("start", "v")
    with connected(daemon.nbd) as wire:
        daemon.cli("delete", "--force", "v")
        check(wire.is_closed(), "a client is connected after a delete by force")


@test
def those_that_have_nothing_open_do_not_keep_a_volume(box):
    daemon = started(box)
    with Wire(daemon.nbd) as silent, Wire(daemon.nbd) as lists, Wire(daemon.nbd) as asks:
        silent.receive(1)
        lists.greet()
        lists.send_option(LIST)
        check_equal(lists.option_reply()[2][4:], b"v", "the export that is listed")
        asks.greet()
        asks.send_option(INFO, struct.pack(">I1sH", 1, b"v", 0))
        check_equal(asks.option_reply()[1], 3, "the answer to a question")
        check_equal(daemon.show("v")["clients"], [], "clients that have nothing open")
        daemon.cli("stop", "v")
    daemon.cli("start", "v")
    # Whoever has left is gone at once, whether in order or not.
    for round in range(20):
        wire = connected(daemon.nbd)
        if round % 2:
            wire.request(DISCONNECT)
        wire.close()
        daemon.cli("stop", "v")
        daemon.cli("start", "v")


@test
def a_volume_that_is_being_stopped_takes_no_new_clients(box):
    daemon = started(box)
    daemon.cli("stop", "v")
    with Wire(daemon.nbd) as wire:
        wire.greet()
        wire.send_option(GO, struct.pack(">I1sH", 1, b"v", 0))
        check_equal(wire.option_reply()[1], 0x80000006, "the answer")
        daemon.cli("start", "v")
        wire.send_option(GO, struct.pack(">I1sH", 1, b"v", 0))
        check_equal(wire.option_reply()[1], 3, "the answer after a start")


@test
def neither_the_end_of_the_daemon_nor_a_hand_over_asks_clients(box):
    daemon = started(box)
    with connected(daemon.nbd) as wire:
        daemon.cli("daemon", "--take-over")
        check(is_served(wire), "the client is not served after a hand-over")
        check_equal([client["pid"] for client in daemon.show("v")["clients"]], [os.getpid()], "the clients")
        daemon.cli("stop", "v", expect=3)
        check_equal(daemon.terminate()[0], 0, "the exit code")
        check(wire.is_closed(), "a client is connected after the end")


@test
def a_device_and_a_volume_never_have_one_name(box):
    daemon, raw = Daemon(box), box.file("raw", MIB)
    daemon.start("--export-raw", f"x={raw}")
    devices = box.file("cache", 64 * MIB), box.file("origin", SIZE)
    for arguments in [], ["--adopt"]:
        said = daemon.create_run("x", *devices, *arguments, expect=3).stderr
        check("--export-raw" in said and "choose another name" in said, f"the refusal: {said}")
    with Wire(daemon.nbd) as wire:
        wire.greet()
        check_equal(wire.go("x"), MIB, "the size of the device")
    daemon.create("v", *devices)
    connected(daemon.nbd).close()
    daemon.terminate()
    for arguments in ["--export-raw", f"v={raw}"], ["--export-raw", f"x={raw}", "--export-raw", f"x={raw}"]:
        done = box.run(*daemon.command(*arguments), expect=2)
        check("--export-raw" in done.stderr and "choose another" in done.stderr, f"{arguments}: {done.stderr}")
    daemon.start()
    connected(daemon.nbd).close()


main()
