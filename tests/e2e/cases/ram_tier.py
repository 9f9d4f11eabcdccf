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
    daemon.cli("delete", "--force", "v")
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
    said = daemon.cli("set", "v", "ordered=on", expect=2)
    check("cache device" in said.stderr and "mode=" not in said.stderr, said.stderr)
    daemon.cli("stop", "--force", "v")
    with open(origin, "rb") as file:
        check_equal(first_difference(file.read(), bytes(model.bytes)), None, "the first difference")
    daemon.cli("start", "v")
    other = box.file("other", SIZE)
    said = daemon.cli("create", "w", "-p", other, expect=2)
    check("--ram" in said.stderr, said.stderr)
    daemon.cli("create", "w", "-p", other, "--ram", "1M")
    daemon.cli("delete", "--force", "v")
    check_equal(daemon.show("w")["state"], "running", "the other one")


@test
def what_waits_for_a_start_is_told(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))

    def said(*settings):
        return daemon.cli("set", "v", *settings).stderr

    words = "takes effect when the volume is started again"
    check(f"ram {words}" in said("ram=64M"), "a first tier")
    check_equal(said("idle=5s"), "", "what another setting says")
    check(f"pending     ram {words}" in daemon.cli("show", "v").stdout, daemon.cli("show", "v").stdout)
    daemon.cli("stop", "--force", "v")
    check_equal(said("ram=64M"), "", "what is said while it is stopped")
    daemon.cli("start", "v")
    check(f"ram_block {words}" in said("ram_block=8K"), "another block size")
    check_equal(said("ram_block=4K", "ram=64M"), "", "what is said when nothing waits")
    check("pending" not in daemon.cli("show", "v").stdout, daemon.cli("show", "v").stdout)
    # The shards are still those of the large tier.
    said("ram=8K")
    shown = daemon.cli("show", "v").stdout
    check("0 of that until the volume is started again" in shown, shown)
    daemon.cli("stop", "--force", "v")
    daemon.cli("start", "v")
    shown = daemon.cli("show", "v").stdout
    check("of that" not in shown and "0 of 8K used" in shown, shown)


@test
def a_stopped_volume_has_the_reason_why_it_does_not_start(box):
    daemon = box.daemon("--memory-limit", "512M")
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", SIZE)
    daemon.create("v", cache, origin, "--ram", "64M", "--durability", "deferred", "--set", "write_down=infinite")
    connect(daemon.uri("v")).pwrite(b"x" * 64 * KIB, 0)
    lines = [line.split() for line in daemon.cli("list").stdout.splitlines()]
    check_equal(dict(zip(*lines))["DEFERRED"], "64K", "the deferred data in the list")
    daemon.cli("stop", "--force", "v")
    daemon.cli("set", "v", "ram=64G")
    said = daemon.cli("start", "v", expect=3).stderr.partition(": ")[2].strip()
    check("--memory-limit" in said, said)
    shown = daemon.cli("show", "v").stdout
    check("state       stopped" in shown and f"last error  {said}" in shown, shown)
    check(" of 512M" in shown, f"the memory of the daemon is not in: {shown}")
    daemon.cli("set", "v", "ram=64M")
    daemon.cli("start", "v")
    check("last error" not in daemon.cli("show", "v").stdout, "the reason is still shown")


main()
