"""ext4 and SQLite on a volume, by way of nbdfuse and a loop device, over a crash of the daemon."""

import os
import subprocess

from harness import *
from harness.mounted import Mounted

ROWS = 400


def volume(box, *arguments, cached=True):
    need("nbdfuse", "fusermount3", "losetup", "mount", "mkfs.ext4", "e2fsck")
    if os.geteuid() != 0:
        skip("mounting takes root")
    daemon = box.daemon()
    cache = ["-s", box.file("cache", 128 * MIB)] if cached else []
    origin = box.file("origin", 256 * MIB)
    uri = daemon.cli("create", "v", *cache, "-p", origin, *arguments).stdout.strip()
    mounted = Mounted(box, uri)
    mounted.attach()
    box.run("mkfs.ext4", "-q", "-F", mounted.loop)
    mounted.mount_it()
    return daemon, mounted


@test
def files_come_back_after_unmounting_and_a_restart(box):
    daemon, mounted = volume(box)
    sums = {}
    for number in range(60):
        content = random_bytes(number, 4096 * (number + 1) + number)
        with open(f"{mounted.mount}/file{number}", "wb") as file:
            file.write(content)
        sums[number] = content
    for number in range(0, 60, 7):
        os.unlink(f"{mounted.mount}/file{number}")
        del sums[number]
    box.run("umount", mounted.mount)
    box.run("e2fsck", "-f", "-n", mounted.loop)
    mounted.detach()
    daemon.restart()
    mounted.attach()
    mounted.mount_it()
    for number, content in sums.items():
        with open(f"{mounted.mount}/file{number}", "rb") as file:
            check(file.read() == content, f"file{number} differs")
    box.run("umount", mounted.mount)
    mounted.detach()
    daemon.cli("flush", "v")
    daemon.cli("stop", "v")
    # Without the cache the origin is a whole filesystem as well.
    box.run("e2fsck", "-f", "-n", box.path("origin"))


def sqlite_over_a_crash(box, *arguments, cached=True):
    need("sqlite3")
    daemon, mounted = volume(box, *arguments, cached=cached)
    database = f"{mounted.mount}/db"
    box.run("sqlite3", database, "PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER, data TEXT);")
    box.run("sync")
    writer = box.spawn(
        "sqlite3", database, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, bufsize=1,
    )  # fmt: skip
    writer.stdin.write("PRAGMA synchronous=FULL;\n")
    committed = 0
    for row in range(ROWS):
        # The answer comes after the commit, and with it the promise.
        writer.stdin.write(f"INSERT INTO t VALUES({row}, hex(randomblob(200)));\n")
        writer.stdin.write("SELECT max(id) FROM t;\n")
        committed = int(writer.stdout.readline()) + 1
    daemon.kill()
    writer.kill()
    writer.wait()
    mounted.detach()
    daemon.start()
    mounted.attach()
    mounted.mount_it()
    verdict = box.run("sqlite3", database, "PRAGMA integrity_check;").stdout.strip()
    check_equal(verdict, "ok", "the integrity check")
    found = box.run("sqlite3", database, "SELECT count(*), max(id) FROM t;").stdout.strip()
    check_equal(found, f"{committed}|{committed - 1}", "rows and the last one")
    box.run("umount", mounted.mount)
    box.run("e2fsck", "-f", "-n", mounted.loop)
    return daemon, mounted


@test
def sqlite_keeps_what_it_has_committed_over_a_crash(box):
    sqlite_over_a_crash(box)


# Only a flush brings anything from RAM to where it survives.
DEFERRED = ["--ram", "96M", "--durability", "deferred", "--set", "write_down=infinite"]


@test
def sqlite_keeps_it_with_deferred_writes_before_a_cache_device(box):
    daemon, _ = sqlite_over_a_crash(box, *DEFERRED)
    check(daemon.show("v")["ram"]["deferred_written"] > 0, "nothing was deferred")


@test
def sqlite_keeps_it_with_deferred_writes_in_ram_alone(box):
    daemon, mounted = sqlite_over_a_crash(box, *DEFERRED, cached=False)
    check(daemon.show("v")["ram"]["deferred_written"] > 0, "nothing was deferred")
    mounted.detach()
    daemon.cli("stop", "v")
    box.run("e2fsck", "-f", "-n", box.path("origin"))


main()
