"""An older copy of a cache device or of the daemon's state is refused, and nothing is written to it."""

import json
import pathlib
import shutil
import time

from harness import *
from harness.faults import Disk


def filled(box, *names):
    daemon, cache = box.daemon(), box.file("cache", 64 * MIB)
    clients = {}
    for name in names:
        uri = daemon.create(name, cache, box.file(f"origin-{name}", 16 * MIB), "--set", "writeback_running=off")
        clients[name] = connect(uri)
        clients[name].pwrite(b"1" * 65536, 0)
        clients[name].flush()
    return daemon, cache, clients


def write_on(daemon, name, byte):
    client = connect(daemon.uri(name))
    client.pwrite(byte * 65536, 0)
    client.flush()
    client.shutdown()


def found(daemon, name):
    return bytes(connect(daemon.uri(name)).pread(65536, 0))[:1]


def check_refused(daemon, cache, name, code, *words):
    before = digest(cache)
    daemon.start()
    check_equal(daemon.show(name)["state"], "failed", "the state of the volume")
    done = daemon.cli("start", name, expect=code)
    for word in words:
        check(word in done.stderr, f"'{word}' is not said: {done.stderr}")
    daemon.terminate()
    return before == digest(cache)


@test
def an_older_copy_of_a_cache_device_that_was_stopped_in_order(box):
    daemon, cache, _ = filled(box, "a", "b")
    daemon.terminate()
    shutil.copy(cache, box.path("old"))
    daemon.start()
    write_on(daemon, "a", b"2")
    daemon.terminate()
    shutil.copy(cache, box.path("new"))
    shutil.copy(box.path("old"), cache)
    check(check_refused(daemon, cache, "a", 4, "older than the daemon's state", "start --force a"), "it was written to")
    # The newer one is there again: nothing was lost.
    shutil.copy(box.path("new"), cache)
    daemon.start()
    check_equal(found(daemon, "a"), b"2", "what is there of the newer one")
    daemon.terminate()
    # Accepted for one volume, and not for its neighbour.
    shutil.copy(box.path("old"), cache)
    daemon.start()
    daemon.cli("start", "--force", "a")
    check_equal(found(daemon, "a"), b"1", "what the older copy has")
    for _ in range(4):
        daemon.restart()
        check_equal(daemon.show("a")["state"], "running", "the state of what was accepted")
        daemon.cli("start", "b", expect=4)
    daemon.cli("start", "--force", "b")
    daemon.restart()
    check_equal(daemon.show("b")["state"], "running", "the state of what was accepted")


@test
def an_older_copy_of_a_cache_device_after_a_crash(box):
    daemon, cache, _ = filled(box, "a")
    daemon.kill()
    shutil.copy(cache, box.path("old"))
    daemon.start()
    write_on(daemon, "a", b"2")
    # How far the device is becomes known every ten seconds.
    time.sleep(11)
    daemon.kill()
    shutil.copy(box.path("old"), cache)
    check_refused(daemon, cache, "a", 4, "older than the daemon's state")
    check_refused(daemon, cache, "a", 4, "older than the daemon's state")
    daemon.start()
    daemon.cli("delete", "a", expect=4)
    daemon.cli("delete", "--discard-dirty", "a")


@test
def crashes_are_no_older_copies(box):
    daemon, cache, clients = filled(box, "a", "b")
    # Behind what is there already.
    recorders = [Recorder(daemon.uri(name), connections=2, blocks=2000, seed=ord(name), first=16) for name in "ab"]
    for turn in range(4):
        end = time.monotonic() + (11 if turn % 2 == 0 else 1)
        while time.monotonic() < end:
            for recorder in recorders:
                recorder.write(100)
                if turn < 3:
                    recorder.flush()
        daemon.kill()
        daemon.start()
        for name, recorder in zip("ab", recorders):
            recorder.verify(daemon.uri(name))
            recorder.reconnect(daemon.uri(name))


@test
def an_older_state_is_refused_where_it_is_wrong(box):
    daemon, cache, _ = filled(box, "a", "b", "c")
    daemon.terminate()
    shutil.copytree(daemon.state, box.path("backup"))
    daemon.start()
    daemon.cli("set", "a", "dirty_high=77")
    daemon.cli("delete", "b")
    write_on(daemon, "c", b"3")
    daemon.terminate()
    shutil.rmtree(daemon.state)
    shutil.copytree(box.path("backup"), daemon.state)
    daemon.start()
    # What has not changed is served; what has is not, and what is deleted stays so.
    check_equal([daemon.show(name)["state"] for name in "abc"], ["failed", "failed", "running"], "the states")
    check_equal(found(daemon, "c"), b"3", "the volume that did not change")
    done = daemon.cli("start", "a", expect=3)
    check("state is older than the cache device" in done.stderr, done.stderr)
    done = daemon.cli("start", "b", expect=3)
    check("does not hold 'b'" in done.stderr, done.stderr)
    daemon.cli("delete", "b")
    daemon.cli("create", "a", "--adopt", "--cache", cache, "--origin", box.path("origin-a"))
    check_equal(daemon.show("a")["settings"]["dirty_high"], 77, "the newer setting")
    daemon.restart()
    check_equal([daemon.show(name)["state"] for name in "ac"], ["running"] * 2, "the states after a restart")


@test
def a_volume_of_the_same_name_that_was_made_since_is_not_taken_for_the_old_one(box):
    daemon, cache, _ = filled(box, "a", "b")
    daemon.terminate()
    shutil.copytree(daemon.state, box.path("backup"))
    daemon.start()
    daemon.cli("delete", "a")
    daemon.cli("set", "b", "mode=wt")
    daemon.create("a", cache, box.path("origin-a"), "--mode", "wt")
    daemon.terminate()
    shutil.rmtree(daemon.state)
    shutil.copytree(box.path("backup"), daemon.state)
    words = "older than the cache device", "another volume 'a', created since"
    check(check_refused(daemon, cache, "a", 3, *words), "it was written to")


@test
def a_forced_start_that_fails_accepts_no_older_copy(box):
    daemon, cache, origin = box.daemon(), box.file("cache", 64 * MIB), Disk(box, "origin", 16 * MIB)
    daemon.create("a", cache, origin.name, "--set", "writeback_running=off")
    write_on(daemon, "a", b"1")
    daemon.terminate()
    shutil.copy(cache, box.path("old"))
    daemon.start()
    write_on(daemon, "a", b"2")
    daemon.terminate()
    shutil.copy(box.path("old"), cache)
    daemon.start()
    daemon.cli("start", "a", expect=4)
    origin.faults("fail EIO read")
    daemon.cli("start", "--force", "a", expect=1)
    origin.heal()
    said = daemon.cli("start", "a", expect=4).stderr
    check("older than the daemon's state" in said, said)
    daemon.cli("start", "--force", "a")
    check_equal(found(daemon, "a"), b"1", "the older data")
    daemon.cli("stop", "a")
    daemon.cli("start", "a")


@test
def an_older_copy_without_a_volume_does_not_complete_its_interrupted_deletion(box):
    daemon, cache, _ = filled(box, "a")
    daemon.terminate()
    shutil.copy(cache, box.path("old"))
    daemon.start()
    daemon.create("b", cache, box.file("origin-b", 16 * MIB), "--set", "writeback_running=off")
    write_on(daemon, "b", b"2")
    for served in (True, False):
        if not served:
            daemon.cli("stop", "b")
        daemon.terminate()
        path = pathlib.Path(daemon.state, "state.json")
        state = json.loads(path.read_text())
        # What a kill right after the begin of 'delete b' leaves behind.
        state["volumes"][1]["deleting"] = True
        path.write_text(json.dumps(state))
        shutil.copy(cache, box.path("new"))
        shutil.copy(box.path("old"), cache)
        before = digest(cache)
        daemon.start()
        refused = daemon.cli("start", "b", expect=4)
        check("older than the daemon's state" in refused.stderr, refused.stderr)
        # Force cannot find it either, and does not give it up.
        forced = daemon.cli("start", "--force", "b", expect=3)
        check("does not hold 'b'" in forced.stderr, forced.stderr)
        daemon.terminate()
        check_equal(digest(cache), before, "the copy after it was refused")
        shutil.copy(box.path("new"), cache)
        daemon.start()
        if not served:
            daemon.cli("start", "b")
        check_equal(found(daemon, "b"), b"2", f"the data, served: {served}")


main()
