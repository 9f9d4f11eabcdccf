"""Profiles: volumes that begin as another cache would, and what wins over that."""

import json

from harness import *

NAMES = [
    "enhanceio", "bcache", "dm-cache", "lvmcache", "opencas", "maxio", "dm-writeboost", "fancycache", "primocache",
]  # fmt: skip

# What the documentation of those systems says of some settings, in the words of `show --json`.
DOCUMENTED = {
    "enhanceio": {"mode": "writethrough", "policy": "fifo", "sequential_cutoff": 0, "dirty_high": 30, "dirty_low": 10},
    "bcache": {
        "mode": "writethrough", "sequential_cutoff": 4 * MIB, "congested_read_threshold": "2ms",
        "congested_write_threshold": "20ms", "dirty_high": 10, "commit_interval": "100ms",
    },
    "dm-cache": {"mode": "writeback", "sequential_cutoff": 0, "promote": 256 * KIB, "admission": "second-hit"},
    "lvmcache": {"mode": "writethrough", "policy": "smq", "promote": 256 * KIB},
    "opencas": {"mode": "writethrough", "policy": "lru", "sequential_cutoff": MIB, "dirty_age": "2m"},
    "maxio": {"mode": "writethrough", "policy": "lru"},
    "dm-writeboost": {"mode": "writeonly", "policy": "fifo", "sequential_cutoff": 0},
    "fancycache": {"mode": "writeback", "dirty_age": "10s", "sequential_cutoff": 0},
    "primocache": {"mode": "writethrough", "policy": "arc", "ram": GIB, "durability": "flush"},
}  # fmt: skip


def tables(daemon, *arguments):
    """What the command says that profiles set, by their names."""
    found = json.loads(daemon.cli("profiles", *arguments, "--json").stdout)["profiles"]
    return {profile["name"]: {line["setting"]: line["value"] for line in profile["settings"]} for profile in found}


@test
def every_profile_makes_a_volume_that_has_what_it_says(box):
    daemon = box.daemon()
    said = tables(daemon)
    check_equal(list(said), NAMES, "profiles")
    for name in NAMES:
        origin = box.file(f"{name}-origin", 16 * MIB)
        uri = daemon.create(name, box.file(f"{name}-cache", 64 * MIB), origin, "--profile", name)
        found = daemon.show(name)
        check_equal(str(found["block_size"] >> 10) + "K", said[name]["block_size"], f"{name}: block_size")
        for setting, value in DOCUMENTED[name].items():
            check_equal(found["settings"][setting], value, f"{name}: {setting}")
        # The same words through 'set' change nothing.
        words = [f"{setting}={value}" for setting, value in said[name].items() if setting != "block_size"]
        daemon.cli("set", name, *words)
        check_equal(daemon.show(name)["settings"], found["settings"], f"{name}: settings")
        connect(uri).pwrite(b"x" * 4096, 8192)
    before = {name: daemon.show(name)["settings"] for name in NAMES}
    daemon.restart()
    check_equal({name: daemon.show(name)["settings"] for name in NAMES}, before, "settings after a restart")


@test
def an_existing_volume_gets_the_settings_by_the_commands_that_are_printed(box):
    daemon = box.daemon()
    origin = box.file("origin", 16 * MIB)
    made = box.file("made-cache", 64 * MIB), box.file("made-origin", 16 * MIB)
    said = daemon.create_run("made", *made, "--profile", "fancycache").stderr
    check("1G of RAM" in said and "ram=SIZE" in said, said)
    wanted = daemon.show("made")["settings"]
    daemon.cli("delete", "made")
    uri = daemon.create("v", box.file("cache", 64 * MIB), origin)
    connect(uri).pwrite(b"x" * 4096, 8192)
    text = " ".join(daemon.cli("profiles", "fancycache").stdout.split())
    commands = text.partition("For an existing volume: ")[2].split(" && ")
    check_equal([command.split()[1] for command in commands], ["stop", "set", "start"], "the verbs")
    for command in commands:
        daemon.cli(*["v" if word == "NAME" else word for word in command.split()[1:]])
    check_equal(daemon.show("v")["settings"], wanted, "the settings")
    client = connect(daemon.uri("v"))
    client.pwrite(b"y" * 4096, 0)
    check_equal(daemon.show("v")["ram"]["deferred"], 4096, "deferred bytes")
    check_equal(bytes(client.pread(12288, 0)), b"y" * 4096 + bytes(4096) + b"x" * 4096, "the content")


@test
def what_is_given_beside_a_profile_wins(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    daemon.create(
        "v", cache, origin, "--profile", "bcache", "--mode", "wb", "--policy", "random", "--durability", "strict",
        "--block-size", "8K", "--set", "dirty_high=60", "--set", "congested_read_threshold=0",
    )  # fmt: skip
    found = daemon.show("v")
    check_equal(found["block_size"], 8192, "block_size")
    settings = found["settings"]
    check_equal((settings["mode"], settings["policy"], settings["durability"]), ("writeback", "random", "strict"), "options")
    check_equal((settings["dirty_high"], settings["congested_read_threshold"]), (60, "0"), "settings")
    check_equal((settings["dirty_low"], settings["congested_write_threshold"]), (10, "20ms"), "what was left")


@test
def what_is_wrong_is_said_in_one_line(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    before = digest(cache, origin)
    for arguments in (
        ("create", "v", "--cache", cache, "--origin", origin, "--profile", "flashcache"),
        ("create", "v", "--cache", cache, "--origin", origin, "--profile", ""),
        ("profiles", "zfs"),
    ):
        said = daemon.cli(*arguments, expect=2).stderr.strip().splitlines()
        check_equal(len(said), 1, f"lines: {said}")
        check(all(name in said[0] for name in NAMES), f"the choices are not in: {said[0]}")
    for arguments, word in (
        (("--profile", "bcache", "--adopt"), "--adopt"),
        (("--profile", "bcache", "--profile", "maxio"), "--profile"),
        (("--profile", "bcache", "--set", "dirty_low=20"), "dirty_low"),
    ):
        said = daemon.create_run("v", cache, origin, *arguments, expect=2).stderr
        check(word in said and len(said.strip().splitlines()) == 1, f"'{word}' is not in: {said}")
    check_equal(digest(cache, origin), before, "the devices")


@test
def the_tables_are_for_people_too(box):
    daemon = box.daemon()
    text = daemon.cli("profiles").stdout
    for word in (*NAMES, "bcache.rst", "forebay set NAME mode=writethrough"):
        check(word in text, f"'{word}' is not in:\n{text}")
    check_equal(list(tables(daemon, "dm-cache")), ["dm-cache"], "one profile")


main()
