"""Commands that are cancelled while a device works: what they began for others as well goes on to its end."""

import os
import pathlib

import nbd

from harness import *
from harness.commands import begin, cancel, ended
from harness.faults import Disk, wait_for


@test
def a_cancelled_drop_fails_no_commit_of_other_volumes(box):
    for words in ("drop", "a"), ("evict", "a", "0+1M"):
        daemon, cache = box.daemon(name=words[0]), Disk(box, f"{words[0]}-cache", 64 * MIB)
        clients = {}
        for name in "a", "b":
            origin = box.file(f"{words[0]}-{name}", 16 * MIB)
            clients[name] = connect(daemon.create(name, cache.name, origin))
            clients[name].pwrite(random_bytes(name, MIB), 0)
        daemon.cli("flush", "a")
        cache.faults("hang sync")
        command = begin(box, daemon, *words)
        wait_for(lambda: 'rule="hang sync"' in daemon.log(), "it syncs the cache device")
        cancel(command)
        cache.heal()
        for name, client in clients.items():
            client.pwrite(random_bytes(f"{words}{name}", MIB), 0)
            client.flush()
            check_equal(daemon.show(name)["state"], "running", f"the state of {name} after {words[0]}")


@test
def a_sync_that_fails_after_its_flush_was_cancelled_fails_the_next_one(box):
    # The sync is writeback's in one mode, the command's own in the other.
    for mode in "wt", "passthrough":
        daemon, origin = box.daemon(name=mode), Disk(box, f"{mode}-origin", 16 * MIB)
        uri = daemon.create("v", box.file(f"{mode}-cache", 64 * MIB), origin.name, "--mode", mode)
        client = connect(uri)
        client.pwrite(random_bytes(mode, MIB), 0)
        origin.faults("hang sync")
        command = begin(box, daemon, "flush", "v")
        wait_for(lambda: 'rule="hang sync"' in daemon.log(), "it syncs the origin")
        cancel(command)
        # The system reports a failed sync once.
        origin.faults("fail EIO sync times=1")
        wait_for(lambda: 'rule="fail EIO sync times=1"' in daemon.log(), "the sync fails")
        origin.heal()
        try:
            client.flush()
        except nbd.Error:
            continue
        check(False, f"mode={mode}: a flush succeeds after a sync of the origin has failed")


@test
def a_cancelled_start_uses_up_no_force(box):
    daemon, origin, cache = box.daemon(), Disk(box, "origin", 16 * MIB), Disk(box, "cache", 64 * MIB)
    client = connect(daemon.create("v", cache.name, origin.name, "--set", "writeback_running=off"))
    client.pwrite(random_bytes("dirty", 4 * MIB), 0)
    client.flush()
    client.shutdown()
    daemon.cli("stop", "v")

    def written_elsewhere(content):
        with open(origin.path, "r+b") as file:
            file.write(content)
            os.fsync(file.fileno())

    written_elsewhere(random_bytes("one", MIB))
    daemon.cli("start", "v", expect=4)
    waits = [(origin, "hang read"), (origin, "hang sync"), (cache, "hang write"), (cache, "hang write after=1")]
    for device, rule in waits:
        device.faults(rule)
        before = daemon.log().count("an abandoned operation")
        command = begin(box, daemon, "start", "--force", "v")
        wait_for(lambda: f'rule="{rule}"' in daemon.log(), "it waits for the device")
        cancel(command)
        # The operator has second thoughts, and restores a backup.
        backup = random_bytes(rule, MIB)
        written_elsewhere(backup)
        device.heal()
        wait_for(lambda: daemon.log().count("an abandoned operation") > before, "it has ended")
        wait_for(lambda: daemon.show("v")["state"] == "stopped", "it is stopped")
        said = daemon.cli("start", "v", expect=4).stderr
        check("written elsewhere" in said, said)
        check_equal(origin.read(0, MIB), backup, f"what was restored, {rule}")
    # Once its consent is stored, a start is completed.
    cache.faults("hang write after=2")
    command = begin(box, daemon, "start", "--force", "v")
    wait_for(lambda: 'rule="hang write after=2"' in daemon.log(), "it waits for the device")
    cancel(command, expect=5)
    cache.heal()
    ended(daemon, "start")
    check_equal(daemon.show("v")["state"], "running", "the state")


@test
def a_cancelled_create_formats_nothing_later(box):
    daemon, origin = box.daemon(), Disk(box, "origin", 16 * MIB)
    cache = box.file("cache", 64 * MIB)
    for rule in "hang read", "hang sync":
        origin.faults(rule)
        before = daemon.log().count("an abandoned operation")
        command = begin(box, daemon, "create", "v", "--cache", cache, "--origin", origin.name)
        wait_for(lambda: f'rule="{rule}"' in daemon.log(), "it waits for the origin")
        cancel(command)
        origin.heal()
        wait_for(lambda: daemon.log().count("an abandoned operation") > before, "it has ended")
        with open(cache, "rb") as file:
            check(not any(file.read()), f"the cache device was written to, {rule}")
    daemon.create("v", cache, origin.name)


@test
def cancelled_settings_do_not_come_into_force_later(box):
    daemon, cache = box.daemon(), Disk(box, "cache", 64 * MIB)
    origin = box.file("origin", 16 * MIB)
    client = connect(daemon.create("v", cache.name, origin, "--set", "writeback_running=off"))
    cache.faults("hang write")
    command = begin(box, daemon, "set", "v", "mode=wt")
    wait_for(lambda: 'rule="hang write"' in daemon.log(), "it writes to the cache device")
    cancel(command, expect=5)
    busy = daemon.cli("stop", "v", expect=3).stderr
    check("busy with 'set'" in busy and cache.name in busy, busy)
    cache.heal()
    ended(daemon, "set")
    # It was taken back: the data is on the cache device alone.
    data = random_bytes("v", MIB)
    client.pwrite(data, 0)
    client.flush()
    check_equal(daemon.show("v")["mode"], "writeback", "the mode")
    check(not any(pathlib.Path(origin).read_bytes()), "the write went to the origin")


@test
def a_delete_that_cannot_be_cancelled_any_more_is_completed(box):
    for rule in "hang write", "hang sync":
        daemon, cache = box.daemon(name=rule[-5:]), Disk(box, f"cache{rule[-5:]}", 64 * MIB)
        daemon.create("v", cache.name, box.file(f"origin{rule[-5:]}", 16 * MIB))
        cache.faults(rule)
        command = begin(box, daemon, "delete", "v")
        wait_for(lambda: f'rule="{rule}"' in daemon.log(), "it writes to the cache device")
        cancel(command, expect=5)
        cache.heal()
        ended(daemon, "delete")
        check_equal(daemon.cli("list", "--names").stdout.split(), [], f"the volumes after {rule}")
        daemon.restart()
        check_equal(daemon.cli("list", "--names").stdout.split(), [], f"the volumes after a restart, {rule}")


@test
def a_cancelled_delete_of_a_stopped_volume_leaves_it_stopped(box):
    daemon, origin = box.daemon(), Disk(box, "origin", 16 * MIB)
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), origin.name, "--set", "writeback_running=off"))
    client.pwrite(random_bytes("dirty", MIB), 0)
    client.flush()
    client.shutdown()
    daemon.cli("stop", "v")
    origin.faults("hang read")
    command = begin(box, daemon, "delete", "v")
    wait_for(lambda: 'rule="hang read"' in daemon.log(), "it waits for the origin")
    cancel(command)
    origin.heal()
    wait_for(lambda: "an abandoned operation" in daemon.log(), "it has ended")
    wait_for(lambda: daemon.show("v")["state"] == "stopped", "it is stopped")
    check(not any(origin.read(0, MIB)), "dirty blocks were written after the command was cancelled")
    daemon.cli("start", "v")
    check_equal(daemon.dirty("v"), MIB // 4096, "dirty blocks")


main()
