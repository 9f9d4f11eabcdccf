"""`forebay probe`: what udev learns about a device; and the rules that call it."""

import json
import os
import pathlib

from harness import *
from harness.sandbox import environment

DIST = pathlib.Path(__file__).resolve().parents[3] / "dist"
RULES = pathlib.Path("/run/udev/rules.d")


def probe(box, device, state=None, **variables):
    """The properties of a device."""
    state = ["--state-dir", state] if state else []
    done = box.run(os.environ["FOREBAY"], "probe", "--udev", *state, device, env=environment(**variables))
    check_equal(done.stderr, "", "stderr")
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@test
def cache_devices_and_origins_are_recognised_and_not_written_to(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 128 * MIB), box.file("origin", 16 * MIB)
    check_equal(probe(box, cache, daemon.state), {}, "an empty file")
    client = connect(daemon.create("v", cache, origin))
    daemon.cli("set", "v", "writeback_running=off")
    check_equal(probe(box, origin, daemon.state), {"FOREBAY_ORIGIN": "v"}, "a clean origin")
    client.pwrite(b"\x11" * 4096, MIB)
    client.flush()
    found = probe(box, cache, daemon.state)
    check_equal((found["ID_FS_TYPE"], found["ID_FS_USAGE"]), ("forebay_cache", "other"), "a cache device")
    dirty = {"FOREBAY_ORIGIN": "v", "FOREBAY_INCOMPLETE": "1"}
    check_equal(probe(box, origin, daemon.state), dirty, "a dirty origin")
    daemon.kill()
    before = digest(cache, origin)
    check_equal(probe(box, origin, daemon.state), dirty, "a dirty origin without a daemon")
    check_equal(probe(box, origin, box.path("no-state")), {}, "an origin without a state")
    # While udev handles an event, the link that the daemon knows is not there yet.
    os.rename(origin, box.path("moved"))
    links = f"{box.path('other')} {origin}"
    check_equal(probe(box, box.path("moved"), daemon.state, DEVLINKS=links), dirty, "a link that is planned")
    check_equal(probe(box, box.path("moved"), daemon.state), {}, "another device")
    os.rename(box.path("moved"), origin)
    check_equal(digest(cache, origin), before, "the devices")
    dumped = json.loads(box.run(daemon.binary, "dump", cache, "--json").stdout.splitlines()[0])
    check_equal(found["ID_FS_UUID"], dumped["cache"], "the UUID")
    daemon.start()
    daemon.cli("flush", "v")
    daemon.terminate()
    check_equal(probe(box, origin, daemon.state), {"FOREBAY_ORIGIN": "v"}, "a flushed origin")


MARKS = """
set -e
mount -t tmpfs none /run
mkdir -p /run/forebay/export /run/forebay/fuse
truncate -s 8M /run/forebay/export/victim
loop=$(losetup -f --show /run/forebay/export/victim)
trap 'losetup -d $loop' EXIT
own=$(mountpoint -d /run) number=$(cat /sys/block/${loop#/dev/}/diskseq)
for note in "" victim "victim 0:1" "victim $((number + 1))" "other $number" "victim $own" "victim $number"; do
    rm -f /run/forebay/fuse/*
    [ -z "$note" ] || ln -s "$note" /run/forebay/fuse/${loop#/dev/}
    "$FOREBAY" probe --udev --state-dir /run/none $loop || exit
    echo end
done
"""


@test
def a_loop_device_is_a_volumes_only_if_its_note_has_its_mark(box):
    need("unshare", "losetup", "mountpoint")
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        skip("loop devices take root")
    # The path is that of a volume, as any user can make it in a mount namespace; notes are in a directory of root.
    done = box.run("unshare", "-m", "bash", "-c", MARKS, expect=None)
    check_equal(done.returncode, 0, f"the exit code ({done.stderr})")
    said = [answer.strip() for answer in done.stdout.split("end\n")]
    check_equal(said, [""] * 5 + ["FOREBAY_VOLUME=victim"] * 2 + [""], "the properties by note")


@test
def what_cannot_be_read_is_nothing(box):
    state = box.path("state")
    for path in ("/nonexistent", str(box.dir), "/dev/null"):
        check_equal(probe(box, path, state), {}, path)
        box.run(os.environ["FOREBAY"], "probe", path, expect=2)
    check_equal(probe(box, box.file("short", 100, b"FOREBAY1"), state), {}, "a short file")
    check_equal(probe(box, box.file("noise", MIB, random_bytes(3, MIB)), state), {}, "noise")
    os.makedirs(state)
    pathlib.Path(state, "state.json").write_text("{")
    check_equal(probe(box, box.path("noise"), state), {}, "with a damaged state")
    check("Forebay" in box.run(os.environ["FOREBAY"], "probe", box.path("short"), "--state-dir", box.path("none")).stdout, "in words")


@test
def udev_accepts_the_rules_and_takes_over_what_they_say(box):
    need("udevadm", "losetup")
    if os.geteuid() != 0:
        skip("udevadm test takes root")
    daemon = box.daemon()
    cache = box.file("cache", 128 * MIB)
    daemon.create("v", cache, box.file("origin", 16 * MIB))
    daemon.terminate()
    made = box.run("losetup", "--find", "--show", cache, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    loop = made.stdout.strip()
    box.at_end(box.run, "losetup", "-d", loop)
    own = RULES / f"65-forebay-test-{os.getpid()}.rules"
    own.parent.mkdir(parents=True, exist_ok=True)
    box.at_end(own.unlink)
    own.write_text((DIST / "65-forebay.rules").read_text().replace("/usr/bin/forebay", os.environ["FOREBAY"]))
    done = box.run("udevadm", "test", "--action=change", f"/sys/block/{os.path.basename(loop)}", expect=None)
    said = [line for line in done.stderr.splitlines() if own.name in line and "Reading" not in line and "Importing" not in line]
    bad = [line for line in said if any(word in line.lower() for word in ("invalid", "unknown", "failed", "ignoring"))]
    check_equal(bad, [], "complaints about the rules")
    for line in ("ID_FS_TYPE=forebay_cache", "UDISKS_IGNORE=1"):
        check(line in done.stdout, f"{line} is missing: {done.stdout[-800:]} {done.stderr[-800:]}")


main()
