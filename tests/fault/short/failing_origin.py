"""An origin that rejects requests: what is cached is served, the error is shown, nothing is lost."""

import itertools

from harness import *

KEEP = ("--set", "idle=0", "--set", "dirty_age=0")
THROUGH = ("wt", "wa", "pt")


def volume(box, mode, name):
    daemon = box.daemon(name=name)
    origin = Disk(box, f"{name}.origin", 64 * MIB, random_bytes("origin", MIB))
    uri = daemon.create("v", box.file(f"{name}.cache", 64 * MIB), origin.name, "--mode", mode, *KEEP)
    client = Client(uri)
    client.write_blocks(1000, 100)
    client.flush()
    return daemon, origin, client


def check_degraded(daemon, origin, what):
    wait_for(lambda: daemon.show("v")["state"] == "degraded", f"{what}: the volume is degraded")
    last = daemon.show("v")["errors"]["last"]
    check(origin.path in str(last), f"{what}: the error does not name the origin: {last}")


@test
def writeback_keeps_what_is_dirty_and_goes_on_by_itself(box):
    for rule in ("fail write", "fail sync", "fail", "gone"):
        what = f"'{rule}' on the origin"
        daemon, origin, client = volume(box, "wb", rule[-5:].strip())
        origin.faults(rule)
        check_equal(client.write_blocks(1100, 100), 100, f"{what}: blocks acknowledged")
        client.flush()
        for block in (1000, 1199):
            client.check_block(block, 1)
        expected = "EIO" if rule in ("fail", "gone") else None
        check_equal(attempt(client.read, MIB // 2), expected, f"{what}: a read of what is not cached")
        done = verb(daemon, "flush", "v")
        check_equal(done.returncode, 1, f"{what}: the exit code of flush")
        check(done.stderr.strip(), f"{what}: flush failed without a word")
        check_degraded(daemon, origin, what)
        check_equal(verb(daemon, "delete", "--force", "v").returncode, 1, f"{what}: the exit code of delete")
        client.check_block(1199, 1)
        origin.heal()
        daemon.cli("set", "v", "dirty_age=100ms")
        wait_for(lambda: daemon.dirty("v") == 0, f"{what}: writeback goes on by itself")
        check_equal(attempt(client.read, MIB // 2), None, f"{what}: a read afterwards")
        wait_for(lambda: daemon.show("v")["state"] == "running", f"{what}: the error is gone")
        for block in (1000, 1199):
            found = read_stamp(origin.read(block * BLOCK, BLOCK), block)
            check_equal(found, 1, f"{what}: the version of block {block} on the origin")
        daemon.kill()


@test
def a_volume_that_was_stopped_lets_go_of_its_origin(box):
    daemon, origin, client = volume(box, "wb", "v")
    origin.faults("fail write")
    client.write_blocks(1000, 100, 2)
    verb(daemon, "flush", "v")
    # Writeback is between two attempts now, which are seconds apart.
    check_equal(verb(daemon, "stop", "--force", "v").returncode, 0, "the exit code of stop")
    origin.heal()
    done = verb(daemon, "start", "v")
    check_equal(done.returncode, 0, f"the exit code of start ({done.stderr.strip()})")
    client = Client(daemon.uri("v"))
    client.check_block(1099, 2)
    check_equal(verb(daemon, "flush", "v").returncode, 0, "the exit code of flush")


@test
def modes_that_keep_nothing_dirty_fail_what_needs_it(box):
    for mode in THROUGH:
        for rule, error in (("fail write", "EIO"), ("fail write ENOSPC", "ENOSPC")):
            what = f"{mode} with '{rule}' on the origin"
            daemon, origin, client = volume(box, mode, f"{mode}{rule[-5:].strip()}")
            origin.faults(rule)
            check_equal(set(client.try_blocks(range(1100, 1200))), {error}, f"{what}: writes")
            check_degraded(daemon, origin, what)
            if mode == "wt":
                client.check_block(1050, 1)
                # What was written through stays dirty in the cache, and is tried again.
                wait_for(lambda: "writing back to the origin fails" in daemon.log(), f"{what}: it is tried again")
            origin.heal()
            check_equal(client.write_blocks(1100, 100, 2), 100, f"{what}: blocks acknowledged afterwards")
            client.flush()
            client.read(MIB // 2)
            wait_for(lambda: daemon.show("v")["state"] == "running", f"{what}: the error is gone")
            client.check_block(1199, 2)
            daemon.kill()


@test
def after_a_failed_sync_flushes_fail_until_a_new_start(box):
    for mode, rule in itertools.product(THROUGH, ("fail sync", "gone")):
        what = f"{mode} with '{rule}' on the origin"
        daemon, origin, client = volume(box, mode, f"{mode}{rule[-4:]}")
        origin.faults(rule)
        client.try_blocks(range(1100, 1200))
        check_equal(attempt(client.flush), "EIO", f"{what}: a flush")
        wait_for(lambda: daemon.show("v")["state"] == "degraded", f"{what}: the volume is degraded")
        origin.heal()
        # Nothing proves that what went there before has arrived.
        check_equal(attempt(client.flush), "EIO", f"{what}: a flush afterwards")
        verb(daemon, "stop", "--force", "v")
        done = verb(daemon, "start", "v")
        check_equal(done.returncode, 0, f"{what}: the exit code of start ({done.stderr.strip()})")
        client = Client(daemon.uri("v"))
        check_equal(client.write_blocks(1100, 100, 2), 100, f"{what}: blocks acknowledged after a new start")
        client.flush()
        check_equal(daemon.show("v")["state"], "running", f"{what}: the state after a new start")
        client.check_block(1199, 2)
        daemon.kill()


main()
