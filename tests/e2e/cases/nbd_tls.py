"""NBD by TCP with TLS: real clients, and those that want to go round it."""

import contextlib
import filecmp
import json
import os
import random
import shutil
import socket
import ssl
import struct
import time

from harness import *
from harness.wire import *

SIZE = 64 * MIB
TLS_REQUIRED, INVALID = 0x80000005, 0x80000003


class Authority:
    """Signs certificates. Its directory has the names that libnbd and qemu look for."""

    def __init__(self, box, name):
        need("openssl")
        self.box, self.dir = box, box.path(name)
        os.mkdir(self.dir)
        self.certificate = f"{self.dir}/ca-cert.pem"
        self.openssl(
            "req", "-x509", *self.new_key("ca"), "-out", self.certificate, "-subj", f"/CN={name}", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
        for role, use in (("server", "serverAuth"), ("client", "clientAuth")):
            self.sign(role, use)

    def openssl(self, *arguments):
        self.box.run("openssl", *arguments)

    def new_key(self, name):
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        return (*curve, "-nodes", "-keyout", f"{self.dir}/{name}-key.pem")

    def sign(self, role, use):
        """Makes a key and a certificate."""
        extensions, request = f"{self.dir}/extensions", f"{self.dir}/request"
        with open(extensions, "w") as file:
            file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n")
            file.write(f"keyUsage=critical,digitalSignature\nextendedKeyUsage={use}\n")
        self.openssl("req", *self.new_key(role), "-out", request, "-subj", f"/CN={role}")
        self.openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", f"{self.dir}/ca-key.pem",
            "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", f"{self.dir}/{role}-cert.pem",
        )  # fmt: skip

    def options(self, *more):
        """Options of the daemon."""
        pair = ("--nbd-tls-cert", f"{self.dir}/server-cert.pem", "--nbd-tls-key", f"{self.dir}/server-key.pem")
        return (*pair, *more)

    def without_client(self):
        """A directory that trusts this authority, without a certificate for the client."""
        path = f"{self.dir}-trust"
        os.makedirs(path, exist_ok=True)
        shutil.copy(self.certificate, path)
        return path

    def context(self, client=True):
        """Settings of a client in Python."""
        context = ssl.create_default_context(cafile=self.certificate)
        if client:
            context.load_cert_chain(f"{self.dir}/client-cert.pem", f"{self.dir}/client-key.pem")
        return context


class Secured:
    """A daemon whose TCP address insists on TLS."""

    def __init__(self, box, *options):
        self.box, self.port = box, free_port()
        self.address = ("127.0.0.1", self.port)
        self.daemon = Daemon(box)
        self.daemon.start("--nbd", f"127.0.0.1:{self.port}", *options)
        self.daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE), "--set", "nbd=all")

    def uri(self, directory):
        """The URI with the directory of the client's certificates."""
        return f"nbds://localhost:{self.port}/v?tls-certificates={directory}"

    def wire(self):
        """A connection after the greeting."""
        wire = Wire(self.address)
        wire.greet()
        return wire

    def check(self):
        """Whether others are served as before."""
        self.daemon.check_alive()
        with opened(self.daemon.nbd, "v")[0] as wire:
            check_equal(wire.ask(READ, 0, 4096)[0], 0, "a read by the unix socket")


@test
def nothing_is_told_without_tls(box):
    authority = Authority(box, "authority")
    secured = Secured(box, *authority.options())
    wire = secured.wire()
    name = struct.pack(">I", 1) + b"v"
    for option, data in (
        (LIST, b""), (INFO, name + b"\0\0"), (GO, name + b"\0\0"), (GO, b"x"), (STRUCTURED_REPLY, b""),
        (EXTENDED_HEADERS, b""), (LIST_META_CONTEXT, name + bytes(4)), (4711, b"what"), (LIST, bytes(40000)),
    ):  # fmt: skip
        wire.send_option(option, data)
        check_equal(wire.option_reply()[:2], (option, TLS_REQUIRED), "the reply before TLS")
    wire.send_option(STARTTLS, b"data")
    check_equal(wire.option_reply()[:2], (STARTTLS, INVALID), "the reply to STARTTLS with data")
    wire.start_tls(authority.context(client=False))
    wire.send_option(STARTTLS)
    check_equal(wire.option_reply()[:2], (STARTTLS, INVALID), "the reply to a second STARTTLS")
    check_equal(wire.go("v"), SIZE, "the size")
    data = random_bytes("data", 32 * MIB)
    for length in (512, 20000 // 512 * 512, 32 * MIB):
        check_equal(wire.ask(WRITE, 4096, length, data[:length])[0], 0, f"a write of {length} bytes")
        check_equal(wire.ask(READ, 4096, length), (0, data[:length]), f"a read of {length} bytes")
    wire = secured.wire()
    wire.send_option(EXPORT_NAME, b"v")
    check(wire.is_closed(), "EXPORT_NAME was taken without TLS")
    wire = secured.wire()
    wire.send_option(ABORT)
    check_equal(wire.option_reply()[:2], (ABORT, 1), "the reply to ABORT")
    # The unix socket has no TLS, and says so.
    wire = Wire(secured.daemon.nbd)
    wire.greet()
    wire.send_option(STARTTLS)
    check_equal(wire.option_reply()[:2], (STARTTLS, 0x80000001), "the reply of the unix socket")
    check_equal(wire.go("v"), SIZE, "the size by the unix socket")


@test
def a_volume_that_takes_local_clients_only_is_not_found_by_tls(box):
    authority = Authority(box, "authority")
    secured = Secured(box, *authority.options("--nbd-tls-client-ca", authority.certificate))
    secured.daemon.create("local", box.path("cache"), box.file("other", SIZE))
    with secured.wire() as wire:
        wire.start_tls(authority.context())
        wire.send_option(LIST)
        check_equal((wire.option_reply()[2][4:], wire.option_reply()[1]), (b"v", 1), "the volumes that are listed")
        wire.send_option(GO, struct.pack(">I", 5) + b"local" + bytes(2))
        check_equal(wire.option_reply()[:2], (GO, 0x80000006), "the answer about a local volume")
        check_equal(wire.go("v"), SIZE, "the size of the other one")
    opened(secured.daemon.nbd, "local")[0].close()


@test
def real_clients_use_it(box):
    need("nbdinfo", "nbdcopy", "qemu-img")
    authority, stranger = Authority(box, "authority"), Authority(box, "stranger")
    secured = Secured(box, *authority.options())
    trusting = authority.without_client()
    info = box.run("nbdinfo", "--json", secured.uri(trusting), expect=None)
    if "tls" in info.stderr.lower() and "support" in info.stderr.lower():
        skip(f"this libnbd has no TLS: {info.stderr}")
    info = json.loads(box.run("nbdinfo", "--json", secured.uri(trusting)).stdout)
    check_equal((info["TLS"], info["exports"][0]["export-size"]), (True, SIZE), "what nbdinfo sees")
    image = box.file("image", SIZE, random_bytes("image", 40 * MIB))
    box.run("nbdcopy", "--flush", image, secured.uri(trusting))
    box.run("nbdcopy", secured.uri(trusting), box.path("back"))
    check(filecmp.cmp(image, box.path("back"), shallow=False), "the copy differs")
    credentials = f"tls-creds-x509,id=tls,endpoint=client,dir={trusting}"
    target = f"driver=nbd,host=localhost,port={secured.port},export=v,tls-creds=tls"
    box.run("qemu-img", "compare", "--object", credentials, "--image-opts", f"driver=raw,file.filename={image}", target)
    other = box.file("other", SIZE, random_bytes("other", SIZE))
    box.run("qemu-img", "convert", "--object", credentials, "-n", "-W", "-f", "raw", "--target-image-opts", other, target)
    box.run("nbdcopy", secured.uri(trusting), box.path("back"))
    check(filecmp.cmp(other, box.path("back"), shallow=False), "what qemu-img wrote differs")
    for wrong in (f"nbd://localhost:{secured.port}/v", secured.uri(stranger.without_client())):
        check(box.run("nbdinfo", wrong, expect=None).returncode != 0, f"{wrong} was served")
    secured.check()


@test
def clients_need_a_certificate_if_there_is_an_authority_for_them(box):
    need("nbdinfo")
    authority, stranger = Authority(box, "authority"), Authority(box, "stranger")
    secured = Secured(box, *authority.options("--nbd-tls-client-ca", authority.certificate))
    box.run("nbdinfo", secured.uri(authority.dir))
    without = authority.without_client()
    # Trusts the right server, and has a certificate of somebody else.
    forged = box.path("forged")
    shutil.copytree(stranger.dir, forged)
    shutil.copy(authority.certificate, forged)
    for directory in (without, forged):
        check(box.run("nbdinfo", secured.uri(directory), expect=None).returncode != 0, f"{directory} was served")
    log = secured.daemon.log()
    check("authentication" not in log, f"the log warns about clients that are checked: {log}")
    secured.check()


@test
def tls_that_is_cut_or_nonsense_hurts_nobody(box):
    authority = Authority(box, "authority")
    secured = Secured(box, *authority.options())
    numbers = random.Random(11)
    option = b"IHAVEOPT" + struct.pack(">II", STARTTLS, 0)
    for round in range(60):
        with contextlib.suppress(OSError, EOFError, Failure):
            wire = secured.wire()
            wire.socket.settimeout(1)
            if round % 3 == 0:
                # A client that is fooled into sending an option in plaintext behind STARTTLS.
                wire.send(option + b"IHAVEOPT" + struct.pack(">II", LIST, 0))
                check_equal(wire.option_reply()[:2], (STARTTLS, 1), "the reply to STARTTLS")
                rest = wire.receive(20)
                raise AssertionError(f"something came in plaintext: {rest!r}")
            if round % 3 == 1:
                wire.send(option + numbers.randbytes(numbers.randrange(70000)))
            else:
                wire.start_tls(authority.context())
                wire.go("v")
                wire.request(WRITE, 0, MIB, b"\x01" * numbers.randrange(MIB))
                # Below TLS.
                raw = socket.socket(fileno=os.dup(wire.socket.fileno()))
                raw.sendall(numbers.randbytes(100))
                raw.close()
        wire.close()
    idle = [secured.wire() for _ in range(60)]
    for number, wire in enumerate(idle):
        wire.send(option + b"\x16\x03\x01\x40\x00"[: number % 6] * (number % 6))
    secured.check()
    for wire in idle:
        wire.close()
    wire = secured.wire()
    wire.start_tls(authority.context())
    check_equal(wire.go("v"), SIZE, "the size after all that")
    secured.check()


@test
def a_renewed_certificate_is_used_without_a_restart(box):
    authority = Authority(box, "authority")
    secured = Secured(box, *authority.options())
    context = authority.context()

    def serial():
        """The number of the certificate that a new client sees, once files are looked at again."""
        time.sleep(1.1)
        with secured.wire() as wire:
            wire.start_tls(context)
            check_equal(wire.go("v"), SIZE, "the size")
            return wire.socket.getpeercert()["serialNumber"]

    first = serial()
    check_equal(serial(), first, "the certificate that was not replaced")
    with secured.wire() as lasting:
        lasting.start_tls(context)
        lasting.go("v")
        old = {name: open(f"{authority.dir}/server-{name}.pem").read() for name in ("cert", "key")}
        authority.sign("server", "serverAuth")
        new = open(f"{authority.dir}/server-cert.pem").read()
        # Only the key is new: the pair in use goes on.
        with open(f"{authority.dir}/server-cert.pem", "w") as file:
            file.write(old["cert"])
        check_equal(serial(), first, "the certificate while only the key is new")
        check_equal(serial(), first, "the certificate while only the key is new")
        lines = [line for line in secured.daemon.log().splitlines() if "former certificate" in line]
        check_equal(len(lines), 1, "lines about files that do not fit together")
        with open(f"{authority.dir}/server-cert.pem", "w") as file:
            file.write(new)
        check(serial() != first, "the new certificate is not used")
        check_equal(lasting.ask(READ, 0, 4096), (0, bytes(4096)), "a read of a client from before")


@test
def files_that_are_no_use_end_the_start(box):
    authority, stranger = Authority(box, "authority"), Authority(box, "stranger")
    daemon = Daemon(box)
    tcp = ("--nbd", f"127.0.0.1:{free_port()}")
    own, key = authority.options()[1], authority.options()[3]
    for arguments, reason in (
        ((*tcp, "--nbd-tls-cert", own), "--nbd-tls-key"),
        ((*tcp, "--nbd-tls-client-ca", own), "--nbd-tls-cert"),
        (authority.options(), "--nbd HOST:PORT"),
        ((*tcp, "--nbd-tls-cert", own, "--nbd-tls-key", box.path("nothing")), "cannot read"),
        ((*tcp, "--nbd-tls-cert", key, "--nbd-tls-key", key), "no certificate"),
        ((*tcp, "--nbd-tls-cert", own, "--nbd-tls-key", own), "no private key"),
        ((*tcp, "--nbd-tls-cert", own, "--nbd-tls-key", f"{stranger.dir}/server-key.pem"), "cannot be used with"),
        ((*tcp, *authority.options("--nbd-tls-client-ca", key)), "no certificate"),
    ):
        done = box.run(*daemon.command(*arguments), expect=2)
        check(reason in done.stderr, f"{arguments}: {done.stderr}")


main()
