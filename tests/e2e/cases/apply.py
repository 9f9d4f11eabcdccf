"""`forebay apply`: the volumes become what a file declares, and a second run changes nothing."""

import json
import os
import pathlib

from harness import *


def declare(box, text, name="forebay.toml"):
    pathlib.Path(box.path(name)).write_text(text)


def volume(box, name, *lines, cache="cache"):
    """The declaration of a volume on devices of the sandbox."""
    own = "".join(f"{line}\n" for line in lines)
    return f"[volumes.{name}]\ncache = '{box.path(cache)}'\norigin = '{box.path('origin-' + name)}'\n{own}"


def apply(box, daemon, *arguments, expect=0):
    """Applies the file; gives the steps as (volume, action, result), and the error."""
    done = daemon.cli("apply", "--config", box.path("forebay.toml"), "--json", *arguments, expect=expect)
    steps = json.loads(done.stdout)["steps"] if done.stdout else []
    return [(step["volume"], step["action"], step["result"]) for step in steps], done.stderr.strip()


def devices(box, *names):
    box.file("cache", 128 * MIB)
    for name in names:
        box.file(f"origin-{name}", 16 * MIB)


@test
def a_second_run_changes_nothing(box):
    devices(box, "a", "b")
    daemon = box.daemon()
    declare(box, volume(box, "a", "profile = 'bcache'", "mode = 'wt'", "ram = '16M'") + volume(box, "b", "dirty_high = 70"))
    plan = [("a", "create", "planned"), ("b", "create", "planned")]
    check_equal(apply(box, daemon, "--dry-run")[0], plan, "the plan")
    check_equal(json.loads(daemon.cli("list", "--json").stdout)["volumes"], [], "volumes after a dry run")
    check_equal(apply(box, daemon)[0], [("a", "create", "done"), ("b", "create", "done")], "the first run")
    settings = daemon.show("a")["settings"]
    check_equal((settings["mode"], settings["ram"]), ("writethrough", 16 * MIB), "settings beside the profile's")
    check_equal(daemon.show("b")["settings"]["dirty_high"], 70, "a setting")
    before = pathlib.Path(daemon.state, "state.json").read_bytes()
    nothing = [("a", "keep", "none"), ("b", "keep", "none")]
    check_equal(apply(box, daemon)[0], nothing, "the second run")
    check_equal(pathlib.Path(daemon.state, "state.json").read_bytes(), before, "the daemon's state")
    text = daemon.cli("apply", "--config", box.path("forebay.toml")).stdout
    check(text.count("nothing to do") == 2, f"the text: {text!r}")
    daemon.restart()
    check_equal(apply(box, daemon)[0], nothing, "a run after a restart")


@test
def changes_are_made_and_what_the_file_does_not_say_is_left_alone(box):
    devices(box, "a", "b")
    daemon = box.daemon()
    declare(box, volume(box, "a", "dirty_high = 70", "ram = '16M'") + volume(box, "b"))
    apply(box, daemon)
    daemon.cli("set", "a", "dirty_high=80", "idle=77s")
    daemon.cli("stop", "b")
    done = daemon.cli("apply", "--config", box.path("forebay.toml"))
    check("dirty_high 80 -> 70" in done.stdout, f"the plan: {done.stdout}")
    check_equal(daemon.show("a")["settings"]["dirty_high"], 70, "the changed setting")
    check_equal(daemon.show("a")["settings"]["idle"], "77s", "a setting that is not declared")
    check_equal(daemon.show("b")["state"], "running", "a declared volume")
    declare(box, volume(box, "a", "ram_block = '8K'"))
    steps, said = apply(box, daemon)
    check_equal(steps, [("a", "set", "done"), ("b", "undeclared", "none")], "the steps")
    check("takes effect when the volume is started again" in said, f"what waits: {said}")
    check_equal(apply(box, daemon)[0][0], ("a", "keep", "none"), "the same again")
    check_equal(apply(box, daemon, "--prune")[0][0], ("b", "stop", "done"), "with --prune")
    check_equal(daemon.show("b")["state"], "stopped", "the pruned volume")
    check_equal(apply(box, daemon, "--prune")[0], [("a", "keep", "none"), ("b", "undeclared", "none")], "once more")
    declare(box, volume(box, "a", "serve = false") + volume(box, "b"))
    check_equal(apply(box, daemon)[0], [("a", "stop", "done"), ("b", "start", "done")], "served or not")
    check_equal(daemon.show("a")["state"], "stopped", "a volume that is not to be served")


@test
def what_is_at_risk_is_refused_as_by_create(box):
    devices(box, "a", "b")
    daemon = box.daemon()
    os.rename(box.path("cache"), box.path("other"))
    box.run("mkfs.ext4", "-q", "-F", box.path("other"))
    box.file("cache", 128 * MIB)
    declare(box, volume(box, "a", cache="other") + volume(box, "b"))
    before = digest(box.path("other"), box.path("origin-a"))
    steps, said = apply(box, daemon, expect=4)
    check_equal(steps, [("a", "create", "failed"), ("b", "create", "done")], "the steps")
    check("volume 'a'" in said and "--force" in said and "\n" not in said, f"the reason: {said}")
    check_equal(digest(box.path("other"), box.path("origin-a")), before, "the refused devices")
    check_equal(apply(box, daemon, "--force", "c", expect=2)[0], [], "a volume that is not declared")
    apply(box, daemon, "--force", "b", expect=4)
    check_equal(apply(box, daemon, "--force", "a")[0][0], ("a", "create", "done"), "with force")
    # An existing volume with other devices is refused before anything is changed.
    declare(box, volume(box, "a", cache="cache") + volume(box, "b", "idle = '9s'"))
    steps, said = apply(box, daemon, expect=3)
    check_equal(steps, [], "the steps")
    check("line 2: cache" in said and "\n" not in said, f"the reason: {said}")
    check(daemon.show("b")["settings"]["idle"] != "9s", "something was changed")
    # By another name it is the same device.
    os.symlink(box.path("other"), box.path("link"))
    declare(box, volume(box, "a", cache="link") + volume(box, "b"))
    check_equal(apply(box, daemon)[0], [("a", "keep", "none"), ("b", "keep", "none")], "by a link")


@test
def bad_files_change_nothing_and_name_the_line_and_the_key(box):
    devices(box, "a", "b")
    daemon = box.daemon()
    good = volume(box, "a")
    for text, word in (
        (good + "durability_ = 'x'\n", "line 4: durability_: unknown"),
        (good + f"cache = '{box.path('cache')}'\n", "line 4: cache: duplicate"),
        (good + volume(box, "a"), "line 4"),
        (good + "dirty_low = 90\n", "line 4: dirty_low"),
        (good + "policy = 'lru'\n" + volume(box, "b", "policy = 'fifo'"), "line 8: policy"),
        (good + "[daemon]\nlanes = 1\n", "line 4: daemon: unknown"),
        ("[volumes.a\n", "line 1"),
    ):
        declare(box, text)
        steps, said = apply(box, daemon, expect=2)
        check_equal(steps, [], f"steps of {text!r}")
        check(word in said and "forebay.toml" in said and "\n" not in said, f"{text!r}: {said}")
    check_equal(json.loads(daemon.cli("list", "--json").stdout)["volumes"], [], "volumes")
    check_equal(digest(box.path("cache")), digest(box.file("zero", 128 * MIB)), "the cache device")


@test
def missing_devices_are_waited_for_and_lost_state_is_adopted(box):
    devices(box, "a")
    daemon = box.daemon()
    declare(box, volume(box, "a"))
    apply(box, daemon)
    client = connect(daemon.uri("a"))
    client.pwrite(b"\x5a" * 65536, MIB)
    client.flush()
    daemon.kill()
    os.rename(box.path("origin-a"), box.path("away"))
    daemon.start()
    check_equal(daemon.show("a")["state"], "failed", "the volume without its origin")
    check_equal(apply(box, daemon, expect=2)[0], [("a", "start", "failed")], "without its origin")
    late = box.spawn("sh", "-c", f"sleep 2; mv {box.path('away')} {box.path('origin-a')}")
    check_equal(apply(box, daemon, "--wait", "60s")[0], [("a", "start", "done")], "with --wait")
    late.wait()
    daemon.kill()
    os.rename(daemon.state, box.path("old-state"))
    daemon.start()
    check_equal(apply(box, daemon, expect=4)[0], [("a", "create", "failed")], "without the daemon's state")
    check_equal(apply(box, daemon, "--adopt")[0], [("a", "create", "done")], "with --adopt")
    check_equal(bytes(connect(daemon.uri("a")).pread(65536, MIB)), b"\x5a" * 65536, "what was flushed")


main()
