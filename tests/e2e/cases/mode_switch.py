"""Modes, policies and other settings change under load, and no read is wrong."""

import itertools
import subprocess
import time

from harness import *

MODES = ("wt", "wb", "wa", "wb", "wo", "pt", "wb", "ro", "wt", "wo", "wb")


@test
def modes_switch_under_verified_load(box):
    need("fio")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 128 * MIB))
    load = box.start_fio(
        uri, "--rw=randrw", "--verify=crc32c", "--verify_backlog=512", "--verify_fatal=1",
        "--time_based", "--runtime=14", "--fsync=100", size="96m",
    )  # fmt: skip
    switches = 0
    for mode in itertools.cycle(MODES):
        if load.poll() is not None:
            break
        daemon.cli("set", "v", f"mode={mode}")
        switches += 1
        # What is being written through counts as dirty until the origin has been synced.
        if mode in ("wa", "ro", "pt"):
            dirty = daemon.dirty("v")
            check_equal(dirty, 0, f"dirty blocks in {mode}")
        time.sleep(0.3)
    check_equal(load.returncode, 0, "fio's verdict (see fio.log)")
    check(switches >= 5, f"only {switches} switches were made")
    daemon.check_alive()


@test
def other_settings_change_under_verified_load(box):
    need("fio")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 32 * MIB), box.file("origin", 128 * MIB))
    load = box.start_fio(
        uri, "--rw=randrw", "--verify=crc32c", "--verify_backlog=512", "--verify_fatal=1",
        "--time_based", "--runtime=8", size="96m",
    )  # fmt: skip
    settings = itertools.cycle((
        "policy=fifo", "policy=w-tinylfu", "policy=random", "policy=lru", "policy=smq", "policy=s3-fifo", "durability=strict", "durability=flush",
        "dirty_low=1 dirty_high=5", "dirty_high=60", "sequential_cutoff=0", "sequential_cutoff=64K",
        "writeback_running=off", "writeback_running=on", "idle=10ms", "writeback_depth=1",
        "admission=second-hit", "admission=ghost:16", "promote=64K", "admission=always", "promote=0",
        "write_budget=1M", "congested_read_threshold=1ms", "write_budget=0 congested_read_threshold=0",
        "writeback_gap=0", "writeback_gap=1M", "writeback_rate_max=1M", "writeback_rate_max=0",
        "writeback_latency=1ms", "quiet_hours=00:00-23:59", "quiet_hours=off",
    ))  # fmt: skip
    while load.poll() is None:
        daemon.cli("set", "v", *next(settings).split())
        time.sleep(0.1)
    check_equal(load.returncode, 0, "fio's verdict (see fio.log)")


@test
def each_mode_reads_and_writes_as_it_says(box):
    size = 16 * MIB
    content = random_bytes("origin", size)
    writes_later = ("writeback", "writeonly")
    fills = ("writeback", "writethrough", "writearound")
    for mode in ("writeback", "writethrough", "writearound", "writeonly", "passthrough"):
        daemon = box.daemon(name=mode[5:])
        origin = box.file(mode, size, content)
        uri = daemon.create("v", box.file(f"{mode}.cache", 64 * MIB), origin, "--mode", mode)
        daemon.cli("set", "v", "writeback_running=off")
        client = connect(uri)
        for _ in range(2):
            check_equal(bytes(client.pread(65536, MIB)), content[MIB : MIB + 65536], "a read")
        report = daemon.show("v")
        hit = report["requests"]["read_hits"] > 0
        check_equal(hit, mode in fills, f"{mode}: whether a second read is a hit")
        client.pwrite(b"\x42" * 4096, 4096)
        client.flush()
        check_equal(bytes(client.pread(4096, 4096)), b"\x42" * 4096, "what was written")
        check_equal(daemon.dirty("v"), int(mode in writes_later), f"{mode}: dirty blocks")
        with open(origin, "rb") as file:
            file.seek(4096)
            on_origin = file.read(4096) == b"\x42" * 4096
        check_equal(on_origin, mode not in writes_later, f"{mode}: whether the origin has it")
        daemon.kill()


@test
def leaving_writeback_drains_with_progress_and_stays_usable(box):
    daemon = box.daemon()
    origin = box.file("origin", 128 * MIB)
    uri = daemon.create("v", box.file("cache", 128 * MIB), f"hdd7200:{origin}")
    daemon.cli("set", "v", "writeback_running=off")
    recorder = Recorder(uri, connections=2, blocks=8192)
    recorder.write(4000)
    recorder.settle()
    switch = box.spawn(
        daemon.binary, "--socket", daemon.socket, "set", "v", "mode=wt",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    reads = 0
    client = connect(uri)
    while switch.poll() is None:
        client.pread(4096, 4096 * (reads % 8192))
        reads += 1
    check_equal(switch.returncode, 0, "the verdict of the switch")
    check(reads > 0, "nothing could be read meanwhile")
    check_equal(daemon.dirty("v"), 0, "dirty blocks after the switch")
    daemon.cli("stop", "--force", "v")
    with open(origin, "rb") as file:
        data = file.read(8192 * 4096)
    for block in range(8192):
        version = read_stamp(data[block * 4096 : (block + 1) * 4096], block, 1)
        check_equal(version, recorder.acked[block], f"the version of block {block} on the origin")


main()
