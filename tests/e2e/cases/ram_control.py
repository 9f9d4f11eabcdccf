"""Pause, freeze, resume, drop and prefetch: what is cached may change, and what a client reads never does."""

import pathlib
import signal
import subprocess
import time

from harness import *

SIZE = 16 * MIB


def create(box, daemon, name, *arguments, cached=True, deferred=False, content=b"", ram="32M"):
    """Makes a volume with a RAM tier; returns its URI. The paths are NAME.cache and NAME.origin."""
    cache = ["-s", box.file(f"{name}.cache", 64 * MIB)] if cached else []
    origin = box.file(f"{name}.origin", SIZE, content)
    kind = ["--durability", "deferred", "--defer", "1h"] if deferred else []
    options = ["--ram", ram, "--set", "sequential_cutoff=0", *kind, *arguments]
    return daemon.cli("create", name, *cache, "-p", origin, *options).stdout.strip()


def origin_of(box, name):
    return pathlib.Path(box.path(f"{name}.origin")).read_bytes()


def model_of(daemon, uri, name, content=bytes(SIZE), clients=4):
    model = Model(connect(uri), SIZE, seed=name, content=content)
    return model, [model.client] + [connect(uri) for _ in range(clients - 1)]


def steps(model, clients, count):
    for number in range(count):
        model.client = clients[number % len(clients)]
        model.step()


def verb_under_load(box, daemon, model, clients, *command):
    """Runs a verb while clients read and write."""
    running = box.spawn(
        daemon.binary, "--socket", daemon.socket, *command, stderr=subprocess.PIPE, text=True
    )
    since = time.monotonic()
    while running.poll() is None:
        check(time.monotonic() - since < 120, f"{command}: it never ended")
        steps(model, clients, 1)
    check_equal(running.returncode, 0, f"{command}: {running.stderr.read()}")


KINDS = [(True, False), (True, True), (False, False), (False, True)]


@test
def a_paused_volume_has_its_data_on_the_origin_and_passes_through(box):
    daemon = box.daemon()
    daemon.restart("--lanes", "3")
    for cached, deferred in KINDS:
        name = f"v{cached:d}{deferred:d}"
        uri = create(box, daemon, name, cached=cached, deferred=deferred)
        model, clients = model_of(daemon, uri, name)
        steps(model, clients, 200)
        verb_under_load(box, daemon, model, clients, "pause", name)
        for _ in range(2):
            steps(model, clients, 100)
            shown = daemon.show(name)
            held = (shown["caching"], shown["blocks"]["dirty"], shown["ram"]["deferred"], shown["ram"]["used"])
            check_equal(held, ("paused", 0, 0, 0), f"{name}: state, dirty, deferred and used")
            check_equal(shown["ram"]["size"], 0, f"{name}: the size of the tier")
            used = shown["memory"]["used_bytes"]["ram_tiers"]
            check(used < 8 * MIB, f"{used} bytes of RAM tiers are still counted")
            place = first_difference(origin_of(box, name), bytes(model.bytes))
            check_equal(place, None, f"{name}: the first difference on the origin")
            listed = daemon.cli("list").stdout
            check(f"({shown['caching']})" in listed, listed)
            # Also after a restart.
            daemon.restart("--lanes", "3")
            model.client = connect(daemon.uri(name))
            clients = [model.client] + [connect(daemon.uri(name)) for _ in range(3)]
            model.check_all()
        cached_before = daemon.show(name)["blocks"]["cached"]
        verb_under_load(box, daemon, model, clients, "resume", name)
        shown = daemon.show(name)
        check_equal((shown["caching"], shown["ram"]["size"]), ("on", 32 * MIB), f"{name}: after resume")
        if cached:
            check(cached_before > 0, f"{name}: the cache device is not warm")
        steps(model, clients, 100)
        model.check_all()
        shown = daemon.show(name)
        check(shown["ram"]["used"] > 0, f"{name}: nothing enters RAM after resume: {shown['ram']}")
        check(not deferred or shown["ram"]["deferred_written"] > 0, f"{name}: nothing is deferred")
        daemon.cli("delete", "--force", name)
        place = first_difference(origin_of(box, name), bytes(model.bytes))
        check_equal(place, None, f"{name}: the first difference at the end")


@test
def what_is_paused_is_used_again_after_resume(box):
    daemon = box.daemon()
    uri = create(box, daemon, "v", content=random_bytes("warm", SIZE))
    client = connect(uri)
    for at in range(0, 4 * MIB, 64 * KIB):
        client.cache(64 * KIB, at)
    daemon.cli("pause", "v")
    client.pwrite(b"x" * BLOCK, 0)
    daemon.cli("resume", "v")
    before = daemon.show("v")["requests"]
    for at in range(64 * KIB, 4 * MIB, 64 * KIB):
        client.pread(64 * KIB, at)
    after = daemon.show("v")["requests"]
    check_equal(after["read_misses"], before["read_misses"], "misses after resume")
    check_equal(bytes(client.pread(BLOCK, 0)), b"x" * BLOCK, "what was written while paused")


@test
def a_stopped_volume_with_dirty_blocks_cannot_be_paused(box):
    daemon = box.daemon()
    uri = create(box, daemon, "v", "--set", "writeback_running=off")
    connect(uri).pwrite(b"d" * MIB, 0)
    daemon.cli("stop", "--force", "v")
    for command in ["pause", "v"], ["set", "v", "caching=paused"]:
        said = daemon.cli(*command, expect=3).stderr
        check("not served" in said and "start it" in said, said)
        check_equal(daemon.show("v")["caching"], "on", f"the state after {command}")
    # The other states need no write to the origin.
    daemon.cli("freeze", "v")
    daemon.cli("resume", "v")
    daemon.cli("start", "v")
    daemon.cli("pause", "v")
    check(origin_of(box, "v").startswith(b"d" * MIB), "the origin is not complete")
    # A volume that is paused already may be changed while it is stopped.
    daemon.cli("stop", "--force", "v")
    daemon.cli("pause", "v")
    daemon.cli("set", "v", "idle=5s")


@test
def an_interrupted_pause_changes_nothing(box):
    daemon = box.daemon()
    for deferred in False, True:
        name = f"v{deferred:d}"
        disk = Disk(box, f"{name}.origin", SIZE)
        kind = ["--durability", "deferred", "--defer", "1h"] if deferred else []
        uri = daemon.create(
            name, box.file(f"{name}.cache", 64 * MIB), disk.name, "--ram", "8M",
            "--set", "writeback_running=off", *kind,
        )  # fmt: skip
        model, clients = model_of(daemon, uri, name)
        model.client.pwrite(b"d" * MIB, 0)
        model.bytes[:MIB] = b"d" * MIB
        disk.faults("hang write")
        pausing = box.spawn(daemon.binary, "--socket", daemon.socket, "pause", name, stderr=subprocess.PIPE)
        wait_for(lambda: daemon.show(name)["state"] == "draining", "it drains")
        # The verb follows the operation by now.
        time.sleep(1)
        pausing.send_signal(signal.SIGINT)
        check(pausing.wait(60) != 0, "it was interrupted")
        disk.heal()
        shown = daemon.show(name)
        check_equal((shown["caching"], shown["settings"]["caching"]), ("on", "on"), "the state")
        check_equal(shown["ram"]["size"], 8 * MIB, "the size of the tier")
        steps(model, clients, 100)
        model.check_all()
        check(daemon.show(name)["ram"]["used"] > 0, "nothing enters RAM")
        check(not deferred or daemon.show(name)["ram"]["deferred"] > 0, "nothing is deferred")
        daemon.cli("pause", name)
        place = first_difference(origin_of(box, name), bytes(model.bytes))
        check_equal(place, None, f"{name}: the first difference")


@test
def a_frozen_volume_admits_nothing_and_stays_exact(box):
    daemon = box.daemon()
    daemon.restart("--lanes", "3")
    for cached, deferred in KINDS:
        name = f"v{cached:d}{deferred:d}"
        content = random_bytes(name, SIZE)
        uri = create(box, daemon, name, cached=cached, deferred=deferred, content=content)
        model, clients = model_of(daemon, uri, name, content)
        # A part of the volume is cached.
        for at in range(0, 4 * MIB, 256 * KIB):
            model.check_range(at, 128 * KIB)
        verb_under_load(box, daemon, model, clients, "freeze", name)
        before = daemon.show(name)
        check_equal((before["caching"], before["ram"]["deferred"]), ("frozen", 0), f"{name}: after freeze")
        steps(model, clients, 400)
        model.check_all()
        after = daemon.show(name)
        for tier in "ram", "cache":
            check(after[tier]["used"] <= before[tier]["used"], f"{name}: {tier} grew: {before} {after}")
        check_equal(after["ram"]["deferred"], 0, f"{name}: deferred while frozen")
        check(after["ram"]["hits"] > before["ram"]["hits"], f"{name}: it served nothing")
        if cached:
            check(after["why"]["bypass"]["frozen"] > 0, f"{name}: {after['why']}")
            check_equal(after["blocks"]["filled"], before["blocks"]["filled"], f"{name}: fills")
        said = daemon.cli("prefetch", name, expect=3).stderr
        check("forebay resume" in said, said)
        daemon.restart("--lanes", "3")
        check_equal(daemon.show(name)["caching"], "frozen", f"{name}: after a restart")
        uri = daemon.uri(name)
        clients = [connect(uri) for _ in range(4)]
        steps(model, clients, 100)
        model.check_all()
        check_equal(daemon.show(name)["ram"]["used"], 0, f"{name}: RAM after a restart")
        verb_under_load(box, daemon, model, clients, "resume", name)
        steps(model, clients, 100)
        model.check_all()
        check(daemon.show(name)["ram"]["used"] > 0, f"{name}: nothing enters after resume")
        daemon.cli("delete", "--force", name)
        place = first_difference(origin_of(box, name), bytes(model.bytes))
        check_equal(place, None, f"{name}: the first difference at the end")


@test
def a_kill_in_the_middle_of_a_verb_loses_nothing_that_was_flushed(box):
    daemon = box.daemon()
    daemon.restart("--lanes", "2")
    for cached, deferred in KINDS:
        name = f"v{cached:d}{deferred:d}"
        uri = create(box, daemon, name, cached=cached, deferred=deferred)
        recorder = Recorder(uri, connections=3, blocks=SIZE // BLOCK, seed=1)
        for round, verb in enumerate(("pause", "resume", "drop", "freeze", "drop", "pause", "freeze", "resume")):
            recorder.write(600)
            recorder.flush()
            recorder.write(100)
            running = box.spawn(
                daemon.binary, "--socket", daemon.socket, verb, name, stderr=subprocess.DEVNULL
            )
            time.sleep(round * 0.01)
            daemon.kill()
            running.wait(60)
            daemon.start("--lanes", "2")
            recorder.verify(daemon.uri(name))
            recorder.reconnect(daemon.uri(name))
        daemon.cli("delete", "--force", name)


@test
def a_paused_volume_is_adopted_as_it_is(box):
    content = random_bytes("adopted", SIZE)
    first = box.daemon(name="a")
    create(box, first, "v", content=content)
    first.cli("pause", "v")
    first.kill()
    second = box.daemon(name="b")
    second.create("v", box.path("v.cache"), box.path("v.origin"), "--adopt")
    shown = second.show("v")
    check_equal((shown["caching"], shown["mode"], shown["ram"]["size"]), ("paused", "writeback", 0), "adopted")
    client = connect(second.uri("v"))
    check_equal(bytes(client.pread(MIB, MIB)), content[MIB : 2 * MIB], "the content")
    second.cli("resume", "v")
    check_equal(second.show("v")["ram"]["size"], 32 * MIB, "the size of the tier")


@test
def drop_keeps_what_only_the_cache_has(box):
    daemon = box.daemon()
    daemon.restart("--lanes", "3")
    for deferred in False, True:
        name = f"v{deferred:d}"
        content = random_bytes(name, SIZE)
        quiet = ["--set", "writeback_running=off"]
        uri = create(box, daemon, name, *quiet, deferred=deferred, content=content)
        model, clients = model_of(daemon, uri, name, content)
        steps(model, clients, 300)
        for command in (["--ram"], ["--ssd"], []):
            verb_under_load(box, daemon, model, clients, "drop", name, *command)
            steps(model, clients, 20)
            model.check_all()
            daemon.cli("drop", name, *command)
            shown = daemon.show(name)
            ram, blocks = shown["ram"], shown["blocks"]
            if command != ["--ssd"] and not deferred:
                check_equal(ram["used"], 0, f"{name}: what is left in RAM")
            if command != ["--ram"]:
                check_equal(blocks["cached"], blocks["dirty"], f"{name}: only dirty blocks stay")
                check(deferred or blocks["dirty"] > 0, f"{name}: nothing was dirty")
                check(shown["why"]["invalidated"]["dropped"] > 0, f"{name}: {shown['why']}")
            check(not deferred or ram["deferred"] > 0, f"{name} {command}: deferred data is gone: {ram}")
            model.client = clients[0]
            model.check_all()
        daemon.cli("delete", "--force", name)
        place = first_difference(origin_of(box, name), bytes(model.bytes))
        check_equal(place, None, f"{name}: the first difference at the end")
    daemon.cli("create", "plain", "-s", box.file("p.cache", 64 * MIB), "-p", box.file("p.origin", SIZE))
    said = daemon.cli("drop", "plain", "--ram", expect=3).stderr
    check("no RAM tier" in said and "ram=" in said, said)
    daemon.cli("drop", "plain")
    said = daemon.cli("prefetch", "plain", expect=3).stderr
    check("no RAM tier" in said and "ram=" in said, said)


def fill(client, content, first=0, last=6 * MIB):
    for at in range(first, last, 96 * KIB):
        check(bytes(client.pread(32 * KIB, at)) == content[at : at + 32 * KIB], "what is on the origin")


def read_again(daemon, client, content, name):
    """Reads what was read before; returns how many blocks were hits and misses in RAM."""
    before = daemon.show(name)["ram"]
    fill(client, content)
    after = daemon.show(name)["ram"]
    return after["hits"] - before["hits"], after["misses"] - before["misses"]


def prefetched(daemon, name):
    """Waits for the end of a prefetch that a start has begun."""
    listed = lambda: [
        line for line in daemon.log().splitlines() if "prefetched" in line and f'"{name}"' in line
    ]
    before = len(listed())
    return lambda: wait_for(lambda: len(listed()) > before, f"the prefetch of {name}")


@test
def prefetch_brings_back_what_was_in_ram(box):
    for cached in True, False:
        content = random_bytes(f"p{cached}", SIZE)
        daemon = box.daemon(name=f"c{cached:d}")
        name = f"v{cached:d}"
        client = connect(create(box, daemon, name, cached=cached, content=content))
        said = daemon.cli("prefetch", name, expect=3).stderr
        check("there is no list of the blocks" in said, said)
        fill(client, content)
        used = daemon.show(name)["ram"]["used"]
        # By the verb, after a stop and after the daemon's end.
        for stop in "stop", "sigterm":
            if stop == "stop":
                daemon.cli("stop", "--force", name)
                daemon.cli("start", name)
            else:
                daemon.restart()
            check_equal(daemon.show(name)["ram"]["used"], 0, f"{name}: used after {stop}")
            daemon.cli("prefetch", name)
            shown = daemon.show(name)["ram"]
            check_equal((shown["used"], shown["evictions"]), (used, 0), f"{name}: used and evicted, {stop}")
            client = connect(daemon.uri(name))
            hits, misses = read_again(daemon, client, content, name)
            check_equal(misses, 0, f"{name}: misses after a prefetch, {stop}")
            check(hits > 0, "no hits")
        # By the setting, at each start.
        daemon.cli("set", name, "prefetch=on")
        for stop in "stop", "sigterm":
            done = prefetched(daemon, name)
            if stop == "stop":
                daemon.cli("stop", "--force", name)
                daemon.cli("start", name)
            else:
                daemon.restart()
            done()
            check_equal(daemon.show(name)["ram"]["used"], used, f"{name}: used after the start, {stop}")
            check_equal(read_again(daemon, connect(daemon.uri(name)), content, name)[1], 0, "misses")
        # What is written after the list was stored is read as it is, and a kill leaves an older list.
        client = connect(daemon.uri(name))
        changed = bytearray(content)
        for at in range(0, 6 * MIB, 96 * KIB):
            changed[at : at + BLOCK] = random_bytes(f"{at}", BLOCK)
            client.pwrite(bytes(changed[at : at + BLOCK]), at)
        client.flush()
        done = prefetched(daemon, name)
        daemon.kill()
        daemon.start()
        done()
        client = connect(daemon.uri(name))
        check_equal(read_again(daemon, client, changed, name)[1], 0, f"{name}: misses after a kill")
        # A damaged list is no list.
        path = pathlib.Path(daemon.state, "prefetch", f"{name}.blocks")
        check(path.exists(), f"there is no {path}")
        daemon.cli("set", name, "prefetch=off")
        path.write_bytes(path.read_bytes()[:-9])
        said = daemon.cli("prefetch", name, expect=3).stderr
        check("there is no list of the blocks" in said and "is ignored" in daemon.log(), said)
        # No more than fits.
        fill(client, changed)
        daemon.cli("stop", "--force", name)
        daemon.cli("set", name, "ram=1M")
        daemon.cli("start", name)
        daemon.cli("prefetch", name)
        shown = daemon.show(name)["ram"]
        check(MIB // 2 < shown["used"] <= MIB and shown["evictions"] == 0, f"{name}: {shown}")
        daemon.cli("delete", "--force", name)
        check(not path.exists(), f"{path} is left behind")


@test
def prefetch_beside_clients_and_other_commands(box):
    content = random_bytes("beside", SIZE)
    daemon = box.daemon()
    daemon.restart("--lanes", "3")
    uri = create(box, daemon, "v", "--set", "prefetch=on", deferred=True, content=content)
    model, clients = model_of(daemon, uri, "beside", content)
    model.check_all()
    for round in range(4):
        steps(model, clients, 50)
        daemon.restart("--lanes", "3")
        clients = [connect(daemon.uri("v")) for _ in range(4)]
        steps(model, clients, 50)
        # Another command ends it.
        verb_under_load(box, daemon, model, clients, "set", "v", f"defer={round + 1}h")
        verb_under_load(box, daemon, model, clients, "prefetch", "v")
        model.client = clients[0]
        model.check_all()
    # The list is stored when a volume is paused, too.
    daemon.cli("pause", "v")
    daemon.cli("resume", "v")
    verb_under_load(box, daemon, model, clients, "prefetch", "v")
    check(daemon.show("v")["ram"]["used"] > SIZE // 2, f"{daemon.show('v')['ram']}")
    model.check_all()
    daemon.cli("delete", "--force", "v")
    place = first_difference(origin_of(box, "v"), bytes(model.bytes))
    check_equal(place, None, "the first difference at the end")


@test
def fio_verifies_while_the_state_changes(box):
    need("fio")
    daemon = box.daemon()
    daemon.restart("--lanes", "2")
    for deferred in False, True:
        name = f"v{deferred:d}"
        uri = create(box, daemon, name, deferred=deferred, ram="4M")
        fio = box.start_fio(
            uri, "--rw=randrw", "--bs=512-64k", "--iodepth=16", "--verify=crc32c", "--verify_backlog=64",
            "--loops=6", size="16m",
        )  # fmt: skip
        count = 0
        while fio.poll() is None:
            for command in (["pause"], ["resume"], ["drop"], ["freeze"], ["drop", "--ram"], ["resume"], ["drop", "--ssd"]):
                daemon.cli(command[0], name, *command[1:])
                count += 1
        check_equal(fio.returncode, 0, f"{name}: fio, after {count} commands")
        check(count >= 7, f"{name}: only {count} commands")
        daemon.cli("delete", "--force", name)


main()
