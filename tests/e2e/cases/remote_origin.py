"""Origins on NBD servers: volumes that work, servers that fail, hang, end and come back."""

import os
import shutil
import threading
import time

from harness import *

SIZE = 32 * MIB


class Server:
    """An NBD server of somebody else on a unix socket."""

    def __init__(self, box, *command, name="server", export=""):
        need(command[0])
        self.box, self.command, self.socket = box, command, box.path(f"{name}.sock")
        self.uri = f"nbd+unix:///{export}?socket={self.socket}"
        self.log = open(box.path(f"{name}.log"), "ab")
        self.process = None

    def start(self, *command):
        """Starts it, and waits until it listens."""
        self.command = command or self.command
        words = [self.socket if word == "SOCKET" else word for word in self.command]
        self.process = self.box.spawn(*words, stdout=self.log, stderr=self.log)
        wait_for(lambda: os.path.exists(self.socket), "the server listens")
        return self

    def kill(self):
        """Ends it as a crash would."""
        self.box.stop(self.process)
        if os.path.exists(self.socket):
            os.remove(self.socket)

    def limits(self, **seconds):
        """The URI with time limits."""
        return self.uri + "".join(f"&{name}={value}" for name, value in seconds.items())


def nbdkit(*arguments):
    """The command line of nbdkit; further words are those of the plug-in."""
    return ("nbdkit", "--foreground", "--exit-with-parent", "--threads=4", "--unix", "SOCKET", *arguments)


def qemu_nbd(path, *arguments):
    return ("qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--socket", "SOCKET", *arguments, path)


def settle(daemon, name="v"):
    """Writes everything back."""
    daemon.cli("flush", name)
    check_equal(daemon.dirty(name), 0, "dirty blocks")


def works(box, server):
    """A volume on this server keeps what is written, and writes it back."""
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + ",size=64M", server.uri))
    content = random_bytes("first", 2 * MIB)
    client.pwrite(content, 3 * MIB)
    client.pwrite(b"x" * 512, 5 * MIB - 512)
    client.flush()
    settle(daemon)
    expected = content[:-512] + b"x" * 512
    check_equal(connect(server.uri).pread(2 * MIB, 3 * MIB) == expected, True, "the origin has it")
    check_equal(client.pread(2 * MIB, 3 * MIB) == expected, True, "the volume has it")
    client.zero(MIB, 3 * MIB)
    client.trim(MIB // 2, 4 * MIB)
    client.flush()
    settle(daemon)
    check_equal(connect(server.uri).pread(MIB, 3 * MIB), bytes(MIB), "zeroes on the origin")
    return daemon, client


@test
def a_volume_on_nbdkit_works_and_survives_a_restart(box):
    server = Server(box, *nbdkit("memory", "32M")).start()
    daemon, client = works(box, server)
    client.pwrite(b"k" * 8192, 0)
    client.flush()
    client.shutdown()
    daemon.kill()
    daemon.start()
    check_equal(connect(daemon.uri("v")).pread(8192, 0), b"k" * 8192, "after a crash of the daemon")
    settle(daemon)
    check_equal(connect(server.uri).pread(8192, 0), b"k" * 8192, "written back after it")


@test
def a_volume_on_qemu_nbd_works_on_one_connection_and_on_several(box):
    for count, shared in ((0, "--shared=1"), (1, "--shared=8")):
        path = box.file(f"disk{count}", SIZE)
        server = Server(box, *qemu_nbd(path, shared), name=f"q{count}").start()
        daemon = box.daemon("--lanes", "3", name=f"d{count}")
        uri = daemon.create("v", box.path(f"cache{count}") + ",size=64M", server.uri, "--set", "mode=passthrough")
        clients = [connect(uri) for _ in range(6)]
        for number, client in enumerate(clients):
            client.pwrite(bytes([number + 1]) * MIB, number * MIB)
        for number, client in enumerate(reversed(clients)):
            check_equal(client.pread(MIB, number * MIB), bytes([number + 1]) * MIB, f"MiB {number}")
        clients[0].flush()
        for client in clients:
            client.shutdown()
        daemon.terminate()


main()
