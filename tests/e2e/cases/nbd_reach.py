"""The setting nbd: which clients of NBD find a volume, by unix socket and by TCP."""

import contextlib
import json
import os

from harness import *
from harness.devices import exported
from harness.faults import wait_for
from harness.wire import *

SIZE = 32 * MIB
UNKNOWN = 0x80000006


class Both:
    """A daemon with a unix socket and a TCP port, and volumes that all use one cache device."""

    def __init__(self, box, *options):
        self.box, self.port = box, free_port()
        self.options = ("--nbd", f"127.0.0.1:{self.port}", *options)
        self.daemon = Daemon(box)
        self.daemon.start(*self.options)
        self.cache = box.file("cache", 96 * MIB)

    def create(self, name, *arguments):
        return self.daemon.create_run(name, self.cache, self.box.file(f"origin-{name}", SIZE), *arguments)

    def wire(self, by):
        """A connection after the greeting."""
        wire = Wire(self.daemon.nbd if by == "unix" else ("127.0.0.1", self.port))
        wire.greet()
        return wire

    def listed(self, by):
        """The names in the answer to LIST."""
        with self.wire(by) as wire:
            wire.send_option(LIST)
            names = []
            while True:
                _, kind, data = wire.option_reply()
                if kind == 1:
                    return names
                names.append(data[4:].decode())

    def opened(self, name, by):
        """A client that has a volume open, or nothing if that does not exist for it."""
        wire = self.wire(by)
        wire.send_option(GO, struct.pack(">I", len(name)) + name.encode() + bytes(2))
        kind = wire.option_reply()[1]
        if kind == UNKNOWN:
            wire.close()
            return None
        check_equal(kind, 3, f"the answer about {name} by {by}")
        while wire.option_reply()[1] != 1:
            pass
        return wire

    def finds(self, name):
        """Whether clients by unix socket and by TCP find a volume."""
        found = []
        for by in ("unix", "tcp"):
            wire = self.opened(name, by)
            found.append(wire is not None)
            with contextlib.suppress(AttributeError):
                wire.close()
            check_equal(name in self.listed(by), wire is not None, f"whether {name} is listed by {by}")
        return tuple(found)


def reads(wire):
    return wire.ask(READ, 0, 4096)[0] == 0


@test
def each_kind_of_client_finds_the_volumes_that_take_it_and_nothing_of_others(box):
    need("nbdinfo")
    both = Both(box)
    said = both.create("usual")
    check("'forebay set usual nbd=all'" in said.stderr, f"create does not say who does not find it: {said.stderr}")
    check(said.stdout.startswith("nbd+unix:///usual?"), f"create printed {said.stdout}")
    for nbd in ("all", "local", "off"):
        said = both.create(nbd, "--set", f"nbd={nbd}")
        check_equal((bool(said.stdout), said.stderr), (nbd != "off", ""), f"what create said of {nbd}")
    expected = {"usual": (True, False), "all": (True, True), "local": (True, False), "off": (False, False)}
    for name, found in expected.items():
        check_equal(both.finds(name), found, f"who finds {name}")
        uris = both.daemon.show(name)["export"]["all"]
        of = [uri.startswith("nbd+unix:") for uri in uris], [uri.startswith("nbd:") for uri in uris]
        check_equal(tuple(any(by) for by in of), found, f"the URIs of {name}: {uris}")
    listed = {volume["name"]: volume["nbd"] for volume in json.loads(both.daemon.cli("list", "--json").stdout)["volumes"]}
    check_equal([name for name, uri in listed.items() if uri is None], ["off"], "volumes that are listed without a URI")
    check("-" in both.daemon.cli("list").stdout, "the table")
    check_equal([both.daemon.show(name)["settings"]["nbd"] for name in expected], ["local", "all", "local", "off"], "nbd")
    # The answers are those about a volume that does not exist.
    for prepare in ((), (STRUCTURED_REPLY,), (EXTENDED_HEADERS,)):
        with both.wire("tcp") as wire:
            for option in prepare:
                wire.send_option(option)
                check_equal(wire.option_reply()[1], 1, "the form of replies")

            def answers(name):
                text = struct.pack(">I", len(name)) + name.encode()
                for option, data in ((INFO, bytes(2)), (GO, bytes(2)), (LIST_META_CONTEXT, bytes(4)), (SET_META_CONTEXT, bytes(4))):
                    wire.send_option(option, text + data)
                    yield wire.option_reply()

            unknown = list(answers("unknown"))
            for name in ("usual", "local", "off"):
                check_equal(list(answers(name)), unknown, f"the answers about {name}")
    for name in ("unknown", "local", "off"):
        with both.wire("tcp") as wire:
            wire.send_option(EXPORT_NAME, name.encode())
            check(wire.is_closed(), f"EXPORT_NAME finds {name}")
    # The empty name stands for the first volume that the client finds.
    for by, first in ("unix", "usual"), ("tcp", "all"):
        with both.wire(by) as wire:
            wire.send_option(INFO, bytes(4) + struct.pack(">HH", 1, 1))
            while (reply := wire.option_reply())[1] == 3 and reply[2][:2] != b"\0\1":
                pass
            check_equal(reply[2][2:].decode(), first, f"the first volume by {by}")
    tcp = f"nbd://127.0.0.1:{both.port}"
    info = json.loads(box.run("nbdinfo", "--json", "--list", tcp).stdout)
    check_equal([export["export-name"] for export in info["exports"]], ["all"], "what nbdinfo lists by TCP")
    check(box.run("nbdinfo", f"{tcp}/local", expect=None).returncode != 0, "nbdinfo finds a local volume by TCP")
    box.run("nbdinfo", f"nbd+unix:///local?socket={both.daemon.nbd}")


@test
def a_change_is_for_new_clients_and_refused_over_those_that_it_would_exclude(box):
    both = Both(box)
    both.create("v", "--set", "nbd=all")
    local, remote = both.opened("v", "unix"), both.opened("v", "tcp")
    address = "{}:{}".format(*remote.socket.getsockname())
    for nbd, excluded, others in ("local", (address,), (str(os.getpid()),)), ("off", (address, str(os.getpid())), ()):
        said = both.daemon.cli("set", "v", f"nbd={nbd}", "dirty_high=70", expect=3).stderr
        for text in (*excluded, "'forebay stop --force v'"):
            check(text in said, f"nbd={nbd} does not say '{text}': {said}")
        for text in others:
            check(text not in said, f"nbd={nbd} names a client that may stay: {said}")
        settings = both.daemon.show("v")["settings"]
        check_equal((settings["nbd"], settings["dirty_high"]), ("all", 50), "settings after a refusal")
        check_equal(both.finds("v"), (True, True), "who finds the volume after a refusal")
        check(reads(local) and reads(remote), "a client was cut off")
    # The kernel tells the daemon of the end of a connection a moment later.
    left = lambda count: wait_for(lambda: len(both.daemon.show("v")["clients"]) == count, "the others are gone")
    remote.close()
    left(1)
    both.daemon.cli("set", "v", "nbd=local")
    check_equal(both.finds("v"), (True, False), "who finds a local volume")
    check(reads(local), "a client that is taken still was cut off")
    both.daemon.cli("set", "v", "nbd=off", expect=3)
    local.close()
    left(0)
    both.daemon.cli("set", "v", "nbd=off")
    check_equal(both.finds("v"), (False, False), "who finds a volume that is off")
    both.daemon.cli("set", "v", "nbd=all")
    check_equal(both.finds("v"), (True, True), "who finds it again")
    # A volume that is not served has no clients.
    left(0)
    both.daemon.cli("stop", "v")
    both.daemon.cli("set", "v", "nbd=off")
    both.daemon.cli("start", "v")
    check_equal(both.finds("v"), (False, False), "who finds it after a stop")


@test
def it_lasts_beyond_hand_overs_restarts_and_the_loss_of_the_state(box):
    both = Both(box)
    for nbd in ("all", "local", "off"):
        both.create(nbd, "--set", f"nbd={nbd}")
    expected = {"all": (True, True), "local": (True, False), "off": (False, False)}

    def look(when):
        for name, found in expected.items():
            check_equal(both.finds(name), found, f"who finds {name} {when}")

    kept = [both.opened("all", "unix"), both.opened("all", "tcp"), both.opened("local", "unix")]
    for _ in range(3):
        both.daemon.cli("daemon", "--take-over")
        check(all(reads(wire) for wire in kept), "a client was cut off by a hand-over")
        look("after a hand-over")
    both.daemon.restart(*both.options)
    look("after a restart")
    both.daemon.kill()
    both.daemon.start(*both.options)
    look("after a crash")
    both.daemon.terminate()
    os.rename(f"{both.daemon.state}/state.json", box.path("lost"))
    both.daemon.start(*both.options)
    for nbd in ("all", "local", "off"):
        said = both.create(nbd, "--adopt")
        check_equal(both.daemon.show(nbd)["settings"]["nbd"], nbd, "the setting of an adopted volume")
    look("after an adoption")


@test
def a_volume_of_an_older_version_keeps_all_its_clients(box):
    both = Both(box)
    both.create("v")
    both.daemon.terminate()
    path = f"{both.daemon.state}/state.json"
    with open(path) as file:
        state = json.load(file)
    check_equal(state["volumes"][0]["volume"]["settings"].pop("nbd"), "local", "the setting in the state")
    with open(path, "w") as file:
        json.dump(state, file)
    both.daemon.start(*both.options)
    check_equal((both.finds("v"), both.daemon.show("v")["settings"]["nbd"]), ((True, True), "all"), "who finds it")
    both.daemon.cli("set", "v", "dirty_high=70")
    both.daemon.restart(*both.options)
    check_equal(both.finds("v"), (True, True), "who finds it after a change of something else")


@test
def a_block_device_has_nothing_to_do_with_it(box):
    daemon, device = exported(box, "v", "--set", "nbd=off", size=SIZE)
    with Wire(daemon.nbd) as wire:
        wire.greet()
        wire.send_option(GO, struct.pack(">I1sH", 1, b"v", 0))
        check_equal(wire.option_reply()[1], UNKNOWN, "the answer about a volume that is off")
    content = random_bytes("device", MIB)
    with open(device, "r+b") as file:
        # While it is open, too.
        for nbd in ("all", "off", "local", "off"):
            daemon.cli("set", "v", f"nbd={nbd}")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        daemon.cli("daemon", "--take-over")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        check(file.read(MIB) == content, "what was written differs")
    check_equal(daemon.show("v")["export"]["device"], device, "the device")


@test
def a_declaration_has_it_and_leaves_alone_where_it_says_nothing(box):
    both = Both(box)
    for name in ("a", "b"):
        box.file(f"origin-{name}", SIZE)
    declared = box.path("forebay.toml")

    def apply(**nbd):
        with open(declared, "w") as file:
            for name in ("a", "b"):
                own = f"nbd = '{nbd[name]}'\n" if name in nbd else ""
                origin = box.path(f"origin-{name}")
                file.write(f"[volumes.{name}]\ncache = '{both.cache}'\norigin = '{origin}'\n{own}")
        both.daemon.cli("apply", "--config", declared)
        found = both.finds("a"), both.finds("b")
        wait_for(lambda: not any(both.daemon.show(name)["clients"] for name in ("a", "b")), "its clients are gone")
        return found

    check_equal(apply(a="all"), ((True, True), (True, False)), "two new volumes")
    check_equal(apply(b="off"), ((True, True), (False, False)), "a file that says nothing of one")
    check_equal(apply(a="local", b="all"), ((True, False), (True, True)), "both")


main()
