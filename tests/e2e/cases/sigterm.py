"""An orderly stop: exit code 0, within seconds, under load, and nothing is lost."""

import subprocess
import time

from harness import *
from harness.faults import wait_for


@test
def sigterm_under_load_ends_well_and_keeps_everything(box):
    need("fio")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 128 * MIB), box.file("origin", 256 * MIB))
    daemon.cli("set", "v", "writeback_running=off")
    content = random_bytes("kept", 8 * MIB)
    client = connect(uri)
    for round in range(3):
        # Acknowledged, not flushed: an orderly stop loses no acknowledged write.
        for start in range(0, len(content), MIB):
            client.pwrite(content[start : start + MIB], start)
        load = box.start_fio(uri, "--rw=randrw", "--offset=128m", "--time_based", "--runtime=60")
        wait_for(lambda: daemon.dirty("v") >= len(content) // 4096, "fio writes beside what is there")
        code, seconds = daemon.terminate()
        check_equal(code, 0, "the exit code")
        check(seconds < 10, f"the stop took {seconds:.1f} s")
        load.wait()
        daemon.start()
        client = connect(daemon.uri("v"))
        found = b"".join(bytes(client.pread(MIB, start)) for start in range(0, len(content), MIB))
        check_equal(first_difference(found, content), None, f"the first difference, round {round}")
        check(daemon.dirty("v") >= len(content) // 4096, "dirty blocks became clean by themselves")
        content = random_bytes(round, 8 * MIB)


@test
def a_volume_that_was_stopped_stays_stopped(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    daemon.create("stopped", cache, box.file("one", 16 * MIB))
    daemon.create("running", cache, box.file("two", 16 * MIB))
    daemon.cli("stop", "stopped")
    daemon.cli("set", "stopped", "mode=wt")
    daemon.restart()
    check_equal(daemon.show("stopped")["state"], "stopped", "the state of the first")
    check_equal(daemon.show("stopped")["origin"]["size"], 16 * MIB, "the size that is known of it")
    check_equal(daemon.show("running")["state"], "running", "the state of the second")
    daemon.cli("start", "stopped")
    check_equal(daemon.show("stopped")["mode"], "writethrough", "the mode that was set")


@test
def an_ordinary_stop_is_no_error(box):
    for mode in "wb", "wt":
        daemon = box.daemon(name=mode)
        origin = f"hdd7200:{box.file(f'{mode}-origin', 64 * MIB)}"
        client = connect(daemon.create("v", box.file(f"{mode}-cache", 64 * MIB), origin))
        # In the middle of it the mode may change, and writeback is under way when the stop comes.
        for place in range(0, 32 * MIB, MIB):
            client.pwrite(bytes(65536), place)
        daemon.cli("set", "v", f"mode={mode}", expect=None)
        for place in range(0, 32 * MIB, 8 * MIB):
            client.pwrite(bytes(65536), place)
        client.shutdown()
        daemon.cli("stop", "v")
        code, _ = daemon.terminate()
        check_equal(code, 0, "the exit code")
        check("ERROR" not in daemon.log(), f"an ordinary stop in mode {mode} is called an error")


@test
def sigterm_during_a_drain_ends_soon(box):
    daemon = box.daemon()
    # A modelled disk is slow enough for the drain to last.
    origin = box.file("origin", 256 * MIB)
    uri = daemon.create("v", box.file("cache", 128 * MIB), f"hdd7200:{origin}")
    daemon.cli("set", "v", "writeback_running=off")
    recorder = Recorder(uri, connections=2, blocks=8192)
    recorder.write(6000)
    recorder.settle()
    drain = box.spawn(
        daemon.binary, "--socket", daemon.socket, "flush", "v",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(0.5)
    code, seconds = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check(seconds < 15, f"the stop took {seconds:.1f} s")
    drain.wait()
    daemon.start()
    recorder.durable = list(recorder.acked)
    recorder.verify(daemon.uri("v"))


main()
