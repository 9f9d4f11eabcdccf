"""Output that cannot be written, and names that are not text: an exit code that means something, and one line."""

import contextlib
import json
import os

from harness import *
from harness.http_unix import UnixConnection

BINARY = os.environ["FOREBAY"]
# What they write to stdout does not depend on the moment.
VERBS = (
    ["help"], ["help", "create"], ["--version"], ["completions", "bash"], ["man"], ["profiles"], ["hand-over-version"], ["doctor"],
    ["doctor", "--json"], ["list"], ["list", "--json"], ["list", "--names"], ["show", "v"], ["show", "v", "--json"], ["events"],
    ["events", "--json"], ["top", "--once"], ["top", "--once", "--json"], ["memory"], ["pin", "v"], ["set", "--help"],
)  # fmt: skip


def served(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    return daemon


def shell(box, daemon, redirect, words, expect):
    """Runs a verb with its output redirected."""
    command = ["bash", "-c", f'"$@" {redirect}', "bash", BINARY, "--socket", daemon.socket, *words]
    return box.run(*command, expect=expect)


@test
def a_full_disk_for_stdout_is_a_failure(box):
    daemon = served(box)
    for words in VERBS:
        done = shell(box, daemon, ">/dev/full", words, expect=1)
        check("cannot write the output: No space left" in done.stderr, f"{words}: {done.stderr}")


@test
def a_reader_that_leaves_is_none(box):
    daemon = served(box)
    for words in VERBS:
        done = shell(box, daemon, "> >(exec true) ; code=$?; wait; exit $code", words, expect=0)
        check_equal(done.stderr, "", f"{words}: what it says")


@test
def an_error_that_cannot_be_said_keeps_its_code(box):
    daemon = served(box)
    cache, origin = box.file("c", 64 * MIB), box.file("o", 16 * MIB)
    filled = box.file("filled", 64 * MIB, b"not blank")
    for words, code in (
        (["show", "absent"], 2),
        (["list", "--bad"], 2),
        (["create", "w", "--cache", filled, "--origin", origin], 4),
        (["create", "v", "--cache", cache, "--origin", origin], 3),
        (["daemon", "--log", "[["], 2),
        (["daemon", "--state-dir", daemon.state], 3),
    ):
        for redirect in ("2>/dev/full", "2>&-", "2> >(exec true)"):
            shell(box, daemon, redirect, words, expect=code)


@test
def a_daemon_whose_log_is_on_a_full_disk_serves(box):
    daemon = Daemon(box)
    os.symlink("/dev/full", daemon.log_path)
    notify = daemon.launch("--log", "trace")
    daemon.log_path = box.path("unused.log")
    daemon.wait_ready(notify)
    disk = Disk(box, "origin", 64 * MIB)
    client = Client(daemon.create("v", box.file("cache", 64 * MIB), disk.name))
    disk.faults("fail read")
    check(attempt(client.read, 0) is not None, "a read of a disk that fails succeeds")
    disk.faults("")
    check_equal(attempt(client.read, 0), None, "a read after the failure")
    connection = UnixConnection(daemon.socket)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/log")
        log = json.loads(connection.getresponse().read())
    check(log["dropped"] > 0 and log["lines"], f"what the daemon says of its log: {log}")
    check_equal(daemon.terminate()[0], 0, "the exit code")


@test
def a_directory_that_is_not_text_is_named(box):
    daemon = box.daemon()
    directory = os.fsencode(box.path("x")) + b"\xff"
    os.mkdir(directory)
    for name in (b"cache", b"origin"):
        with open(directory + b"/" + name, "wb") as file:
            file.truncate(64 * MIB)
    script = f'cd "$(printf \'%b\' "{box.path("x")}\\\\xff")" && "$@"'
    words = [BINARY, "--socket", daemon.socket, "create", "v"]
    text = ["--cache", box.file("c", 64 * MIB), "--origin", box.file("o", 16 * MIB)]
    for field, devices in (("--cache", ["--cache", "cache", *text[2:]]), ("--origin", [*text[:2], "--origin", "origin"])):
        done = box.run("bash", "-c", script, "bash", *words, *devices, expect=2)
        check(field in done.stderr and "not UTF-8" in done.stderr and "link" in done.stderr, done.stderr)
    # The way out.
    os.symlink(directory, box.path("link"))
    daemon.create("v", box.path("link/cache"), box.path("link/origin"))
    done = box.run("bash", "-c", 'exec "$@" --origin "$(printf \'a\\xff\')"', "bash", *words, "--cache", "c", expect=2)
    check("argument 8 is not UTF-8" in done.stderr, done.stderr)


@test
def a_sparse_file_that_its_filesystem_cannot_hold_is_named(box):
    daemon = box.daemon()
    space = os.statvfs(box.dir)
    size = 2 * space.f_bavail * space.f_frsize
    origin = box.path("origin")
    with open(origin, "wb") as file:
        file.truncate(size)
    done = daemon.create_run("v", box.file("cache", 256 * MIB), origin, "--block-size", "1M")
    check_equal(len(done.stderr.splitlines()), 1, f"lines: {done.stderr}")
    check("origin: sparse" in done.stderr and "fallocate" in done.stderr, done.stderr)
    check("origin: sparse" in daemon.cli("show", "v").stdout, "show does not say so")
    check("origin: sparse" in daemon.cli("doctor").stdout, "doctor does not say so")
    done = daemon.create_run("w", box.file("cache-2", 64 * MIB), box.file("origin-2", 16 * MIB))
    check("origin-2" not in done.stderr or "sparse" not in done.stderr, f"what fits is warned about: {done.stderr}")


main()
