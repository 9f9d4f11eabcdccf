"""Commands in each other's way: each does what it reported, or nothing."""

import os

from harness import *
from harness.commands import begin, cancel
from harness.faults import Disk, wait_for


def give_up(box, daemon, disk, *words):
    """Gives up a command that waits for a device, whose thread goes on waiting."""
    disk.faults("hang read")
    command = begin(box, daemon, *words)
    wait_for(lambda: 'rule="hang read"' in daemon.log(), "it waits")
    cancel(command)


@test
def a_create_that_was_given_up_takes_no_file_from_another_volume(box):
    daemon, origin = box.daemon(), Disk(box, "hung", 16 * MIB)
    cache = box.path("cache")
    other = box.file("other", 16 * MIB)
    give_up(box, daemon, origin, "create", "v", "--cache", f"{cache},size=64M", "--origin", origin.name)
    # The file is there, and the thread that made it may still need it.
    busy = daemon.create_run("w", f"{cache},size=64M", other, "--block-size", "8K", expect=3).stderr
    check("in use by 'create' of 'v'" in busy, busy)
    busy = daemon.create_run("w", box.file("another", 64 * MIB), origin.name, expect=3).stderr
    check("in use by 'create' of 'v'" in busy, busy)
    origin.heal()
    wait_for(lambda: "an abandoned operation has failed" in daemon.log(), "it has ended")
    check(not os.path.exists(cache), "its file is left")
    client = connect(daemon.create("w", f"{cache},size=64M", other, "--set", "writeback_running=off"))
    data = random_bytes("w", MIB)
    client.pwrite(data, 0)
    client.flush()
    client.shutdown()
    daemon.restart()
    check_equal(bytes(connect(daemon.uri("w")).pread(MIB, 0)) == data, True, "it has its data")


@test
def a_file_that_took_the_place_of_a_new_one_stays(box):
    daemon, origin = box.daemon(), Disk(box, "hung", 16 * MIB)
    cache = box.path("cache")
    give_up(box, daemon, origin, "create", "v", "--cache", f"{cache},size=64M", "--origin", origin.name)
    os.rename(cache, box.path("moved"))
    with open(cache, "wb") as file:
        file.write(b"of somebody else")
    origin.heal()
    wait_for(lambda: "an abandoned operation has failed" in daemon.log(), "it has ended")
    with open(cache, "rb") as file:
        check_equal(file.read(), b"of somebody else", "the file")


@test
def a_volume_is_not_replaced_by_another_one_of_its_name(box):
    daemon, second = box.daemon(), box.daemon(name="second")
    origins = [box.file(f"origin{number}", 16 * MIB) for number in (1, 2)]
    caches = [box.file(f"cache{number}", 64 * MIB) for number in (1, 2)]
    data = [random_bytes(number, 4 * MIB) for number in (1, 2)]
    for number, there in enumerate((daemon, second)):
        client = connect(there.create("v", caches[number], origins[number], "--set", "writeback_running=off"))
        client.pwrite(data[number], 0)
        client.flush()
        client.shutdown()
        there.cli("stop", "v")
    second.terminate()
    for words in [], ["--force"]:
        said = daemon.create_run("v", caches[1], origins[1], "--adopt", *words, expect=3).stderr
        check("another volume 'v'" in said and "create v --adopt --as" in said, said)
    daemon.cli("create", "v", "--cache", caches[1], "--origin", origins[1], "--adopt", "--as", "w")
    daemon.cli("start", "v")
    for name, expected in zip("vw", data):
        check_equal(bytes(connect(daemon.uri(name)).pread(4 * MIB, 0)) == expected, True, f"the data of {name}")


@test
def a_forced_adoption_that_fails_needs_force_again(box):
    daemon = box.daemon()
    origin, cache = Disk(box, "origin", 16 * MIB), Disk(box, "cache", 64 * MIB)
    client = connect(daemon.create("v", cache.name, origin.name, "--set", "writeback_running=off"))
    client.pwrite(random_bytes("v", MIB), 0)
    client.flush()
    client.shutdown()
    daemon.cli("stop", "v")
    # The cache device cannot be told.
    cache.faults("gone")
    daemon.cli("delete", "--discard-dirty", "v")
    cache.heal()
    adopt = ["create", "v", "--adopt", "--cache", cache.name, "--origin", origin.name]
    check("was deleted" in daemon.cli(*adopt, expect=4).stderr, "it is not known as deleted")
    origin.faults("fail EIO read")
    daemon.cli(*adopt, "--force", expect=1)
    origin.heal()
    check("was deleted" in daemon.cli(*adopt, expect=4).stderr, "a forced adoption that failed counts")
    daemon.cli(*adopt, "--force")
    check_equal(daemon.dirty("v"), MIB // 4096, "dirty blocks")
    daemon.cli("stop", "v")
    daemon.cli("start", "v")


@test
def the_daemon_ends_beside_a_command_that_waits(box):
    for verb, rule in (("stop", "hang sync"), ("create", "hang write")):
        daemon, cache = box.daemon(name=verb), Disk(box, f"{verb}-cache", 64 * MIB)
        origins = [box.file(f"{verb}-origin{number}", 16 * MIB) for number in range(2)]
        client = connect(daemon.create("v", cache.name, origins[0], "--set", "writeback_running=off"))
        data = random_bytes(verb, MIB)
        client.pwrite(data, 0)
        client.flush()
        client.shutdown()
        cache.faults(rule)
        words = ["v"] if verb == "stop" else ["w", "--cache", cache.name, "--origin", origins[1]]
        command = begin(box, daemon, verb, *words)
        wait_for(lambda: f'rule="{rule}"' in daemon.log(), "it waits")
        code, seconds = daemon.terminate()
        check(code == 1 and seconds < 80, f"beside '{verb}' it ended with {code} after {seconds:.1f} s")
        check(cache.name in daemon.log() or "did not end in time" in daemon.log(), "the log does not say why")
        command.communicate(timeout=60)
        cache.heal()
        daemon.start()
        check_equal(daemon.cli("list", "--names").stdout.split(), ["v"], f"the volumes after '{verb}'")
        daemon.cli("start", "v")
        check_equal(bytes(connect(daemon.uri("v")).pread(MIB, 0)) == data, True, f"the data after '{verb}'")
        daemon.terminate()


main()
