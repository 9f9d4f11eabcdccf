"""A RAM tier in front of the cache: the same data for all connections, and no write lost by a kill."""

from harness import *

SIZE = 16 * MIB


@test
def connections_on_several_lanes_see_the_same_data(box):
    daemon = box.daemon()
    daemon.restart("--lanes", "3")
    for block in ("512", "4K", "64K"):
        name = f"v{block}"
        uri = daemon.create(
            name, box.file(f"{name}.cache", 64 * MIB), box.file(f"{name}.origin", SIZE),
            "--ram", "1M", "--set", f"ram_block={block}",
        )
        model = Model(connect(uri), SIZE, seed=name, content=bytes(SIZE))
        clients = [model.client] + [connect(uri) for _ in range(5)]
        for step in range(600):
            model.client = clients[step % len(clients)]
            model.step()
            if step == 300:
                daemon.cli("set", name, "ram=256K", "ram_policy=lru")
        model.check_all()
        ram = daemon.show(name)["ram"]
        check_equal(ram["size"], 256 << 10, "the size after the change")
        check(ram["used"] <= ram["size"], f"{ram} is over its size")
        check(ram["hits"] > 0 and ram["evictions"] > 0, f"the tier was not used: {ram}")


@test
def flushed_writes_survive_a_kill(box):
    daemon = box.daemon()
    uri = daemon.create(
        "v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--ram", "4M"
    )
    recorder = Recorder(uri, connections=3, blocks=SIZE // BLOCK, seed=1)
    for _ in range(3):
        recorder.write(1500)
        recorder.flush()
        recorder.write(200)
        daemon.kill()
        daemon.start()
        recorder.verify(daemon.uri("v"))
        recorder.reconnect(daemon.uri("v"))


@test
def memory_is_counted_and_what_does_not_fit_is_refused(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--ram", "2M")
    used = daemon.show("v")["memory"]["used_bytes"]["ram_tiers"]
    check(2 * MIB <= used <= 2.2 * MIB, f"{used} bytes are counted")
    before = daemon.show("v")["settings"]
    said = daemon.cli("set", "v", "ram=100T", expect=3)
    check("--memory-limit" in said.stderr, said.stderr)
    check_equal(daemon.show("v")["settings"], before, "the settings after a refused change")
    said = daemon.create_run(
        "w", box.file("w.cache", 64 * MIB), box.file("w.origin", SIZE), "--ram", "100T", expect=3
    )
    check("--memory-limit" in said.stderr, said.stderr)
    with open(box.path("w.cache"), "rb") as file:
        check(not any(file.read(MIB)), "the cache device was written to")
    check_equal(daemon.show("v")["memory"]["used_bytes"]["ram_tiers"], used, "counted afterwards")
    daemon.cli("delete", "v")
    daemon.cli("show", "w", expect=2)


@test
def memory_is_locked_on_request(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--ram", "64M")

    def locked():
        with open(f"/proc/{daemon.process.pid}/status") as status:
            return next(int(line.split()[1]) * KIB for line in status if line.startswith("VmLck"))

    before = locked()
    check(before < 32 * MIB, f"{before} bytes are locked")
    daemon.cli("set", "v", "ram_lock=on")
    check(64 * MIB <= locked() - before < 66 * MIB, f"{locked()} bytes are locked, {before} before")
    daemon.cli("set", "v", "ram_lock=off")
    check_equal(locked(), before, "bytes locked")


@test
def a_disk_without_a_cache_device(box):
    content = random_bytes("alone", SIZE)
    origin = box.file("origin", SIZE, content)
    daemon = box.daemon()
    daemon.restart("--lanes", "2")
    uri = daemon.cli("create", "v", "-p", origin, "--ram", "2M").stdout.strip()
    model = Model(connect(uri), SIZE, seed="alone", content=content)
    for round in range(2):
        clients = [model.client] + [connect(daemon.uri("v")) for _ in range(2)]
        for step in range(300):
            model.client = clients[step % 3]
            model.step()
        model.client.flush()
        shown = daemon.show("v")
        check_equal((shown["mode"], shown["cache"]["path"]), ("passthrough", "none"), "the volume")
        check(shown["ram"]["hits"] > 0, f"the tier was not used: {shown['ram']}")
        if round == 0:
            daemon.kill()
            daemon.start("--lanes", "2")
            model.client = connect(daemon.uri("v"))
            model.check_all()
    said = daemon.cli("set", "v", "mode=wb", expect=2)
    check("needs one" in said.stderr, said.stderr)
    daemon.cli("stop", "v")
    with open(origin, "rb") as file:
        check_equal(first_difference(file.read(), bytes(model.bytes)), None, "the first difference")
    daemon.cli("start", "v")
    other = box.file("other", SIZE)
    said = daemon.cli("create", "w", "-p", other, expect=2)
    check("--ram" in said.stderr, said.stderr)
    daemon.cli("create", "w", "-p", other, "--ram", "1M")
    daemon.cli("delete", "v")
    check_equal(daemon.show("w")["state"], "running", "the other one")


main()
