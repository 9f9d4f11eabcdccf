"""Paths of sockets and links to devices that something else removes: a job that cleans up, `rm -r`, another daemon."""

import os
import shutil
import signal
import socket

from harness import *
from harness.devices import exported
from harness.vhost_user import Driver

AGAIN = "the path of the socket was removed, and is made again"


def answers(daemon):
    return daemon.cli("list", expect=None, patience=10).returncode == 0


def served(daemon, byte=b"x"):
    """Whether a new client reaches the volume."""
    try:
        client = connect(f"nbd+unix:///v?socket={daemon.nbd}")
    except Exception:
        return False
    return bytes(client.pread(4096, 0)) == byte * 4096


@test
def sockets_whose_paths_were_removed_are_there_again(box):
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB), "--export", "vhost-user")
    client = connect(f"nbd+unix:///v?socket={daemon.nbd}")
    client.pwrite(b"x" * 4096, 0)
    machine = uri.removeprefix("vhost-user:")
    guest = Driver(machine)
    modes = {path: os.stat(path).st_mode for path in (daemon.socket, daemon.nbd, machine)}
    for _ in range(2):
        for path in modes:
            os.unlink(path)
        wait_for(lambda: answers(daemon), "the admin socket")
        wait_for(lambda: served(daemon), "the socket of NBD")
        wait_for(lambda: os.path.exists(machine), "the socket of the virtual machine")
        # Those that were connected notice nothing.
        check_equal(bytes(client.pread(4096, 0)), b"x" * 4096, "data")
        check_equal({path: os.stat(path).st_mode for path in modes}, modes, "permissions")
    guest.close()
    guest = Driver(machine)
    check_equal(bytes(guest.read(0, 4096))[:4096], b"x" * 4096, "data of the virtual machine")
    guest.close()
    for path in modes:
        lines = [line for line in daemon.log().splitlines() if AGAIN in line and f"path={path}" in line]
        check_equal(len(lines), 2, f"lines in the log about {path}")
    daemon.cli("delete", "--force", "v")
    check_equal(daemon.terminate()[0], 0, "the exit code")
    check(not any(map(os.path.exists, modes)), "a path is left")


@test
def a_directory_that_was_removed_is_there_again_and_its_lock_too(box):
    os.makedirs(box.path("run"), mode=0o755)
    daemon = Daemon(box)
    daemon.socket, daemon.nbd = box.path("run/admin.sock"), box.path("run/nbd.sock")
    daemon.start()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, b"x" * 4096))
    mode = os.stat(box.path("run")).st_mode
    shutil.rmtree(box.path("run"))
    wait_for(lambda: answers(daemon) and served(daemon), "the sockets")
    check_equal(os.stat(box.path("run")).st_mode, mode, "permissions of the directory")
    # The next program of this process goes on with the new ones, and makes them again as well.
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: daemon.log().count("ready, ") == 2, "the hand-over")
    check(served(daemon), "it is served after the hand-over")
    shutil.rmtree(box.path("run"))
    wait_for(lambda: answers(daemon) and served(daemon), "the sockets after the hand-over")
    other = Daemon(box, "other")
    other.socket = daemon.socket
    other.launch()
    check_equal(other.process.wait(60), 3, "a second daemon at the same socket")
    check(answers(daemon), "the first one")


@test
def a_link_that_was_removed_is_there_again(box):
    daemon, device = exported(box, "lost-link")
    link = "/dev/forebay/lost-link"
    if not os.path.islink(link):
        skip("no links to devices here")
    os.unlink(link)
    wait_for(lambda: os.path.realpath(link) == device, "the link")
    check_equal(daemon.log().count("the link to a device was removed, and is made again"), 1, "lines in the log")
    daemon.cli("delete", "--force", "lost-link")
    check(not os.path.lexists(link), "the link of a volume that was deleted")


@test
def a_path_that_another_process_has_taken_stays_with_it(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB, b"x" * 4096))
    taken = []
    for path in (daemon.socket, daemon.nbd):
        os.unlink(path)
        # Faster than the daemon, which looks once a second, or else again.
        while True:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(path)
                break
            except OSError:
                os.unlink(path)
        listener.listen(8)
        taken.append((path, listener, os.stat(path).st_ino))
    said = "no client reaches the socket: its path was removed, and another process listens at"
    wait_for(lambda: daemon.log().count(said) == 2, "the log says so of both")
    for path, _, inode in taken:
        check_equal(os.stat(path).st_ino, inode, f"the socket at {path}")
    wait_for(lambda: daemon.process.poll() is None, "the daemon")
    check_equal(daemon.log().count(said), 2, "lines about it")
    for path, listener, _ in taken:
        listener.close()
        os.unlink(path)
        with open(path, "w") as file:
            file.write("precious")
    wait_for(lambda: daemon.log().count("exists and is not a socket of this user") >= 2, "the log says so of the files")
    for path, _, _ in taken:
        with open(path) as file:
            check_equal(file.read(), "precious", path)
        os.unlink(path)
    wait_for(lambda: answers(daemon) and served(daemon), "the sockets")


main()
