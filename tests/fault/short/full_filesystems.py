"""Filesystems that are full: below the origin, the cache, the state and the sockets."""

import os
import pathlib

from harness import *

PATIENCE = 30


def small(box, name, size="8m"):
    """A small filesystem of its own; skips where none can be mounted."""
    place = box.path(name)
    os.makedirs(place, exist_ok=True)
    done = box.run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", place, expect=None)
    if done.returncode:
        skip(f"no tmpfs: {done.stderr.strip()}")
    box.at_end(box.run, "umount", "-l", place)
    return pathlib.Path(place)


def fill(place):
    """Takes all the room that is left; returns the file that took it."""
    path = place / "ballast"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return path


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    return str(path)


@test
def below_the_origin(box):
    for mode in ("wb", "wt"):
        place = small(box, mode)
        daemon = box.daemon(name=f"{mode}d")
        origin = sparse(place / "origin", 32 * MIB)
        uri = daemon.create("v", box.file(f"{mode}.cache", 64 * MIB), origin, "--mode", mode)
        client = Client(uri)
        ballast = fill(place)
        errors = client.try_blocks(range(1000))
        allowed = {None} if mode == "wb" else {None, "ENOSPC"}
        check(set(errors) <= allowed, f"{mode}: writes ended with {set(errors)}")
        done = verb(daemon, "flush", "v")
        check(done.returncode == 1, f"{mode}: flush ended with {done.returncode}: {done.stderr.strip()}")
        check(client.read(2000 * BLOCK) == bytes(BLOCK), f"{mode}: a read of a hole")
        os.unlink(ballast)
        written = [block for block, error in enumerate(errors) if error is None]
        again = client.try_blocks(range(1000, 1100))
        if mode == "wb":
            check_equal(set(again), {None}, "writes after room was made")
        else:
            wait_for(lambda: client.try_blocks([1100]) == [None], f"{mode}: a write succeeds again")
        wait_for(lambda: verb(daemon, "flush", "v").returncode == 0, f"{mode}: a flush succeeds again")
        with open(origin, "rb") as file:
            for block in written:
                file.seek(block * BLOCK)
                check_equal(read_stamp(file.read(BLOCK), block), 1, f"{mode}: block {block} on the origin")
        daemon.restart()
        client = Client(daemon.uri("v"))
        for block in written[::50]:
            client.check_block(block, 1)


@test
def below_the_cache(box):
    place = small(box, "c", "16m")
    for mode in ("wb", "wt"):
        daemon = box.daemon(name=f"{mode}d")
        cache = sparse(place / f"{mode}.cache", 64 * MIB)
        origin = Disk(box, f"{mode}.origin", 64 * MIB)
        done = daemon.create_run("v", cache, origin.name, "--mode", mode)
        client = Client(done.stdout.strip())
        client.write_blocks(0, 100)
        client.flush()
        ballast = fill(place)
        errors = client.try_blocks(range(200, 2200))
        for block in range(0, 100, 10):
            client.check_block(block, 1)
        if mode == "wt":
            check_equal(set(errors), {None}, "wt: writes with a cache that cannot grow")
            check_equal(attempt(client.flush), None, "wt: a flush")
        for block, error in enumerate(errors, 200):
            if error is None:
                client.check_block(block, 1)
        for words in (("flush", "v"), ("delete", "--force", "v")):
            verb(daemon, *words)
        os.unlink(ballast)
        if "v" in daemon.cli("list", "--names").stdout.split():
            check_equal(verb(daemon, "delete", "--force", "v").returncode, 0, f"{mode}: delete with room again")
        for block in range(100):
            check_equal(read_stamp(origin.read(block * BLOCK, BLOCK), block), 1, f"{mode}: block {block}")
        daemon.kill()
        os.unlink(cache)


@test
def below_the_state(box):
    daemon = box.daemon()
    daemon.terminate()
    place = small(box, "s", "64k")
    daemon.state = str(place / "state")
    daemon.start()
    cache = box.file("cache", 64 * MIB)
    client = Client(daemon.create("v", cache, box.file("v.disk", 32 * MIB)))
    client.write_blocks(0, 100)
    client.flush()
    ballast = fill(place)
    before = daemon.cli("list", "--json").stdout

    def unchanged(*words):
        """A command that fails has changed nothing, neither now nor after a restart."""
        done = verb(daemon, *words)
        check(done.returncode != 0, f"{words} succeeded without room for the state")
        names = daemon.cli("list", "--names").stdout.split()
        check_equal(names, ["v"], f"the volumes after {words}, which ended with {done.returncode}")

    unchanged("create", "w", "--cache", cache, "--origin", box.file("w.disk", 32 * MIB))
    unchanged("delete", "--force", "v")
    unchanged("set", "v", "mode=wt")
    for words in (("stop", "--force", "v"), ("start", "v")):
        verb(daemon, *words)
    daemon.kill()
    daemon.start()
    check_equal(daemon.cli("list", "--names").stdout.split(), ["v"], "the volumes after a restart")
    if daemon.show("v")["state"] != "running":
        check_equal(verb(daemon, "start", "v").returncode, 0, "the exit code of start")
    client = Client(daemon.uri("v"))
    for block in range(100):
        client.check_block(block, 1)
    os.unlink(ballast)
    check_equal(verb(daemon, "delete", "--force", "v").returncode, 0, "the exit code of delete with room again")
    check_equal(daemon.cli("list", "--names").stdout, "", "what is left")
    check(before, "there was a volume")


@test
def below_the_sockets(box):
    place = small(box, "r", "64k")
    daemon = box.daemon()
    daemon.terminate()
    ballast = fill(place)
    # No room for a name in the directory is the only thing that a socket needs.
    daemon.socket, daemon.nbd = str(place / "admin.sock"), str(place / "nbd.sock")
    box.run("mount", "-o", "remount,nr_inodes=2", place)
    daemon.launch()
    code = daemon.process.wait(PATIENCE)
    check_equal(code, 1, "the exit code of a daemon that cannot make its socket")
    said = daemon.last_line()
    check("admin.sock" in said, f"the error does not name the socket: {said}")
    os.unlink(ballast)
    box.run("mount", "-o", "remount,nr_inodes=100", place)
    daemon.start()
    check_equal(daemon.cli("list", "--names").stdout, "", "the volumes")


main()
