"""An origin that does not answer: its own volume waits, and nobody else does."""

import time

from harness import *

QUIET = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "dirty_high=100", "--set", "cache_dirty_high=100")


def neighbours(box, cache=64 * MIB, mode="wt", settings=()):
    """A volume `a` on a disk with faults, and `b` on the same cache."""
    daemon = box.daemon()
    disk, cache = Disk(box, "a.disk", 256 * MIB), box.file("cache", cache)
    a = daemon.create("a", cache, disk.name, "--mode", mode, *settings)
    b = daemon.create("b", cache, box.file("b.disk", 256 * MIB))
    return daemon, disk, Client(a), Client(b)


@test
def commits_of_a_neighbour_go_on(box):
    daemon, disk, a, b = neighbours(box)
    a.write(bytes(4096), 0)
    disk.faults("hang sync")
    a.write(bytes(4096), 4096)
    # Its commit has begun when this is written.
    time.sleep(1.5)
    b.write_blocks(0, 100)
    time.sleep(4)
    daemon.kill()
    disk.heal()
    daemon.start()
    again = Client(daemon.uri("b"))
    for block in range(100):
        again.check_block(block, 1)


@test
def a_neighbour_has_the_room_of_the_cache(box):
    daemon, disk, a, b = neighbours(box, 128 * MIB, "wb", QUIET)
    check_equal(a.write_blocks(0, 10240), 10240, "blocks that were acknowledged")
    disk.faults("hang write")
    daemon.cli("set", "a", "idle=10ms")
    for round in range(20):
        check_equal(b.write_blocks(2560 * round, 2560), 2560, f"blocks written in round {round}")
    b.flush()


@test
def commands_complete(box):
    daemon, disk, a, b = neighbours(box, 128 * MIB, "wb", QUIET)
    a.write_blocks(0, 1000)
    disk.faults("hang write,sync,zero,discard")
    daemon.cli("set", "a", "idle=10ms")
    time.sleep(0.5)
    verb(daemon, "stop", "--force", "a")
    for words in (("stop", "--force", "b"), ("start", "b"), ("flush", "b")):
        check_equal(verb(daemon, *words).returncode, 0, f"the exit code of {words}")
    verb(daemon, "delete", "--force", "--discard-dirty", "a")
    names = daemon.cli("list", "--names").stdout.split()
    check_equal(names, ["b"], "the volumes after a delete --discard-dirty")


@test
def the_others_start_and_the_daemon_ends(box):
    daemon, disk, a, b = neighbours(box)
    other = box.file("other", 64 * MIB)
    daemon.create("c", other, box.file("c.disk", 64 * MIB))
    b.write_blocks(0, 10)
    b.flush()
    daemon.terminate()
    disk.faults("hang read")
    daemon.launch()
    wait_for(lambda: verb(daemon, "list").returncode == 0, "the daemon answers")
    for name in ("b", "c"):
        wait_for(lambda: daemon.show(name)["state"] == "running", f"volume {name} is served")
    Client(daemon.uri("b")).check_block(9, 1)
    _, took = daemon.terminate()
    check(took < 30, f"SIGTERM took {took} s")


@test
def one_that_is_missing_at_start_leaves_the_room_to_its_neighbours(box):
    daemon, disk, a, b = neighbours(box, 128 * MIB, "wb", QUIET)
    a.write_blocks(0, 5000)
    a.flush()
    daemon.kill()
    disk.faults("gone")
    daemon.start()
    check_equal(daemon.show("a")["state"], "failed", "the state of a volume whose origin is missing")
    b = Client(daemon.uri("b"))
    for version in (1, 2):
        check_equal(b.write_blocks(0, 20000, version), 20000, "blocks acknowledged to the neighbour")
    b.flush()
    disk.heal()
    done = verb(daemon, "start", "a")
    check_equal(done.returncode, 0, f"the exit code of start ({done.stderr.strip()})")
    again = Client(daemon.uri("a"))
    for block in range(0, 5000, 50):
        again.check_block(block, 1)


@test
def it_is_reported(box):
    daemon, disk, a, b = neighbours(box)
    disk.faults("hang read")
    cookie, _ = a.start_read(MIB, 4096)
    wait_for(lambda: daemon.show("a")["state"] == "degraded", "volume a is degraded", 60)
    last = daemon.show("a")["errors"]["last"]
    check("a.disk" in str(last), f"the error does not name the device: {last}")
    check_equal(daemon.show("b")["state"], "running", "the state of its neighbour")
    disk.heal()
    a.finish(cookie, "the read that hung")
    wait_for(lambda: daemon.show("a")["state"] == "running", "volume a is running again")


main()
