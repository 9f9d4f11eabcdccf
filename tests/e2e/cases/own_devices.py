"""A daemon does not wait for itself, and no lane waits for a file server."""

import os
import pathlib
import signal
import time

from harness import *
from harness.devices import backing, exported


@test
def the_device_of_a_volume_is_no_device_of_another(box):
    daemon, device = exported(box, "low", size=64 * MIB)
    spare = box.file("spare", 64 * MIB)
    link = "/dev/forebay/low"
    names = [device] + ([link] if os.path.realpath(link) == device else [])
    for name in names:
        for cache, origin in ((spare, name), (name, spare)):
            done = daemon.create_run("high", cache, origin, "--force", expect=3)
            check("is volume 'low' of this daemon" in done.stderr, done.stderr)
    for origin in (backing(device), f"nbd+unix:///low?socket={daemon.nbd}"):
        done = daemon.create_run("high", spare, origin, "--force", expect=3)
        check("is volume 'low' of this daemon" in done.stderr, done.stderr)
    # Another daemon may have it.
    other = box.daemon(name="other")
    client = connect(other.create("high", spare, device))
    client.pwrite(b"x" * 4096, 0)
    other.cli("flush", "high")
    check_equal(other.terminate()[0], 0, "the exit code of the other daemon")
    check_equal(pathlib.Path(device).open("rb").read(4096), b"x" * 4096, "data")


@test
def a_file_server_that_does_not_answer_holds_no_lane(box):
    need("nbdfuse", "nbdkit")
    if not os.path.exists("/dev/fuse"):
        skip("there is no /dev/fuse")
    served = box.file("served", 0)
    server = box.spawn("nbdfuse", served, "[", "nbdkit", "memory", "32M", "]")
    box.at_end(box.run, "umount", "-l", served)
    box.at_end(server.send_signal, signal.SIGCONT)
    if not attempt_mount(served, server):
        skip("nbdfuse cannot mount here")
    daemon, cache = box.daemon("--lanes", "1"), box.file("cache", 64 * MIB)
    daemon.create("slow", cache, served, "--set", "idle=0")
    client = connect(daemon.create("fast", cache, box.file("origin", 16 * MIB)))
    server.send_signal(signal.SIGSTOP)
    stopping = box.spawn(daemon.binary, "--socket", daemon.socket, "stop", "slow")
    for number in range(40):
        client.pwrite(bytes([number]) * 4096, number * 4096)
        client.flush()
        check_equal(bytes(client.pread(4096, number * 4096)), bytes([number]) * 4096, "data")
        check_equal(len(daemon.cli("list", patience=30).stdout.splitlines()), 3, "lines of list")
        time.sleep(0.05)
    check(stopping.poll() is None, "the stop of the other volume has not waited")
    server.send_signal(signal.SIGCONT)
    check_equal(stopping.wait(60), 0, "the exit code of the stop")
    daemon.cli("start", "slow")


def attempt_mount(path, server):
    try:
        wait_for(lambda: os.stat(path).st_size == 32 * MIB or server.poll() is not None, "nbdfuse", 10)
    except Failure:
        return False
    return server.poll() is None


main()
