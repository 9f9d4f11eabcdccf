"""When dirty blocks are written back, as operators set it."""

import json
import pathlib
import time

from harness import *

SIZE = 32 * MIB
SETTINGS = {
    "cache_dirty_high": 80, "cache_dirty_low": 70, "writeback_gap": 32 << 10, "writeback_rate_min": 64 << 10,
    "writeback_rate_max": 64 << 20, "writeback_latency": "20ms", "quiet_hours": "22:00-06:30",
}  # fmt: skip
AT_REST = ("idle=0", "dirty_age=0", "dirty_high=90")


def volume(box, *settings, name="v"):
    """A daemon with a volume of random content, and a connection to it."""
    daemon = box.daemon()
    arguments = [word for setting in settings for word in ("--set", setting)]
    origin = box.file(f"origin of {name}", SIZE, random_bytes(name, SIZE))
    return daemon, connect(daemon.create(name, box.file("cache", 96 * MIB), origin, *arguments))


def dirty(client, blocks):
    """Writes every other block, and says what with."""
    content = random_bytes("dirty", 4096)
    for block in range(blocks):
        client.pwrite(content, 2 * block * 4096)
    client.flush()
    return content


def clean(daemon, name="v"):
    """Waits until nothing is dirty, and says how long that took."""
    started = time.monotonic()
    while daemon.dirty(name) > 0:
        check(time.monotonic() - started < 60, f"{daemon.dirty(name)} blocks stay dirty")
        time.sleep(0.05)
    return time.monotonic() - started


def hours(shift):
    """Two hours around the present one, in local time, or as many hours later."""
    hour = time.localtime(time.time() + shift * 3600).tm_hour
    return f"quiet_hours={(hour - 1) % 24:02}:00-{(hour + 2) % 24:02}:00"


@test
def settings_are_made_changed_and_kept(box):
    daemon, _client = volume(box, *(f"{name}={value}" for name, value in SETTINGS.items()))

    def kept():
        settings = daemon.show("v")["settings"]
        check_equal({name: settings[name] for name in SETTINGS}, SETTINGS, "settings")

    kept()
    text = daemon.cli("show", "v").stdout
    for name in SETTINGS:
        check(name in text, f"'{name}' is not in:\n{text}")
    daemon.restart()
    kept()
    daemon.kill()
    daemon.start()
    kept()
    daemon.cli("set", "v", "quiet_hours=off", "writeback_latency=0")
    settings = daemon.show("v")["settings"]
    check_equal((settings["quiet_hours"], settings["writeback_latency"]), ("off", "0"), "what was switched off")


@test
def the_watermarks_of_a_cache_are_those_of_all_its_volumes(box):
    daemon, _client = volume(box, "cache_dirty_high=70", "dirty_high=30", "dirty_low=20")
    origin = box.file("origin of w", SIZE)
    daemon.create("w", box.path("cache"), origin, "--set", "cache_dirty_high=90")
    for name in ("v", "w"):
        check_equal(daemon.show(name)["settings"]["cache_dirty_high"], 70, f"what {name} found there")
    daemon.cli("stop", "w")
    daemon.cli("set", "v", "cache_dirty_high=85", "cache_dirty_low=75")
    daemon.cli("start", "w")
    settings = daemon.show("w")["settings"]
    check_equal((settings["cache_dirty_high"], settings["cache_dirty_low"]), (85, 75), "the other volume's")
    check_equal(settings["dirty_high"], 50, "what each has for itself")


@test
def it_waits_for_the_quiet_hours(box):
    daemon, client = volume(box, *AT_REST, hours(12))
    content = dirty(client, 500)
    time.sleep(2)
    check_equal(daemon.dirty("v"), 500, "dirty blocks by day")
    daemon.cli("set", "v", hours(0))
    clean(daemon)
    check_equal(daemon.show("v")["why"]["written_back"]["quiet_hours"], 500, "blocks written back at night")
    whole = pathlib.Path(box.path("origin of v")).read_bytes()
    for block in range(500):
        check(whole[2 * block * 4096 :][:4096] == content, f"the origin lacks block {2 * block}")


@test
def the_ceiling_holds_until_somebody_waits(box):
    daemon, client = volume(box, *AT_REST, "writeback_gap=0", "writeback_rate_max=1M")
    dirty(client, 1024)
    daemon.cli("set", "v", "idle=10ms")
    took = clean(daemon)
    check(took > 2.5, f"4 MiB were written in {took} s, at 1 MiB/s")
    daemon.cli("set", "v", "idle=0", "writeback_rate_min=64K", "writeback_rate_max=64K")
    dirty(client, 1024)
    started = time.monotonic()
    daemon.cli("flush", "v")
    check(time.monotonic() - started < 30, "a flush kept to 64 KiB/s, which takes a minute")
    check_equal(daemon.dirty("v"), 0, "dirty blocks after a flush")


@test
def switched_off_it_writes_only_what_it_must(box):
    daemon, client = volume(box, "idle=10ms", "dirty_high=1", "dirty_low=0", "writeback_running=off")
    dirty(client, 2000)
    time.sleep(2)
    check_equal(daemon.dirty("v"), 2000, "dirty blocks")
    # More than the cache can hold all the same.
    daemon.create("w", box.path("cache"), box.file("origin of w", 256 * MIB), "--set", "writeback_running=off")
    recorder = Recorder(daemon.uri("w"), connections=2, blocks=256 * MIB // 4096)
    recorder.write(40000, depth=64)
    recorder.settle()
    recorder.verify(daemon.uri("w"))
    why = daemon.show("w")["why"]["written_back"]
    check(why["full"] + why["reclaim"] > 0, f"what was written back: {why}")
    for name in ("v", "w"):
        daemon.cli("set", name, "writeback_running=on", "idle=10ms")
    clean(daemon)
    clean(daemon, "w")


@test
def nonsense_is_refused_and_nothing_is_made_of_it(box):
    daemon, _client = volume(box)
    before = daemon.show("v")["settings"]
    origin = box.file("origin of w", SIZE)
    for bad in (
        "cache_dirty_high=101", "cache_dirty_low=61", "writeback_gap=2M", "writeback_rate_min=-1",
        "writeback_rate_max=fast", "writeback_latency=61s", "quiet_hours=25:00-06:00", "quiet_hours=06:00-06:00",
    ):  # fmt: skip
        name = bad.split("=")[0]
        for refused in (
            daemon.cli("set", "v", bad, expect=2),
            daemon.create_run("w", box.path("cache"), origin, "--set", bad, expect=2),
        ):
            said = refused.stderr.strip()
            check(name in said and "\n" not in said, f"{bad}: {said}")
    check_equal(daemon.show("v")["settings"], before, "the settings")
    check_equal([volume["name"] for volume in json.loads(daemon.cli("list", "--json").stdout)["volumes"]], ["v"], "the volumes")


main()
