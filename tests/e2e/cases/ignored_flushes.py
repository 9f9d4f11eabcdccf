"""Ignored flushes: called dangerous while they are ignored, and made up for when that ends."""

from harness import *

SIZE = 8 * MIB
FUA = 1  # NBD_CMD_FLAG_FUA


def create(box, daemon, *arguments, cached=False, origin=None):
    """Makes the volume v with deferred writes; returns its URI."""
    cache = ["-s", box.file("v.cache", 64 * MIB)] if cached else []
    origin = origin or box.file("v.origin", SIZE)
    return daemon.cli(
        "create", "v", *cache, "-p", origin, "--ram", "32M", "--durability", "deferred", *arguments
    ).stdout.strip()


def deferred(daemon):
    """How many bytes only RAM has."""
    return daemon.show("v")["ram"]["deferred"]


@test
def ignored_flushes_are_called_dangerous_and_lose_data_only(box):
    for cached in False, True:
        daemon = box.daemon(name=f"c{cached:d}")
        uri = create(
            box, daemon, "--ignore-flush", "--set", "write_down=infinite", cached=cached
        )
        check("DANGER" in daemon.cli("show", "v").stdout, "show does not say so")
        recorder = Recorder(uri, connections=3, blocks=1000)
        recorder.write(1000)
        recorder.settle()
        # Nothing is promised.
        recorder.flusher.flush()
        recorder.flusher.pwrite(b"x" * BLOCK, (SIZE // BLOCK - 1) * BLOCK, flags=FUA)
        check(deferred(daemon) > 0, "a flush was not ignored")
        daemon.kill()
        daemon.start()
        lost = recorder.verify(daemon.uri("v"))
        check(lost > 0, "nothing was lost: the flush was not ignored")
        recorder.reconnect(daemon.uri("v"))
        recorder.write(1000)
        recorder.settle()
        recorder.durable = list(recorder.acked)
        recorder.verify(daemon.uri("v"))
        # Whoever asks for it in words gets it.
        daemon.cli("flush", "v")
        check_equal(deferred(daemon), 0, "deferred bytes after 'forebay flush'")
        recorder.write(500)
        recorder.settle()
        daemon.cli("set", "v", "ignore_flush=off")
        check("DANGER" not in daemon.cli("show", "v").stdout, "show still says so")
        recorder.flush()
        daemon.kill()
        daemon.start()
        recorder.verify(daemon.uri("v"))
        daemon.cli("set", "v", "ignore_flush=on")
        check("DANGER" in daemon.cli("show", "v").stdout, "show does not say so after a change")
        daemon.kill()


@test
def a_change_that_ends_ignored_flushes_makes_up_for_them(box):
    for cached in False, True:
        daemon = box.daemon(name=f"c{cached:d}")
        uri = create(
            box, daemon, "--ignore-flush", "--set", "write_down=infinite", "--set", "commit_interval=1h",
            cached=cached,
        )  # fmt: skip
        recorder = Recorder(uri, connections=3, blocks=1000)
        for change in (
            ["ignore_flush=off"], ["ignore_flush=off", "durability=flush"], ["caching=frozen"],
            ["ram=16M", "ignore_flush=off"],
        ):  # fmt: skip
            recorder.write(500)
            recorder.settle()
            recorder.flusher.flush()
            check(deferred(daemon) > 0, "the flush was not ignored")
            daemon.cli("set", "v", *change)
            recorder.durable = list(recorder.acked)
            daemon.kill()
            daemon.start()
            recorder.verify(daemon.uri("v"))
            recorder.reconnect(daemon.uri("v"))
            daemon.cli("set", "v", "caching=on", "durability=deferred", "ignore_flush=on")
        daemon.kill()
    disk = Disk(box, "d.origin", 16 * MIB)
    daemon = box.daemon(name="d")
    client = Client(create(box, daemon, "--ignore-flush", "--set", "write_down=infinite", origin=disk.name))
    disk.faults("fail write")
    check_equal(client.write_blocks(0, 500), 500, "writes that were acknowledged")
    client.flush()
    said = daemon.cli("set", "v", "ignore_flush=off", expect=1).stderr
    check("cannot be written down" in said and "write failed" in said, said)
    check(daemon.show("v")["settings"]["ignore_flush"], "the setting after a failed change")
    check("DANGER" in daemon.cli("show", "v").stdout, "show does not say so after a failed change")
    client.flush()
    disk.heal()
    daemon.cli("set", "v", "ignore_flush=off")
    for block in range(500):
        check_equal(read_stamp(disk.read(block * BLOCK, BLOCK), block), 1, f"block {block} on the origin")


main()
