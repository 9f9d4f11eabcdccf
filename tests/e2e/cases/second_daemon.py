"""One writer: what a daemon owns, no second one gets, and a dead owner blocks nobody."""

import os
import time

from harness import *


def refused(box, second, *arguments):
    start = time.monotonic()
    done = box.run(*second.command(*arguments), expect=3)
    check(time.monotonic() - start < 2, "the refusal took over two seconds")
    check_equal(len(done.stderr.strip().splitlines()), 1, "lines of the refusal")


@test
def a_second_daemon_is_refused_and_changes_nothing(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, b"\x11" * MIB)
    uri = daemon.create("v", cache, origin)
    connect(uri).pwrite(b"\x22" * 4096, 0)
    same_state = Daemon(box, name="second")
    same_state.state = daemon.state
    refused(box, same_state)
    same_socket = Daemon(box, name="third")
    same_socket.socket = daemon.socket
    refused(box, same_socket)
    same_nbd = Daemon(box, name="fourth")
    same_nbd.nbd = daemon.nbd
    refused(box, same_nbd)
    check_equal(bytes(connect(uri).pread(4096, 0)), b"\x22" * 4096, "the data of the first")
    check_equal(daemon.show("v")["state"], "running", "the state of the first")


@test
def devices_of_another_daemon_are_refused_by_any_name(box):
    first = box.daemon(name="one")
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    first.create("v", cache, origin)
    second = box.daemon(name="two")
    spare, other = box.file("spare", 64 * MIB), box.file("other", 16 * MIB)
    os.symlink(cache, box.path("cache-link"))
    os.link(origin, box.path("origin-link"))
    before = digest(spare, other)
    for bad_cache, bad_origin in (
        (cache, other),
        (box.path("cache-link"), other),
        (spare, origin),
        (spare, box.path("origin-link")),
    ):
        start = time.monotonic()
        second.create("w", bad_cache, bad_origin, "--force", expect=3)
        check(time.monotonic() - start < 2, "the refusal took over two seconds")
    check_equal(second.cli("list").stdout.count("\n"), 1, "lines of an empty list")
    check_equal(digest(spare, other), before, "the devices that were free")
    check_equal(first.show("v")["state"], "running", "the state of the first")


@test
def a_loop_device_over_a_file_in_use_is_refused(box):
    need("losetup")
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    daemon.create("v", cache, origin)
    made = box.run("losetup", "--find", "--show", origin, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    loop = made.stdout.strip()
    box.at_end(box.run, "losetup", "--detach", loop)
    daemon.create("w", box.file("spare", 64 * MIB), loop, expect=3)
    daemon.create("w", loop, box.file("other", 16 * MIB), expect=3)


@test
def a_killed_daemon_blocks_nobody(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    for _ in range(3):
        daemon.kill()
        daemon.start()
        check_equal(daemon.show("v")["state"], "running", "the state after a kill")


main()
