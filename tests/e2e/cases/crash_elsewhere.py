"""After a SIGKILL the origin is exchanged or written elsewhere before the next start."""

import json
import os
import pathlib
import shutil

from harness import *

SIZE = 16 * MIB
# Within the first 256 KiB and at one of 64 places over the whole: both are samples.
EARLY, LATE = 128 * KIB, SIZE // 64 * 40
DIRTY = b"\x99" * 65536
DIRTY_AT = 5 * MIB + 65536


def killed(box, dirty):
    """A volume with cached blocks, and dirty ones if asked for, whose daemon was killed."""
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", SIZE, random_bytes(1, SIZE))
    client = connect(daemon.create("v", cache, origin))
    daemon.cli("set", "v", "writeback_running=off", "sequential_cutoff=0")
    read_until(client, 0, SIZE, lambda: daemon.show("v")["cache"]["used"] > 12 * MIB, "most of it is cached")
    if dirty:
        client.pwrite(DIRTY, DIRTY_AT)
    # What was read is cached for good as well.
    client.flush()
    daemon.kill()
    return daemon, cache, origin


def alter(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\x55" * 512)


def swap(daemon, **devices):
    """Changes the devices of volume v in the daemon's memory, as a wrong configuration would."""
    state = pathlib.Path(daemon.state) / "state.json"
    contents = json.loads(state.read_text())
    contents["volumes"][0]["volume"].update(devices)
    state.write_text(json.dumps(contents))


def check_refused(daemon, code, devices):
    """Neither the start of the daemon nor that of the volume touches a device."""
    before = digest(*devices)
    daemon.start()
    report = daemon.show("v")
    check_equal(report["state"], "failed", "the state of the volume")
    check(report["errors"]["last"], "nothing says why it failed")
    done = daemon.cli("start", "v", expect=code)
    check("start --force v" in done.stderr, f"no way out is named: {done.stderr}")
    daemon.kill()
    check_equal(digest(*devices), before, "the devices after the refusal")
    daemon.start()


def check_forced(daemon, dirty):
    daemon.cli("start", "--force", "v")
    client = connect(daemon.uri("v"))
    if dirty:
        check_equal(bytes(client.pread(len(DIRTY), DIRTY_AT)), DIRTY, "the dirty blocks")
    client.shutdown()
    # What was forced is the truth from now on, also after another crash.
    daemon.kill()
    daemon.start()
    check_equal(daemon.show("v")["state"], "running", "the state after another crash")
    if dirty:
        client = connect(daemon.uri("v"))
        check_equal(bytes(client.pread(len(DIRTY), DIRTY_AT)), DIRTY, "the dirty blocks")
        client.shutdown()


@test
def an_origin_that_nobody_touched_goes_on(box):
    daemon, _, _ = killed(box, True)
    daemon.start()
    client = connect(daemon.uri("v"))
    check_equal(bytes(client.pread(len(DIRTY), DIRTY_AT)), DIRTY, "the dirty blocks")
    daemon.cli("flush", "v")
    # Now the cache has written to the origin itself, to samples among others.
    client.pwrite(DIRTY, EARLY)
    client.flush()
    daemon.cli("flush", "v")
    client.shutdown()
    daemon.kill()
    daemon.start()
    check_equal(daemon.show("v")["state"], "running", "the state after our own writes")


@test
def written_elsewhere_with_dirty_blocks(box):
    for at in EARLY, LATE:
        daemon, cache, origin = killed(box, True)
        alter(origin, at)
        check_refused(daemon, 4, (cache, origin))
        check_forced(daemon, True)
        client = connect(daemon.uri("v"))
        check_equal(bytes(client.pread(512, at)), b"\x55" * 512, "what was written elsewhere")
        client.shutdown()
        daemon.terminate()
        shutil.rmtree(daemon.state)


@test
def written_elsewhere_without_dirty_blocks(box):
    daemon, _, origin = killed(box, False)
    expected = bytearray(pathlib.Path(origin).read_bytes())
    # Of these only the first is a sample; what is not one must not be served from the cache either.
    for at in LATE, LATE + 8192, 3 * MIB + 4096:
        alter(origin, at)
        expected[at : at + 512] = b"\x55" * 512
    daemon.start()
    client = connect(daemon.uri("v"))
    found = b"".join(bytes(client.pread(MIB, at)) for at in range(0, SIZE, MIB))
    check_equal(first_difference(found, bytes(expected)), None, "the first stale byte")


@test
def exchanged_for_a_copy_of_the_same_size(box):
    """The content is the same, as of a clone; the file is another one."""
    for dirty, code in (True, 4), (False, 3):
        daemon, cache, origin = killed(box, dirty)
        other = box.path("other")
        shutil.copyfile(origin, other)
        swap(daemon, origin=other)
        check_refused(daemon, code, (cache, origin, other))
        check_forced(daemon, dirty)
        daemon.terminate()
        shutil.rmtree(daemon.state)


@test
def moved_after_a_crash_is_still_the_same_file(box):
    daemon, _, origin = killed(box, True)
    moved = box.path("moved")
    os.rename(origin, moved)
    swap(daemon, origin=moved)
    daemon.start()
    client = connect(daemon.uri("v"))
    check_equal(bytes(client.pread(len(DIRTY), DIRTY_AT)), DIRTY, "the dirty blocks")


@test
def both_exchanged(box):
    """The wrong cache device with the wrong origin, and with the right one."""
    daemon, cache, origin = killed(box, True)
    other = box.daemon(name="other")
    theirs, their_origin = box.file("theirs", 64 * MIB), box.file("their-origin", SIZE)
    other.create("v", theirs, their_origin)
    other.kill()
    for devices in {"cache": theirs}, {"origin": their_origin}:
        swap(daemon, **devices)
        check_refused(daemon, 4 if "origin" in devices else 3, (cache, origin, theirs, their_origin))
        daemon.kill()
        swap(daemon, cache=cache, origin=origin)
    daemon.start()
    client = connect(daemon.uri("v"))
    check_equal(bytes(client.pread(len(DIRTY), DIRTY_AT)), DIRTY, "the data of the pair")


main()
