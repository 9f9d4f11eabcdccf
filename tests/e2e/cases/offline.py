"""check and dump: what they say of whole and of damaged devices, and that they change nothing."""

import json
import os
import pathlib

from harness import *


def used(box):
    """A cache device with clean and dirty blocks, after a kill."""
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 32 * MIB)
    uri = daemon.create("v", cache, origin)
    recorder = Recorder(uri, blocks=3000)
    # A later record says that the earlier ones were durable. Damage to those at the very end of
    # the log cannot be told from a crash in the middle of writing them.
    for number in (4000, 10, 10):
        recorder.write(number)
        recorder.settle()
        recorder.flush()
    daemon.kill()
    return daemon, cache


@test
def a_cache_device_is_sound_after_a_kill(box):
    daemon, cache = used(box)
    before = digest(cache)
    for arguments in ([], ["--quick"], ["--json"]):
        daemon.cli("check", cache, *arguments)
    json.loads(daemon.cli("check", cache, "--json").stdout)
    dumped = daemon.cli("dump", cache, "--records", "--entries").stdout
    check("dirty_high=50" in dumped, "settings have no names")
    for line in daemon.cli("dump", cache, "--json").stdout.splitlines():
        json.loads(line)
    check_equal(digest(cache), before, "the device")


@test
def damage_is_found_and_nothing_is_mended(box):
    daemon, cache = used(box)
    data = bytearray(pathlib.Path(cache).read_bytes())
    # Every block of this test begins like this; the copies in the log are what is damaged here.
    found = 0
    place = data.find(b"stamped!", 4 * MIB)
    while place >= 0 and found < 200:
        data[place + 100] ^= 1
        found += 1
        place = data.find(b"stamped!", place + 4096)
    check(found > 100, "too few blocks on the cache device for this test")
    pathlib.Path(cache).write_bytes(data)
    before = digest(cache)
    done = daemon.cli("check", cache, expect=1)
    check("problems" in done.stderr, f"no summary: {done.stderr}")
    check_equal(digest(cache), before, "the device")


@test
def what_check_says_can_be_written_back_is_written_back(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 32 * MIB)
    uri = daemon.create("v", cache, origin)
    daemon.cli("set", "v", "idle=off", "dirty_high=100", "dirty_low=0")
    recorder = Recorder(uri, blocks=1000)
    recorder.write(1000)
    recorder.settle()
    recorder.flush()
    recorder.settle()
    check_equal(daemon.terminate()[0], 0, "the exit code")
    # The header of a record lies before its first block. The checkpoint of the orderly end knows
    # the blocks, so the header is not needed any more.
    data = bytearray(pathlib.Path(cache).read_bytes())
    data[data.find(b"stamped!") // 4096 * 4096 - 4096 + 100] ^= 1
    pathlib.Path(cache).write_bytes(data)
    for arguments in ([], ["--quick"]):
        found = json.loads(daemon.cli("check", cache, "--json", *arguments, expect=1).stdout)
        check(found["without_header"]["dirty"] > 0, f"no header is damaged: {found}")
        check_equal(found["bad"]["count"], 0, "blocks that are called lost")
    done = daemon.cli("check", cache, expect=1)
    check("none of its" in done.stdout, f"no word of what can be had: {done.stdout}")
    daemon.start()
    daemon.cli("flush", "v")
    check_equal(daemon.show("v")["errors"]["lost"], [], "what is lost")
    recorder.verify(daemon.uri("v"))


@test
def a_device_in_use_is_refused_and_other_things_are_named(box):
    daemon, cache = used(box)
    daemon.start()
    for verb in ("check", "dump"):
        daemon.cli(verb, cache, expect=3)
        daemon.cli(verb, box.path("absent"), expect=2)
        done = daemon.cli(verb, box.file("empty", 64 * MIB), expect=None)
        check(done.returncode in (2, 3), f"an empty device: code {done.returncode}")
        check_equal(len(done.stderr.strip().splitlines()), 1, "lines about an empty device")
    os.truncate(box.path("empty"), 0)
    done = daemon.cli("check", box.path("empty"), expect=None)
    check(done.returncode in (2, 3), f"a device of no size: code {done.returncode}")


main()
