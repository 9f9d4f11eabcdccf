"""A cache device that rejects requests or does not answer: what does not need it goes on."""

import time

from harness import *

KEEP = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "writeback_running=off")
THROUGH = ("wt", "wa", "pt")


def volume(box, mode, *settings, name="v"):
    daemon = box.daemon(name=name)
    cache = Disk(box, f"{name}.cache", 64 * MIB)
    origin = Disk(box, f"{name}.origin", 64 * MIB, random_bytes("origin", MIB))
    uri = daemon.create("v", cache.name, origin.name, "--mode", mode, *settings)
    return daemon, cache, origin, Client(uri)


@test
def modes_that_keep_nothing_dirty_go_on(box):
    for mode in THROUGH:
        for rules in (["fail write"], ["fail sync"], ["fail"], ["gone"]):
            daemon, cache, origin, client = volume(box, mode, name=f"{mode}{rules[0][-5:].strip()}")
            client.write_blocks(0, 100)
            client.read(MIB // 2)
            client.flush()
            cache.faults(*rules)
            what = f"{mode} with '{rules[0]}' on the cache"
            check_equal(set(client.try_blocks(range(50, 200), 2)), {None}, f"{what}: writes")
            check_equal(attempt(client.flush), None, f"{what}: a flush")
            for block in (0, 49):
                client.check_block(block, 1)
            for block in (50, 199):
                client.check_block(block, 2)
            on_origin = read_stamp(origin.read(60 * BLOCK, BLOCK), 60)
            check_equal(on_origin, 2, f"{what}: the version on the origin")
            check_equal(verb(daemon, "delete", "--force", "v").returncode, 0, f"{what}: delete")
            check_equal(daemon.cli("list", "--names").stdout, "", f"{what}: what is left")
            daemon.kill()


@test
def a_flush_waits_for_writes_through_that_are_under_way(box):
    daemon, cache, origin, client = volume(box, "wt")
    client.write_blocks(0, 100)
    client.flush()
    origin.faults("delay 500ms write")
    cache.faults("fail write,sync")
    # It is dirty in the cache until the origin has it.
    write = client.start_write(stamp(300, 1), 300 * BLOCK)
    check_equal(attempt(client.flush), None, "a flush beside a write through a cache that fails")
    check_equal(attempt(client.finish, write, "the write"), None, "the write")
    client.check_block(300, 1)


@test
def writeback_keeps_what_it_can(box):
    for rules in (["fail write"], ["fail sync"], ["fail write,sync"]):
        daemon, cache, origin, client = volume(box, "wb", *KEEP, name=f"wb{rules[0][-5:].strip()}")
        client.write_blocks(0, 100)
        client.flush()
        cache.faults(*rules)
        client.try_blocks(range(200, 300))
        attempt(client.flush)
        for block in range(100):
            client.check_block(block, 1)
        client.read(MIB // 2)
        check(daemon.show("v")["state"] == "degraded", "the state is not degraded")
        # Everything can be read: so it can all be brought to the origin.
        check_equal(verb(daemon, "delete", "--force", "v").returncode, 0, f"'{rules[0]}': delete")
        for block in range(100):
            found = read_stamp(origin.read(block * BLOCK, BLOCK), block)
            check_equal(found, 1, f"'{rules[0]}': block {block} on the origin")
        daemon.kill()


@test
def a_device_that_comes_back_needs_no_force_if_nothing_is_missing(box):
    for mode in ("wb", "wt"):
        for ending in ("kill", "terminate"):
            what = f"{mode}, {ending}"
            daemon, cache, origin, client = volume(box, mode, *KEEP, name=f"{mode}{ending}")
            client.write_blocks(0, 100)
            client.flush()
            daemon.restart()
            client = Client(daemon.uri("v"))
            cache.faults("gone")
            client.write_blocks(100, 1, 2)
            attempt(client.flush)
            # What the device never had is in RAM, and goes to the origin.
            wait_for(lambda: daemon.dirty("v") == (100 if mode == "wb" else 0), f"{what}: the rest is on the origin")
            # All of the origin: there are few places where nobody can tell who wrote to it.
            check_equal(client.write_blocks(100, 16000, 2), 16000, f"{what}: blocks acknowledged without the cache")
            if mode == "wt":
                client.flush()
            getattr(daemon, ending)()
            cache.heal()
            daemon.start()
            check_equal(daemon.show("v")["state"], "running", f"{what}: the state ({daemon.last_line()})")
            client = Client(daemon.uri("v"))
            for block in range(0, 16100, 50):
                client.check_block(block, 1 if block < 100 else 2)
            daemon.kill()


@test
def every_command_completes_on_a_device_that_is_gone(box):
    for rules in (["gone"], ["fail"]):
        for restarted in (False, True):
            name = f"c{rules[0]}{int(restarted)}"
            daemon, cache, origin, client = volume(box, "wb", *KEEP, name=name)
            client.write_blocks(0, 100)
            client.flush()
            cache.faults(*rules)
            what = f"'{rules[0]}'{' and a restart' if restarted else ''}"
            if restarted:
                daemon.kill()
                daemon.start()
            else:
                attempt(client.read, 4096)
            for words in (("flush", "v"), ("set", "v", "mode=pt"), ("delete", "--force", "v"), ("stop", "--force", "v"), ("start", "v")):
                done = verb(daemon, *words)
                if done.returncode:
                    check(done.stderr.strip(), f"{what}: {words} failed without a word")
            if "v" in daemon.cli("list", "--names").stdout.split():
                done = verb(daemon, "delete", "--force", "--discard-dirty", "v")
                check_equal(done.returncode, 0, f"{what}: delete --discard-dirty ({done.stderr.strip()})")
            check_equal(daemon.cli("list", "--names").stdout, "", f"{what}: what is left")
            # The origin can be used again at once.
            spare = box.file(f"{name}.spare", 64 * MIB)
            daemon.create("w", spare, origin.name)
            daemon.kill()


@test
def a_mode_that_could_not_be_left_is_not_changed(box):
    daemon, cache, origin, client = volume(box, "wb", *KEEP)
    client.write_blocks(0, 100)
    client.flush()
    cache.faults("gone")
    before = daemon.show("v")["settings"]
    done = verb(daemon, "set", "v", "mode=pt")
    after = daemon.show("v")["settings"]
    if done.returncode:
        check_equal(after, before, f"the settings after a set that ended with {done.returncode}")
    else:
        check_equal(after["mode"], "passthrough", "the mode after a set that succeeded")


@test
def one_read_error_loses_nothing(box):
    daemon, cache, origin, client = volume(box, "wb", *KEEP)
    client.write_blocks(0, 500)
    client.flush()
    daemon.restart()
    client = Client(daemon.uri("v"))
    cache.faults("fail read once")
    done = verb(daemon, "flush", "v")
    cache.heal()
    done = verb(daemon, "flush", "v")
    check_equal(done.returncode, 0, f"the exit code of a second flush ({done.stderr.strip()})")
    check_equal(daemon.show("v")["errors"]["lost"], [], "what is lost")
    for block in range(500):
        client.check_block(block, 1)


@test
def one_read_error_on_the_way_of_a_client_is_not_seen(box):
    daemon, cache, origin, client = volume(box, "wb", *KEEP)
    client.write_blocks(0, 100)
    client.flush()
    daemon.restart()
    client = Client(daemon.uri("v"))
    cache.faults("fail read once")
    for block in range(100):
        client.check_block(block, 1)
    check_equal(daemon.show("v")["errors"]["lost"], [], "what is lost")


@test
def one_read_error_does_not_keep_a_cache_from_opening(box):
    daemon, cache, origin, client = volume(box, "wb", *KEEP)
    client.write_blocks(0, 500)
    client.flush()
    daemon.kill()
    for place in range(0, 40):
        cache.faults(f"fail read once after={place}")
        daemon.start()
        state = daemon.show("v")["state"]
        check_equal(state, "running", f"the state after an error of read number {place}")
        for block in (0, 250, 499):
            Client(daemon.uri("v")).check_block(block, 1)
        daemon.kill()


@test
def a_hung_cache_device_is_reported_and_gone_round(box):
    daemon, cache, origin, client = volume(box, "wb", *KEEP)
    client.write_blocks(0, 10)
    client.flush()
    client.read(MIB // 2)
    daemon.restart()
    client = Client(daemon.uri("v"))
    cache.faults("hang")
    dirty, _ = client.start_read(0, 4096)
    wait_for(lambda: daemon.show("v")["state"] == "degraded", "the volume is degraded", 60)
    last = daemon.show("v")["errors"]["last"]
    check("v.cache" in str(last), f"the error does not name the device: {last}")
    client.read(MIB // 2, patience=60)
    client.read(MIB // 4, patience=60)
    cache.heal()
    attempt(client.finish, dirty, "a read that hung")
    for block in range(10):
        wait_for(lambda: attempt(client.check_block, block, 1) is None, f"block {block} is back")


@test
def the_lost_ranges_of_a_lost_device_are_printed(box):
    daemon, cache, origin, client = volume(box, "wb", *KEEP)
    client.write_blocks(0, 100)
    client.write_blocks(1000, 50)
    client.flush()
    time.sleep(3)
    cache.faults("gone")
    daemon.kill()
    daemon.start()
    printed = daemon.cli("show", "v", "--lost").stdout
    check("4096000" in printed or "4000K" in printed, f"the ranges that were dirty:\n{printed}")


main()
