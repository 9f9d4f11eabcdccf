"""What is exchanged, truncated or damaged while nobody looks is refused or reported."""

import shutil
import time

from harness import *

KEEP = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "writeback_running=off")


def answers(daemon, name):
    """The blocks of a volume that give errors; all others have what was flushed."""
    client, failed = Client(daemon.uri(name)), []
    for block in range(400):
        error = attempt(client.check_block, block, 1)
        if error:
            check_equal(error, "EIO", f"the error of block {block} of {name}")
            failed.append(block)
    lost = daemon.show(name)["errors"]["lost"]
    check(not failed or lost, f"{len(failed)} blocks of {name} give errors and none is listed")
    return failed


@test
def giving_up_one_volume_gives_up_no_other(box):
    for pages in (range(0, 1), range(-8, 0), range(-80, 40)):
        daemon = box.daemon(name=f"d{pages.start}")
        cache = box.file(f"cache{pages.start}", 64 * MIB)
        for name in ("a", "b"):
            uri = daemon.create(name, cache, box.file(f"{name}{pages.start}", 32 * MIB), *KEEP)
            client = Client(uri)
            client.write_blocks(0, 400)
            client.flush()
        daemon.kill()
        with open(cache, "r+b") as file:
            place = file.read().find(stamp(200, 1))
            check(place > 0, "block 200 is not on the cache device")
            for page in pages:
                file.seek(place + page * 4096)
                file.write(random_bytes(page, 4096))
        daemon.start()
        for name in ("a", "b"):
            if daemon.show(name)["state"] == "running":
                answers(daemon, name)
            else:
                check_equal(verb(daemon, "start", name).returncode, 4, f"the exit code of start {name}")
        was_refused = daemon.show("b")["state"] != "running"
        verb(daemon, "delete", "--discard-dirty", "a")
        if was_refused:
            check_equal(verb(daemon, "start", "b").returncode, 4, "the exit code of start b afterwards")
            verb(daemon, "start", "--force", "b")
        answers(daemon, "b")
        daemon.kill()


@test
@pending("nobody knows how far the cache was")
def an_older_copy_of_the_cache_device_is_refused(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    client = Client(daemon.create("v", cache, box.file("origin", 32 * MIB), *KEEP))
    client.write_blocks(0, 100)
    client.flush()
    daemon.restart()
    daemon.terminate()
    shutil.copyfile(cache, f"{cache}.old")
    daemon.start()
    client = Client(daemon.uri("v"))
    client.write_blocks(0, 100, 2)
    client.flush()
    daemon.kill()
    # The same file, as a snapshot that is rolled back would be.
    with open(f"{cache}.old", "rb") as old, open(cache, "r+b") as file:
        shutil.copyfileobj(old, file)
    daemon.start()
    report = daemon.show("v")
    check_equal(report["state"], "failed", "the state with an older copy of the cache device")
    said = verb(daemon, "start", "v")
    check_equal(said.returncode, 4, f"the exit code of start ({said.stderr.strip()})")
    check("older" in said.stderr or "newer" in said.stderr, f"which one is newer: {said.stderr.strip()}")


@test
@pending("the size is not looked at")
def an_origin_that_was_truncated_is_noticed(box):
    for mode in ("wb", "wt"):
        daemon = box.daemon(name=mode)
        origin = box.file(f"{mode}.origin", 32 * MIB)
        client = Client(daemon.create("v", box.file(f"{mode}.cache", 64 * MIB), origin, "--mode", mode, *KEEP[:4]))
        client.write_blocks(4096, 100)
        client.flush()
        with open(origin, "r+b") as file:
            file.truncate(8 * MIB)
        client.write_blocks(4200, 100)
        done = verb(daemon, "flush", "v")
        check(done.returncode != 0, f"{mode}: a flush to a truncated origin ended with 0")
        daemon.kill()


@test
def an_origin_made_with_a_size_may_grow(box):
    daemon = box.daemon()
    origin = box.path("origin")
    daemon.create("v", box.file("cache", 64 * MIB), f"{origin},size=32M")
    daemon.cli("stop", "v")
    with open(origin, "r+b") as file:
        file.truncate(48 * MIB)
    done = verb(daemon, "start", "v")
    check_equal(done.returncode, 0, f"the exit code of start ({done.stderr.strip()})")
    check_equal(daemon.show("v")["origin"]["size"], 48 * MIB, "the size that is served")


@test
def there_are_never_fewer_cached_than_dirty_blocks(box):
    daemon = box.daemon()
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 32 * MIB), *KEEP))
    for round in range(30):
        client.write_blocks(round * 100, 100)
        blocks = daemon.show("v")["blocks"]
        check(blocks["cached"] >= blocks["dirty"], f"{blocks}")


@test
def a_stopped_volume_leaves_the_room_to_its_neighbour(box):
    daemon = box.daemon()
    cache = box.file("cache", 128 * MIB)
    clients = {}
    for name in ("a", "b"):
        clients[name] = Client(daemon.create(name, cache, box.file(f"{name}.disk", 128 * MIB)))
    a, b = clients["a"], clients["b"]
    a.write_blocks(0, 20000)
    daemon.cli("flush", "a")
    daemon.cli("stop", "a")
    for version in (1, 2, 3):
        b.write_blocks(0, 20000, version)
    daemon.cli("flush", "b")
    for block in range(0, 20000, 100):
        b.check_block(block, 3)
    cached = daemon.show("b")["blocks"]["cached"]
    check(cached > 15000, f"only {cached} blocks of the neighbour are cached")


main()
