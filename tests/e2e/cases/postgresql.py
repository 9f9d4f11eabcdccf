"""PostgreSQL on a volume with deferred writes: what it has acknowledged survives a crash of the daemon."""

import os
import signal
import time

from harness import *
from harness.mounted import Mounted
from harness.postgresql import TABLE, Inserter, Server

CLIENTS = 4
# Rows of all clients together before the daemon is killed; each is a commit of its own.
COMMITS = 1500


def acknowledged_commits_survive(box, *arguments):
    need("nbdfuse", "fusermount3", "losetup", "mount", "mkfs.ext4", "e2fsck")
    if os.geteuid() != 0:
        skip("mounting takes root")
    daemon = box.daemon()
    # Only a flush brings anything from RAM to where it survives, unless space is short.
    deferred = ["--ram", "64M", "--durability", "deferred", "--set", "write_down=infinite"]
    uri = daemon.cli("create", "v", *arguments, "-p", box.file("origin", 512 * MIB), *deferred).stdout.strip()
    mounted = Mounted(box, uri)
    server = Server(box, mounted.mount)
    mounted.attach()
    box.run("mkfs.ext4", "-q", "-F", mounted.loop)
    mounted.mount_it()
    server.initialise()
    server.start()
    server.ask(TABLE)
    for round in range(2):
        inserters = [Inserter(server, 10 * round + number) for number in range(CLIENTS)]
        for inserter in inserters:
            inserter.start()
        since, before = time.monotonic(), 0
        while (commits := sum(inserter.acknowledged for inserter in inserters)) < COMMITS:
            if commits > before:
                before, since = commits, time.monotonic()
            check(time.monotonic() - since < 120, f"only {commits} commits: {server.log()[-600:]}")
            time.sleep(0.02)
        counts = daemon.show("v")["ram"]
        check(counts["deferred_written"] > 0 and counts["written_down"] > 0, f"nothing was deferred: {counts}")
        daemon.kill()
        server.stop(signal.SIGQUIT)
        for inserter in inserters:
            inserter.session.kill()
            inserter.join()
        mounted.detach()
        daemon.start()
        mounted.uri = daemon.uri("v")
        mounted.attach()
        mounted.mount_it()
        server.start()
        for inserter, last in server.check_rows(inserters).items():
            check(
                inserter.acknowledged <= last <= inserter.sent,
                f"client {inserter.number} has {last} rows; {inserter.acknowledged} were acknowledged, {inserter.sent} sent",
            )
    server.stop()
    box.run("umount", mounted.mount)
    box.run("e2fsck", "-f", "-n", mounted.loop)
    mounted.detach()
    daemon.cli("flush", "v")
    daemon.cli("stop", "v")
    box.run("e2fsck", "-f", "-n", box.path("origin"))


@test
def acknowledged_commits_survive_with_ram_before_a_cache_device(box):
    acknowledged_commits_survive(box, "-s", box.file("cache", 256 * MIB))


@test
def acknowledged_commits_survive_with_ram_alone(box):
    acknowledged_commits_survive(box)


main()
