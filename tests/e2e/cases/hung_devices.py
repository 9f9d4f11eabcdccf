"""Devices that do not answer: nobody else waits for them, and every command ends."""

import os
import signal
import subprocess
import threading
import time

import nbd

from harness import *
from harness.data import BLOCK, read_stamp, stamp


def faults(path, *rules):
    """Has a faulty device do this from now on."""
    with open(f"{path}.new", "w") as file:
        file.write("\n".join(rules) + "\n")
    os.rename(f"{path}.new", f"{path}.faults")
    time.sleep(0.05)


def wait_for(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"after {seconds} s still not: {what}")
        time.sleep(0.1)


def timed(function, *arguments, **options):
    """What it returns, and the seconds that it took."""
    start = time.monotonic()
    return function(*arguments, **options), time.monotonic() - start


def three_volumes(box):
    """One whose origin will hang, one beside it on the same cache, one on another."""
    daemon = box.daemon()
    shared, own = box.file("shared", 64 * MIB), box.file("own", 64 * MIB)
    bad = box.file("bad", 16 * MIB)
    places = {"a": (shared, f"faulty:{bad}"), "b": (shared, box.file("good", 16 * MIB)), "c": (own, box.file("third", 16 * MIB))}
    recorders = {}
    for number, (name, (cache, origin)) in enumerate(places.items()):
        uri = daemon.create(name, cache, origin, "--set", "writeback_running=off")
        recorders[name] = Recorder(uri, connections=1, blocks=500, seed=number)
        recorders[name].write(600)
        recorders[name].settle()
        recorders[name].flush()
        recorders[name].settle()
    return daemon, bad, recorders


def check_others(daemon, box, recorders, again=True):
    """Everything of the other volumes works, and soon; `again`: they are stopped and started, too."""
    for name in "b", "c":
        recorders[name].verify(daemon.uri(name))
    new = box.file("new", 16 * MIB)
    for arguments in [
        ("list",), ("show", "a"), ("stop", "--force", "b"), ("start", "b"), ("set", "c", "dirty_high=60"),
        ("create", "n", "--cache", box.path("shared"), "--origin", new), ("delete", "n"), ("flush", "b"),
    ]:  # fmt: skip
        if not again and arguments[0] in ("stop", "start"):
            continue
        _, seconds = timed(daemon.cli, *arguments)
        check(seconds < 5, f"{arguments} took {seconds:.1f} s")


@test
def at_the_start_an_origin_that_hangs_holds_up_nobody_and_comes_up_when_it_answers(box):
    daemon, bad, recorders = three_volumes(box)
    daemon.terminate()
    for rule in "hang read", "hang sync":
        faults(bad, rule)
        _, seconds = timed(daemon.start)
        check(seconds < 20, f"the daemon was ready after {seconds:.1f} s")
        report = daemon.show("a")
        check_equal(report["state"], "waiting", f"the state with {rule}")
        check(report["waiting_for"]["device"] == f"faulty:{bad}", f"it waits for {report['waiting_for']}")
        check("has not answered for" in daemon.cli("show", "a").stdout, "show does not say what it waits for")
        check_others(daemon, box, recorders)
        code, seconds = daemon.terminate()
        check_equal(code, 0, "the exit code")
        check(seconds < 15, f"the stop took {seconds:.1f} s")
    daemon.start()
    faults(bad, "# none")
    wait_for(lambda: daemon.show("a")["state"] == "running", "it comes up by itself")
    for name in recorders:
        recorders[name].verify(daemon.uri(name))


@test
def a_stop_gives_up_a_start_that_waits_and_it_does_not_come_up_later(box):
    daemon, bad, recorders = three_volumes(box)
    daemon.terminate()
    faults(bad, "hang read")
    daemon.start()
    # It is not served, but its origin is still in use.
    done, seconds = timed(daemon.cli, "stop", "a", expect=5)
    check(seconds < 10 and "stay in use" in done.stderr, f"{seconds:.1f} s: {done.stderr}")
    done, seconds = timed(daemon.cli, "start", "a", expect=3)
    check(seconds < 5 and "still waits" in done.stderr, f"{seconds:.1f} s: {done.stderr}")
    faults(bad, "# none")
    wait_for(lambda: daemon.show("a")["state"] == "stopped", "it is stopped")
    daemon.cli("start", "a")
    recorders["a"].verify(daemon.uri("a"))


@test
def a_command_on_a_hung_device_ends_and_changes_nothing(box):
    daemon = box.daemon()
    bad, cache = box.file("bad", 16 * MIB), box.file("cache", 64 * MIB)
    faults(bad, "hang")
    command = [daemon.binary, "--socket", daemon.socket, "create", "v", "--cache", cache, "--origin", f"faulty:{bad}"]
    before = digest(cache)
    create = box.spawn(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    create.send_signal(signal.SIGINT)
    said = create.communicate(timeout=20)[1]
    check_equal(create.returncode, 1, f"the exit code after Ctrl-C: {said}")
    check("cancelled" in said and bad in said, f"it does not say what it waited for: {said}")
    check("v" not in daemon.cli("list").stdout.split(), "the volume is there")
    check_equal(digest(cache), before, "the cache device")
    faults(bad, "# none")
    wait_for(lambda: daemon.cli(*command[3:], expect=None).returncode == 0, "it can be created when the device answers")


@test
def an_origin_that_hangs_while_it_is_served_holds_up_no_stop_but_its_own(box):
    daemon, bad, recorders = three_volumes(box)
    daemon.cli("set", "a", "mode=wt")
    client = connect(daemon.uri("a"))
    # On the origin, and not durable there: a stop has to sync it.
    client.pwrite(bytes(4096), 0)
    faults(bad, "hang sync")
    ended = []
    stop = threading.Thread(target=lambda: ended.append(timed(daemon.cli, "stop", "--force", "a", expect=1)))
    stop.start()
    time.sleep(4)
    check_equal(daemon.show("a")["state"], "stopping", "the state of the volume")
    check(daemon.show("a")["waiting_for"], "nothing says what it waits for")
    check_others(daemon, box, recorders)
    stop.join()
    done, seconds = ended[0]
    check(seconds < 45 and bad in done.stderr, f"after {seconds:.0f} s: {done.stderr}")
    faults(bad, "# none")
    wait_for(lambda: daemon.show("a")["state"] == "stopped", "it stops by itself")
    daemon.cli("start", "a")


@test
def sigterm_leaves_a_hung_origin_behind_and_ends_everything_else_in_order(box):
    daemon, bad, recorders = three_volumes(box)
    for recorder in recorders.values():
        recorder.write(300)
        recorder.settle()
    daemon.cli("set", "a", "mode=wt")
    faults(bad, "hang sync")
    client = connect(daemon.uri("a"))
    client.pwrite(stamp(499, 77, 0), 499 * BLOCK)
    flush = client.aio_flush()
    client.poll(100)
    check(not client.aio_command_completed(flush), "a flush does not need the origin")
    code, seconds = daemon.terminate()
    check(seconds < 50, f"the stop took {seconds:.1f} s")
    check_equal(code, 1, "the exit code")
    check("did not stop cleanly" in daemon.log() and bad in daemon.log(), "the log does not name the device")
    faults(bad, "# none")
    daemon.start()
    found = bytes(connect(daemon.uri("a")).pread(BLOCK, 499 * BLOCK))
    check_equal(read_stamp(found, 499, 0), 77, "what was written before it hung")
    recorders["a"].submitted[499] = 77
    for name, recorder in recorders.items():
        # Acknowledged, not flushed: those that stopped in order lose nothing.
        recorder.durable = list(recorder.acked)
        recorder.verify(daemon.uri(name))


@test
def a_cache_that_something_still_uses_at_the_end_is_left_open_and_recovered(box):
    daemon, bad, recorders = three_volumes(box)
    daemon.terminate()
    # A start that was given up: nobody was told anything that depends on it.
    faults(bad, "hang read")
    daemon.start()
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code beside a start that was given up")
    check(daemon.log().count("was left open") == 1, "the cache was closed although a start may still change it")
    faults(bad, "# none")
    daemon.start()
    # A volume that was deleted, and still waits for its origin.
    faults(bad, "hang read")
    Client(daemon.uri("a")).start_read(8 * MIB, 4096)
    time.sleep(0.5)
    daemon.cli("delete", "--force", "--discard-dirty", "a")
    wait_for(lambda: "of the deleted volume may still be under way" in daemon.log(), "it is deleted in any case", 60)
    code, seconds = daemon.terminate()
    check(seconds < 50, f"the stop took {seconds:.1f} s")
    check_equal(code, 1, "the exit code beside a volume that waits")
    check("still waits for its origin; the next start recovers it" in daemon.log(), "the log does not say so")
    faults(bad, "# none")
    daemon.start()
    for name in "b", "c":
        recorders[name].verify(daemon.uri(name))


@test
def a_cache_in_ram_whose_origin_hangs_is_given_up_by_name(box):
    daemon = box.daemon()
    bad = box.file("bad", 16 * MIB)
    uri = daemon.create("v", "ram:32M", f"faulty:{bad}", "--set", "writeback_running=off")
    connect(uri).pwrite(bytes(65536), 0)
    faults(bad, "hang write")
    code, seconds = daemon.terminate()
    check(seconds < 58, f"the stop took {seconds:.1f} s")
    check_equal(code, 1, "the exit code")
    check("dirty blocks in RAM are lost" in daemon.log(), "the log does not say what is lost")


@test
def a_cache_in_ram_starts_again_as_soon_as_its_origin_answers(box):
    daemon = box.daemon()
    bad = box.file("bad", 16 * MIB)
    uri = daemon.create("v", "ram:32M", f"faulty:{bad}")
    client = connect(uri)
    faults(bad, "hang read")
    client.aio_pread(nbd.Buffer(4096), MIB)
    # The read keeps the volume, and with it the cache of the volume that was stopped.
    done = daemon.cli("stop", "--force", "v", expect=None)
    # It ends without the client, which may take longer than the command waits.
    check(done.returncode in (1, 5) and bad in done.stderr, done.stderr)
    faults(bad, "# none")
    wait_for(lambda: daemon.show("v")["state"] == "stopped", "it stops by itself")
    wait_for(lambda: daemon.cli("start", "v", expect=None).returncode == 0, "the stop has ended")
    check_equal(bytes(connect(uri).pread(4096, 0)), bytes(4096), "the first block")


@test
def a_cache_device_that_hangs_at_the_start_holds_up_no_other(box):
    daemon = box.daemon()
    bad, good = box.file("bad", 64 * MIB), box.file("good", 64 * MIB)
    recorder = Recorder(daemon.create("a", f"faulty:{bad}", box.file("one", 16 * MIB)), blocks=500)
    daemon.create("b", good, box.file("two", 16 * MIB))
    recorder.write(600)
    recorder.settle()
    recorder.flush()
    daemon.kill()
    # From the first request on, and in the middle of recovery.
    for rule in "hang", "hang read after=3":
        faults(bad, rule)
        _, seconds = timed(daemon.start)
        check(seconds < 30, f"the daemon was ready after {seconds:.1f} s")
        check_equal([daemon.show(name)["state"] for name in ("a", "b")], ["waiting", "running"], "the states")
        code, seconds = daemon.terminate()
        check(seconds < 50, f"the stop took {seconds:.1f} s")
    daemon.start()
    faults(bad, "# none")
    wait_for(lambda: daemon.show("a")["state"] == "running", "it comes up by itself")
    recorder.verify(daemon.uri("a"))


@test
def a_volume_is_given_up_within_seconds_whatever_its_devices_do(box):
    for rule, device in ("hang", "origin"), ("fail", "cache"), ("gone", "cache"), ("hang", "cache"):
        for state in "served", "stopped":
            tag = f"{rule}-{device}-{state}"
            daemon = box.daemon(name=tag)
            paths = {"origin": box.file(f"{tag}-o", 16 * MIB), "cache": box.file(f"{tag}-c", 64 * MIB)}
            names = {key: f"faulty:{path}" for key, path in paths.items()}
            other = box.file(f"{tag}-p", 16 * MIB)
            client = connect(daemon.create("a", names["cache"], names["origin"], "--set", "writeback_running=off"))
            daemon.create("b", names["cache"], other)
            client.pwrite(b"a" * 65536, 0)
            client.flush()
            daemon.cli("stop", "--force", "b")
            if state == "stopped":
                daemon.cli("stop", "--force", "a")
            faults(paths[device], rule)
            _, seconds = timed(daemon.cli, "delete", "--force", "--discard-dirty", "a")
            check(seconds < 10, f"{tag}: it took {seconds:.1f} s")
            check("a" not in daemon.cli("list", "--names").stdout.split(), f"{tag}: it is still there")
            daemon.kill()
            faults(paths[device], "# none")
            daemon.start()
            daemon.cli("start", "b")
            # Neither by itself nor by way of its cache device.
            check_equal(daemon.cli("list", "--names").stdout.split(), ["b"], f"{tag}: the volumes")
            daemon.cli("create", "a", "--adopt", "--cache", names["cache"], "--origin", names["origin"], expect=3)
            daemon.create("a", names["cache"], names["origin"])
            daemon.terminate()


main()
