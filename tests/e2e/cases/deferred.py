"""Deferred writes: acknowledged in RAM, written down later, durable after a flush like any others."""

import itertools
import signal
import subprocess
import time

from harness import *

SIZE = 8 * MIB + 3 * 512
FUA = 1  # NBD_CMD_FLAG_FUA


def create(box, daemon, name, *arguments, cached=False, origin=None, ram="8M", size=SIZE):
    """Makes a volume with deferred writes; returns its URI. The paths are NAME.cache and NAME.origin."""
    cache = ["-s", box.file(f"{name}.cache", 64 * MIB)] if cached else []
    origin = origin or box.file(f"{name}.origin", size)
    deferred = ["--ram", ram, "--durability", "deferred", *arguments]
    return daemon.cli("create", name, *cache, "-p", origin, *deferred).stdout.strip()


def ram(daemon, name="v"):
    """What the tier says of itself."""
    return daemon.show(name)["ram"]


def read_file(path, offset=0, size=-1):
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def read_all(client):
    return b"".join(bytes(client.pread(min(MIB, SIZE - at), at)) for at in range(0, SIZE, MIB))


class Load:
    """A model on several connections in the first part of a volume, and many writes in flight in the
    rest. The border is in the middle of a block of RAM of any size."""

    AREA = SIZE - 2 * MIB
    FIRST = AREA // BLOCK + 1

    def __init__(self, uri, seed):
        self.model = Model(connect(uri), self.AREA, seed=seed)
        self.recorder = Recorder(uri, connections=3, blocks=400, seed=1, first=self.FIRST)
        self.steps = 0
        self.reconnect(uri)

    def reconnect(self, uri):
        self.clients = [connect(uri) for _ in range(6)]
        self.model.client = self.clients[0]
        self.recorder.reconnect(uri)

    def step(self):
        model, recorder, random = self.model, self.recorder, self.model.random
        self.steps += 1
        model.client = self.clients[self.steps % len(self.clients)]
        model.step()
        if len(recorder.in_flight) < 16:
            recorder.start_write(FUA if random.randrange(20) == 0 else 0)
        recorder.collect()
        match random.randrange(60):
            case 0:
                model.client.flush()
            case 1:
                offset, length = model.range(longest=16)
                data = random.randbytes(length)
                model.client.pwrite(data, offset, flags=FUA)
                model.bytes[offset : offset + length] = data

    def check_all(self, uri):
        """Everything reads as it was acknowledged."""
        self.recorder.settle()
        self.recorder.durable = list(self.recorder.acked)
        self.recorder.verify(uri)
        self.model.check_all()

    def check_origin(self, path):
        """The same in a file."""
        found = read_file(path)
        place = first_difference(found[: self.AREA], bytes(self.model.bytes))
        check_equal(place, None, "the first difference on the origin")
        for block, version in enumerate(self.recorder.acked):
            place = self.FIRST + block
            there = read_stamp(found[place * BLOCK : (place + 1) * BLOCK], place, self.recorder.seed)
            check_equal(there, version, f"the version of block {block} on the origin")


# Each while the load goes on. Some more than once: to the same and back.
CHANGES = (
    ["write_down=average"], ["write_down=idle", "defer=300ms"], ["ram=256K"], ["write_down=buffer"],
    ["durability=flush"], ["write_down=infinite"], ["durability=deferred"], ["ram=2M", "ram_policy=lru"],
    ["ram_write_share=30"], ["ram_strategy=write-only", "write_down=interval"], ["durability=flush", "ram=512K"],
    ["ram_strategy=read-only"], ["ram_strategy=read-write", "durability=deferred", "defer=1s"],
    ["durability=strict"], ["durability=deferred", "ram_write_share=100"],
)  # fmt: skip


def change_under_load(box, cached):
    daemon = box.daemon()
    daemon.restart("--lanes", "3")
    for block in ("512", "4K", "64K"):
        name = f"v{block}"
        uri = create(
            box, daemon, name, "--set", f"ram_block={block}", "--defer", "1s", cached=cached, ram="1M"
        )
        load = Load(uri, seed=name)
        for change in CHANGES:
            for _ in range(40):
                load.step()
            command = [daemon.binary, "--socket", daemon.socket, "set", name, *change]
            setting = box.spawn(*command, stderr=subprocess.PIPE, text=True)
            since = time.monotonic()
            while setting.poll() is None:
                check(time.monotonic() - since < 120, f"{block}, {change}: it never ended")
                load.step()
            check_equal(setting.returncode, 0, f"{block}, {change}: {setting.stderr.read()}")
            load.check_all(uri)
        counts = ram(daemon, name)
        written = counts["written_down"] + counts["coalesced"] + counts["superseded"]
        check(counts["written_down"] > 0 and counts["urgent"] > 0, f"it was not used: {counts}")
        check(written <= counts["deferred_written"], f"more was written down than written: {counts}")
        if cached:
            daemon.cli("flush", name)
            check_equal(ram(daemon, name)["deferred"], 0, "deferred bytes after a flush")
            check_equal(daemon.dirty(name), 0, "dirty blocks after a flush")
        daemon.cli("stop", "--force", name)
        load.check_origin(box.path(f"{name}.origin"))
        daemon.cli("start", name)
        load.reconnect(daemon.uri(name))
        load.check_all(daemon.uri(name))
        daemon.cli("delete", "--force", name)


@test
def every_setting_may_change_under_load_without_a_cache_device(box):
    change_under_load(box, cached=False)


@test
def every_setting_may_change_under_load_with_a_cache_device(box):
    change_under_load(box, cached=True)


@test
def flushed_writes_survive_a_kill(box):
    for cached in False, True:
        daemon = box.daemon(name=f"c{cached:d}")
        for mode in "interval", "buffer":
            name = f"{mode}{cached:d}"
            uri = create(box, daemon, name, "--set", f"write_down={mode}", cached=cached, ram="4M")
            recorder = Recorder(uri, connections=3, blocks=2000, seed=1)
            for _ in range(3):
                recorder.write(1500)
                recorder.flush()
                recorder.write(200)
                recorder.write(50, flags=FUA)
                daemon.kill()
                daemon.start()
                recorder.verify(daemon.uri(name))
                recorder.reconnect(daemon.uri(name))
        daemon.kill()


@test
def a_kill_loses_what_was_not_flushed_and_nothing_else(box):
    # The origin has a cache of its own, and a flush has to go through that as well.
    disk = Disk(box, "v.origin", SIZE)
    disk.faults("volatile")
    daemon = box.daemon()
    uri = create(box, daemon, "v", "--set", "write_down=infinite", origin=disk.name, ram="16M")
    recorder = Recorder(uri, connections=3, blocks=2000, seed=1)
    lost = 0
    for _ in range(3):
        recorder.write(800)
        recorder.flush()
        recorder.write(300)
        recorder.write(50, flags=FUA)
        daemon.kill()
        daemon.start()
        lost += recorder.verify(daemon.uri("v"))
        recorder.reconnect(daemon.uri("v"))
    check(lost > 0, "nothing was lost: the test proves nothing")


@test
def a_write_is_written_down_within_the_time_that_was_set(box):
    daemon = box.daemon()
    for mode in "interval", "average", "idle", "buffer":
        uri = create(box, daemon, mode, "--defer", "1s", "--set", f"write_down={mode}")
        client, path = connect(uri), box.path(f"{mode}.origin")
        for round in range(3):
            data = random_bytes(f"{mode}{round}", 64 * KIB)
            client.pwrite(data, MIB * round)
            wait_for(lambda: read_file(path, MIB * round, len(data)) == data, f"{mode}: it is on the origin")
            wait_for(lambda: ram(daemon, mode)["deferred"] == 0, f"{mode}: nothing waits")


@test
def in_mode_infinite_nothing_is_written_down_until_somebody_asks(box):
    daemon = box.daemon()
    uri = create(box, daemon, "v", "--defer", "100ms", "--set", "write_down=infinite")
    client, path = connect(uri), box.path("v.origin")
    data = random_bytes("infinite", 256 * KIB)
    client.pwrite(data, 512)
    time.sleep(2)
    check(not any(read_file(path)), "something was written down")
    check_equal(ram(daemon)["deferred"], len(data), "deferred bytes")
    check_equal(bytes(client.pread(len(data), 512)), data, "what is read meanwhile")
    daemon.cli("flush", "v")
    check(read_file(path, 512, len(data)) == data, "it is not on the origin after a flush")
    check_equal(ram(daemon)["deferred"], 0, "deferred bytes after a flush")
    # A mode that has a limit of time counts from when it was written.
    client.pwrite(data, MIB)
    daemon.cli("set", "v", "write_down=interval")
    wait_for(lambda: read_file(path, MIB, len(data)) == data, "it is on the origin in another mode")
    # And a client's flush is enough.
    daemon.cli("set", "v", "write_down=infinite")
    client.pwrite(data, 2 * MIB)
    client.flush()
    check(read_file(path, 2 * MIB, len(data)) == data, "it is not on the origin after a client's flush")


@test
def whatever_ends_a_volume_in_order_writes_everything_down(box):
    for cached in False, True:
        daemon = box.daemon(name=f"c{cached:d}")
        create(box, daemon, "v", "--set", "write_down=infinite", cached=cached)
        for round, how in enumerate(("terminate", "restart", "stop", "delete")):
            data = random_bytes(f"{cached}{how}", MIB)
            client = connect(daemon.uri("v"))
            client.pwrite(data, MIB * round + 512)
            check(ram(daemon)["deferred"] >= MIB, f"{how}: it is not deferred")
            match how:
                case "terminate":
                    code, _ = daemon.terminate()
                    check_equal(code, 0, "the exit code")
                    check("ERROR" not in daemon.log(), "an ordinary stop is called an error")
                    daemon.start()
                case "restart":
                    daemon.restart()
                case "stop":
                    daemon.cli("stop", "--force", "v")
                    daemon.kill()
                    daemon.start()
                    daemon.cli("start", "v")
                case "delete":
                    daemon.cli("delete", "--force", "v")
            if how == "delete" or not cached:
                found = read_file(box.path("v.origin"), MIB * round + 512, MIB)
            else:
                found = bytes(connect(daemon.uri("v")).pread(MIB, MIB * round + 512))
            check_equal(first_difference(found, data), None, f"{how}: the first difference")
        daemon.kill()


@test
def settings_that_make_no_sense_are_refused(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", SIZE)
    before = digest(cache, origin)
    some = ["--ram", "4M"]
    deferred = [*some, "--durability", "deferred"]
    for arguments, *words in (
        (["--durability", "deferred"], "durability", "ram"),
        ([*some, "--ignore-flush"], "ignore_flush", "deferred"),
        ([*some, "--ignore-flush", "--durability", "strict"], "ignore_flush", "deferred"),
        ([*deferred, "--ignore-flush", "--ordered"], "ignore_flush", "ordered"),
        ([*deferred, "--set", "ram_strategy=read-only"], "ram_strategy", "read-only"),
        ([*deferred, "--set", "ram_strategy=sideways"], "ram_strategy", "sideways"),
        ([*deferred, "--set", "write_down=never"], "write_down", "never"),
        ([*deferred, "--defer", "0"], "defer"),
        ([*deferred, "--defer", "2d"], "defer"),
        ([*deferred, "--set", "ram_write_share=0"], "ram_write_share"),
        ([*deferred, "--set", "ram_write_share=101"], "ram_write_share"),
    ):
        said = daemon.create_run("v", cache, origin, *arguments, expect=2).stderr
        check(said.count("\n") == 1 and all(word in said for word in words), f"{arguments}: {said!r}")
    check_equal(daemon.cli("list", "--names").stdout, "", "the volumes")
    check_equal(digest(cache, origin), before, "the devices")
    daemon.create("plain", cache, origin)
    daemon.create("ordered", cache, box.file("other", SIZE), *deferred, "--ordered")
    create(box, daemon, "v", "--set", "write_down=infinite")
    client = connect(daemon.uri("v"))
    client.pwrite(b"x" * 4096, 0)
    for name, settings, *words in (
        ("plain", ["durability=deferred"], "durability", "ram"),
        ("plain", ["ignore_flush=on"], "ignore_flush", "deferred"),
        ("ordered", ["ignore_flush=on"], "ignore_flush", "ordered"),
        ("v", ["ram=0"], "durability", "ram"),
        ("v", ["ram_strategy=ro"], "ram_strategy", "read-only"),
        ("v", ["durability=flush", "ignore_flush=on"], "ignore_flush", "deferred"),
        ("v", ["defer=0"], "defer"),
        ("v", ["write_down=sometimes"], "write_down", "sometimes"),
    ):
        before = daemon.show(name)["settings"]
        said = daemon.cli("set", name, *settings, expect=2).stderr
        check(said.count("\n") == 1 and all(word in said for word in words), f"{settings}: {said!r}")
        check_equal(daemon.show(name)["settings"], before, f"the settings of {name} after {settings}")
    # More memory than there may be is refused as well, and what is deferred stays so or is written down.
    said = daemon.cli("set", "v", "ram=100T", expect=3).stderr
    check("--memory-limit" in said, said)
    client.pwrite(b"y" * 4096, 4096)
    check_equal(ram(daemon)["size"], 8 * MIB, "the size after a refused change")
    check(ram(daemon)["deferred"] >= 4096, "writes are no longer deferred")
    check_equal(bytes(client.pread(8192, 0)), b"x" * 4096 + b"y" * 4096, "what is read")


def failing(box, mode="infinite", ram="8M", name="d"):
    """A volume with two megabytes of acknowledged writes, on an origin that fails all writes."""
    disk = Disk(box, f"{name}.origin", 16 * MIB)
    daemon = box.daemon(name=name)
    uri = create(
        box, daemon, "v", "--defer", "200ms", "--set", f"write_down={mode}", origin=disk.name, ram=ram
    )
    disk.faults("fail write")
    client = Client(uri)
    check_equal(client.write_blocks(0, 500), 500, "writes that were acknowledged")
    return disk, daemon, client


@test
def an_origin_that_fails_writes_loses_none_and_is_reported(box):
    for mode in "interval", "infinite":
        disk, daemon, client = failing(box, mode, name=mode)
        check_equal(attempt(client.flush), "EIO", "a client's flush")
        for verb in ["flush"], ["stop", "--force"], ["delete", "--force"]:
            said = daemon.cli(*verb, "v", expect=1).stderr
            for words in "deferred writes of 'v'", "write failed", "forebay show v", "delete --discard-dirty v":
                check(said.count(words) == 1, f"{verb} does not say {words!r}: {said!r}")
            check_equal(daemon.show("v")["state"], "degraded", f"the state after {verb}")
        daemon.cli("set", "v", "durability=flush", expect=1)
        daemon.cli("set", "v", "ram=4M", expect=1)
        shown = daemon.show("v")
        check_equal((shown["settings"]["durability"], shown["ram"]["size"]), ("deferred", 8 * MIB), "the settings")
        check(shown["ram"]["failed_write_downs"] > 0, f"nothing has failed: {shown['ram']}")
        # Still served, to old and new connections, and writes are still deferred.
        check_equal(client.write_blocks(400, 200, version=2), 200, "writes that were acknowledged afterwards")
        for block in range(600):
            client.check_block(block, 1 if block < 400 else 2)
        disk.heal()
        client.flush()
        other = Client(daemon.uri("v"))
        for block in range(600):
            other.check_block(block, 1 if block < 400 else 2)
            found = read_stamp(disk.read(block * BLOCK, BLOCK), block)
            check_equal(found, 1 if block < 400 else 2, f"block {block} on the origin")
        check_equal(ram(daemon)["deferred"], 0, "deferred bytes")
        check_equal(daemon.show("v")["state"], "running", "the state when the fault is gone")
        client.write_blocks(0, 10, version=3)
        daemon.cli("stop", "--force", "v")
        for block in range(10):
            check_equal(read_stamp(disk.read(block * BLOCK, BLOCK), block), 3, "the version on the origin")
        daemon.kill()
        daemon.start()
        daemon.cli("delete", "--force", "v")
        daemon.terminate()


@test
def writes_that_find_no_room_above_an_origin_that_fails_get_its_error(box):
    disk, daemon, client = failing(box, ram="4M")
    errors = client.try_blocks(range(1000, 3000))
    kept = [block for block, error in zip(range(1000, 3000), errors) if error is None]
    check(set(errors) <= {None, "EIO"} and "EIO" in errors, f"errors: {set(errors)}")
    for block in [*range(500), *kept]:
        client.check_block(block, 1)
    disk.heal()
    wait_for(lambda: attempt(client.flush) is None, "a flush succeeds")
    check_equal(client.try_blocks(range(1000, 3000), version=2).count(None), 2000, "writes afterwards")
    daemon.cli("stop", "--force", "v")
    for block in range(3000):
        found = read_stamp(disk.read(block * BLOCK, BLOCK), block)
        check_equal(found, 1 if block < 500 else 0 if block < 1000 else 2, f"block {block} on the origin")


@test
def sigterm_says_what_an_origin_that_fails_or_hangs_has_cost(box):
    for rule in "fail write", "hang write":
        disk, daemon, client = failing(box, name=rule.split()[0])
        disk.faults(rule)
        if rule.startswith("hang"):
            # All of it is on its way, and will not arrive.
            client.nbd.aio_flush()
            wait_for(lambda: 'rule="hang write"' in daemon.log(), "the flush is under way")
        code, seconds = daemon.terminate()
        check(seconds < 58, f"{rule}: the stop took {seconds:.1f} s")
        check_equal(code, 1, f"{rule}: the exit code")
        check("dirty blocks in RAM are lost" in daemon.log(), f"{rule}: the log does not say what is lost")
        disk.heal()


@test
def what_is_on_its_way_down_when_sigterm_comes_arrives_or_is_reported(box):
    for cached in False, True:
        name = f"c{cached:d}"
        disk = Disk(box, f"{name}.origin", 16 * MIB)
        # With a cache device that is not asked: what is written goes to the origin.
        mode = ["--mode", "wa"] if cached else []
        daemon = box.daemon(name=name)
        arguments = ["--defer", "1h", "--set", "write_down=buffer", *mode]
        uri = create(box, daemon, name, *arguments, origin=disk.name, cached=cached)
        disk.faults("delay 3s write", "fail write times=1")
        check_equal(Client(uri).write_blocks(7, 1), 1, "writes that were acknowledged")
        wait_for(lambda: 'rule="delay 3s write"' in daemon.log(), "it is on its way")
        code, _ = daemon.terminate()
        there = read_stamp(disk.read(7 * BLOCK, BLOCK), 7) == 1
        said = "dirty blocks in RAM are lost" in daemon.log()
        check(there or (code == 1 and said), f"{name}: it is lost; exit code {code}, the log says so: {said}")
        check(code == (0 if there else 1), f"{name}: exit code {code}, and it is on the origin: {there}")


@test
def a_stop_that_is_given_up_leaves_the_volume_as_it_was(box):
    disk, daemon, client = failing(box)
    disk.faults("hang write")
    for verb in ["stop", "--force", "v"], ["flush", "v"], ["set", "v", "durability=flush"], ["set", "v", "ram=4M"]:
        command = [daemon.binary, "--socket", daemon.socket, *verb]
        process = box.spawn(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        check_equal(process.poll(), None, f"{verb}: it has ended")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        check_equal(process.returncode, 1, f"{verb}: the exit code after Ctrl-C: {said}")
        check("cancelled" in said, f"{verb}: {said}")
        check_equal(client.write_blocks(500, 100), 100, f"{verb}: writes that were acknowledged afterwards")
        client.check_block(3, 1)
    shown = daemon.show("v")
    check_equal((shown["settings"]["durability"], shown["ram"]["size"]), ("deferred", 8 * MIB), "the settings")
    disk.heal()
    client.flush()
    for block in range(600):
        check_equal(read_stamp(disk.read(block * BLOCK, BLOCK), block), 1, f"block {block} on the origin")
    daemon.cli("stop", "--force", "v")


@test
def a_block_that_is_written_again_and_again_is_written_down_once(box):
    daemon = box.daemon()
    client = connect(create(box, daemon, "v", "--defer", "1m"))
    for version in range(1, 1001):
        client.pwrite(stamp(3, version), 3 * BLOCK)
    client.flush()
    counts = ram(daemon)
    check_equal(counts["deferred_written"], 1000 * BLOCK, "bytes written")
    check(BLOCK <= counts["written_down"] <= 5 * BLOCK, f"written down: {counts}")
    check(1 <= counts["write_downs"] <= 5, f"requests: {counts}")
    check_equal(counts["coalesced"] + counts["written_down"], 1000 * BLOCK, "overwritten or written down")
    check_equal(read_stamp(read_file(box.path("v.origin"), 3 * BLOCK, BLOCK), 3), 1000, "the version")
    check_equal(counts["late_write_downs"], 0, "late requests")


@test
def small_sequential_writes_are_written_down_in_large_requests(box):
    for cached in False, True:
        daemon = box.daemon(name=f"c{cached:d}")
        data = random_bytes("sequential", 6 * MIB)
        client = connect(create(box, daemon, "v", "--defer", "1m", cached=cached, ram="16M"))
        pending = []
        for offset in range(0, len(data), 512):
            pending.append(client.aio_pwrite(bytearray(data[offset : offset + 512]), offset))
            while len(pending) >= 32:
                client.poll(100)
                pending = [cookie for cookie in pending if not client.aio_command_completed(cookie)]
        while pending:
            client.poll(100)
            pending = [cookie for cookie in pending if not client.aio_command_completed(cookie)]
        check_equal(ram(daemon)["deferred"], len(data), "deferred bytes")
        client.flush()
        counts = ram(daemon)
        check_equal(counts["written_down"], len(data), "bytes written down")
        average = counts["written_down"] / counts["write_downs"]
        check(average >= 256 * KIB, f"requests of {average:.0f} bytes: {counts}")
        check_equal(bytes(client.pread(len(data), 0)), data, "what is read")
        daemon.cli("flush", "v")
        check(read_file(box.path("v.origin"), 0, len(data)) == data, "the origin differs")
        daemon.kill()


def check_parts(data, offset, *versions):
    """Fails unless each sector is as in one of the versions of the whole volume."""
    for sector in range(0, len(data), 512):
        part, place = data[sector : sector + 512], offset + sector
        allowed = [version[place : place + 512] for version in versions]
        check(part in allowed, f"the sector at {place} is neither of {len(versions)} that it may be")


@test
def a_discard_of_deferred_data_never_brings_back_what_was_older(box):
    old, new, none = random_bytes("old", SIZE), random_bytes("new", SIZE), bytes(SIZE)
    ranges = [
        (0, 4096), (512, 512), (65536 - 512, 1024), (MIB - 65536, 131072), (2 * MIB, MIB),
        (4 * MIB + 1536, 300 * 512), (6 * MIB, SIZE - 6 * MIB),
    ]  # fmt: skip
    for cached, block in itertools.product((False, True), ("512", "4K", "64K")):
        name = f"{block}{cached:d}"
        daemon = box.daemon(name=name)
        origin = box.file(f"{name}.origin", SIZE, old)
        settings = ["--set", f"ram_block={block}", "--set", "write_down=infinite"]
        create(box, daemon, "v", *settings, cached=cached, origin=origin, ram="32M")
        client = connect(daemon.uri("v"))
        for start in range(0, SIZE, MIB):
            client.pwrite(new[start : start + MIB], start)
        check(ram(daemon)["deferred"] == SIZE, "not everything is deferred")
        for offset, length in ranges:
            client.trim(length, offset)
            check_parts(bytes(client.pread(length, offset)), offset, new, none)
        discarded = bytearray(SIZE)
        for offset, length in ranges:
            discarded[offset : offset + length] = b"\1" * length
        check(ram(daemon)["superseded"] > 0, "a discard has replaced nothing")

        def check_whole(found, what):
            for sector in range(0, SIZE, 512):
                part = found[sector : sector + 512]
                fine = part == new[sector : sector + 512] or (discarded[sector] and not any(part))
                check(fine, f"{block}, cache {cached}: the sector at {sector} is wrong {what}")

        before = read_all(client)
        check_whole(before, "when it is read")
        client.flush()
        daemon.kill()
        daemon.start()
        found = read_all(connect(daemon.uri("v")))
        check_equal(first_difference(found, before), None, "the first difference after a flush and a kill")
        daemon.cli("flush", "v")
        daemon.cli("stop", "--force", "v")
        check_whole(read_file(origin), "on the origin")
        daemon.kill()


@test
def a_discard_that_was_not_flushed_may_be_undone_by_a_kill_but_mixes_nothing(box):
    old, new, none = random_bytes("old", SIZE), random_bytes("new", SIZE), bytes(SIZE)
    daemon = box.daemon()
    for how in "trim", "zero":
        origin = box.file(f"{how}.origin", SIZE, old)
        uri = create(box, daemon, how, "--set", "write_down=infinite", origin=origin, ram="32M")
        client = connect(uri)
        for start in range(0, 4 * MIB, MIB):
            client.pwrite(new[start : start + MIB], start)
        client.flush()
        client.pwrite(new[4 * MIB : 5 * MIB], 4 * MIB)
        getattr(client, how)(3 * MIB, 2 * MIB + 512)
        if how == "zero":
            check(not any(client.pread(3 * MIB, 2 * MIB + 512)), "it does not read as zeroes")
        daemon.kill()
        daemon.start()
        found = bytes(connect(daemon.uri(how)).pread(8 * MIB, 0))
        check_parts(found[: 2 * MIB + 512], 0, new)
        check_parts(found[2 * MIB + 512 : 4 * MIB], 2 * MIB + 512, new, none)
        check_parts(found[4 * MIB : 5 * MIB + 512], 4 * MIB, old, new, none)
        check_parts(found[5 * MIB + 512 :], 5 * MIB + 512, old)


main()
