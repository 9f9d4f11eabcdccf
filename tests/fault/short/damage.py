"""What is exchanged, truncated or damaged while nobody looks is refused or reported."""

import errno
import itertools
import os
import shutil

from harness import *

KEEP = ("--set", "idle=0", "--set", "dirty_age=0", "--set", "writeback_running=off")


def answers(daemon, name, older=0):
    """Reads what was flushed to a volume: its blocks are there, or give errors and are listed.

    So many may be `older`: a record of up to 126 blocks is lost, and the operator goes on without it.
    """
    import nbd

    client, failed, lost = Client(daemon.uri(name)), 0, 0
    for block in range(400):
        try:
            version = read_stamp(client.read(block * BLOCK), block)
        except nbd.Error as error:
            check_equal(error.errnum, errno.EIO, f"the error of block {block} of {name}")
            failed += 1
            continue
        check(version in (0, 1), f"block {block} of {name} has version {version}")
        lost += version == 0
    check(lost <= older, f"{lost} blocks of {name} are not what was flushed")
    check(not failed or daemon.show(name)["errors"]["lost"], f"{failed} blocks of {name} give errors and none is listed")


@test
def giving_up_one_volume_gives_up_no_other(box):
    # Both volumes have a block 200: the first copy on the device, and the last.
    places = itertools.product((bytes.find, bytes.rfind), (range(0, 1), range(-8, 0), range(-80, 40)))
    for number, (find, pages) in enumerate(places):
        daemon = box.daemon(name=f"d{number}")
        cache = box.file(f"cache{number}", 64 * MIB)
        for name in ("a", "b"):
            uri = daemon.create(name, cache, box.file(f"{name}{number}", 32 * MIB), *KEEP)
            client = Client(uri)
            client.write_blocks(0, 400)
            client.flush()
        # What was written last is damaged or torn by the crash, nobody can tell: a later record
        # proves that the others were durable.
        client.write_blocks(1000, 1)
        client.flush()
        daemon.kill()
        with open(cache, "r+b") as file:
            place = find(file.read(), stamp(200, 1))
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
        was_refused = daemon.show("b")["state"] == "failed"
        verb(daemon, "delete", "--force", "--discard-dirty", "a")
        if was_refused:
            check_equal(verb(daemon, "start", "b").returncode, 4, "the exit code of start b afterwards")
            verb(daemon, "start", "--force", "b")
        answers(daemon, "b", older=126 if was_refused else 0)
        daemon.kill()


@test
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
def an_origin_that_was_truncated_is_noticed(box):
    for mode in ("wb", "wt"):
        daemon = box.daemon(name=mode)
        origin = box.file(f"{mode}.origin", 32 * MIB)
        uri = daemon.create("v", box.file(f"{mode}.cache", 64 * MIB), origin, "--mode", mode, *KEEP[:4])
        client = Client(uri)
        client.write_blocks(0, 100)
        client.write_blocks(4096, 100)
        client.flush()
        os.truncate(origin, 8 * MIB)
        wait_for(lambda: daemon.show("v")["state"] == "degraded", f"{mode}: nobody has touched it, and it is degraded")
        last = daemon.show("v")["errors"]["last"]
        check("shrunk from 33554432 to 8388608" in last, f"{mode}: the error does not say what happened: {last}")
        errors = client.try_blocks(range(4200, 4300))
        check_equal(set(errors), {None if mode == "wb" else "EIO"}, f"{mode}: writes behind the end")
        check_equal(attempt(client.read, 30 * MIB), "EIO", f"{mode}: a read behind the end")
        check_equal(client.write_blocks(200, 100), 100, f"{mode}: blocks acknowledged before the end")
        client.check_block(50, 1)
        done = verb(daemon, "flush", "v")
        check_equal(done.returncode, 1, f"{mode}: the exit code of flush")
        check("shrunk" in done.stderr, f"{mode}: flush does not say why: {done.stderr}")
        check_equal(os.path.getsize(origin), 8 * MIB, f"{mode}: the size of the origin after writes behind its end")
        # What is there now is not what was there.
        os.truncate(origin, 32 * MIB)
        check_equal(attempt(client.read, 30 * MIB), "EIO", f"{mode}: a read of what was lost")
        check_equal(verb(daemon, "flush", "v").returncode, 1, f"{mode}: the exit code of flush with the old size")
        verb(daemon, "stop", "--force", "v")
        os.truncate(origin, 8 * MIB)
        done = verb(daemon, "start", "v")
        check_equal(done.returncode, 3, f"{mode}: the exit code of start ({done.stderr.strip()})")
        daemon.kill()


@test
def a_cache_file_that_was_truncated_has_failed(box):
    daemon = box.daemon()
    cache = box.file("cache", 64 * MIB)
    client = Client(daemon.create("v", cache, box.file("origin", 32 * MIB), *KEEP))
    client.write_blocks(0, 100)
    client.flush()
    os.truncate(cache, 64 * MIB - 4096)
    check_equal(client.write_blocks(100, 100, 2), 100, "blocks acknowledged to a client")
    wait_for(lambda: daemon.show("v")["state"] == "degraded", "the volume is degraded")
    last = daemon.show("v")["errors"]["last"]
    check("shrunk" in last, f"the error does not say what happened: {last}")
    done = verb(daemon, "delete", "--force", "v")
    check_equal(done.returncode, 0, f"the exit code of delete ({done.stderr.strip()})")
    with open(box.path("origin"), "rb") as file:
        found = [read_stamp(file.read(BLOCK), block) for block in range(200)]
    check_equal(found, [1] * 100 + [2] * 100, "the versions on the origin")


@test
def an_origin_made_with_a_size_may_grow(box):
    daemon = box.daemon()
    origin = box.path("origin")
    daemon.create("v", box.file("cache", 64 * MIB), f"{origin},size=32M")
    daemon.cli("stop", "--force", "v")
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
    daemon.cli("stop", "--force", "a")
    for version in (1, 2, 3):
        b.write_blocks(0, 20000, version)
    daemon.cli("flush", "b")
    for block in range(0, 20000, 100):
        b.check_block(block, 3)
    # A count of the blocks of one volume may be two seconds old.
    wait_for(lambda: daemon.show("b")["blocks"]["cached"] > 15000, "most blocks of the neighbour are cached", 5)


main()
