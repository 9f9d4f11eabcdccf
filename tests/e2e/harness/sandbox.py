"""A directory of a test, with the processes that run in it."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# After which a tool has hung. Nothing here should take a tenth of it.
PATIENCE = 180


def digest(*paths):
    """A hash over the whole content of files, to prove that nothing touched them."""
    total = hashlib.blake2b()
    for path in paths:
        with open(path, "rb") as file:
            while part := file.read(4 * MIB):
                total.update(part)
    return total.hexdigest()


class Sandbox:
    """Removes itself, and what runs in it, at the end."""

    def __init__(self, directory):
        # A name as short as can be: paths of sockets have at most 107 bytes.
        self.dir = pathlib.Path(directory)
        self.stack = contextlib.ExitStack()
        self.daemons = []
        self.logs = []

    def __enter__(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        self.stack.close()

    def keep_logs(self):
        """Remembers the end of every daemon's log, for the report."""
        for daemon in self.daemons:
            self.logs.extend(daemon.log().splitlines()[-15:])

    def keep_states(self):
        """Remembers what the daemons do at the moment, for the report on something that hangs."""
        for daemon in self.daemons:
            self.logs.extend(daemon.describe())

    def check_logs(self):
        """Fails if anything in a daemon has panicked, even if nobody has noticed."""
        from .cases import Failure

        for daemon in self.daemons:
            for line in daemon.log().splitlines():
                if "panicked" in line:
                    raise Failure(f"the daemon's log says: {line}")

    def at_end(self, function, *arguments):
        """Has something done when the test is over, however it ends; the last one first."""

        def quietly():
            with contextlib.suppress(Exception):
                function(*arguments)

        self.stack.callback(quietly)

    def path(self, name):
        """A path in the directory."""
        return str(self.dir / name)

    def file(self, name, size, content=b""):
        """A sparse file that begins with the content."""
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(content)
            file.truncate(size)
        return path

    def daemon(self, *arguments, **options):
        """A daemon that serves; it ends with the test."""
        from .daemon import Daemon

        daemon = Daemon(self, **options)
        daemon.start(*arguments)
        return daemon

    def spawn(self, *command, **options):
        """Starts a process that ends with the test."""
        options.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen([str(part) for part in command], **options)
        self.at_end(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        """Ends a process for good."""
        if process.poll() is None:
            process.kill()
        process.wait()

    def run(self, *command, expect=0, patience=PATIENCE, **options):
        """Runs a tool to its end; fails unless it ends with the code that is expected."""
        from .cases import Failure

        options.setdefault("stdin", subprocess.DEVNULL)
        command = [str(part) if not isinstance(part, bytes) else part for part in command]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=patience, **options
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"{command} was not done after {patience} s") from None
        if expect is not None and done.returncode != expect:
            said = (done.stderr or done.stdout).strip()[-600:]
            raise Failure(f"{command} ended with {done.returncode}, not {expect}: {said}")
        return done

    def fio(self, uri, *arguments, expect=0, size="64m"):
        """Runs fio on a volume."""
        return self.run(
            "fio", "--name=job", "--ioengine=nbd", f"--uri={uri}", "--direct=1", "--bs=4k",
            f"--size={size}", "--iodepth=16", "--randseed=7", "--output-format=terse",
            *arguments, expect=expect, cwd=self.dir,
        )  # fmt: skip

    def self_signed(self, key="key.pem", certificate="cert.pem", kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
        """A key of a kind, as openssl's -newkey has it, and its certificate for localhost; returns both paths."""
        from .cases import need

        need("openssl")
        key, certificate = self.path(key), self.path(certificate)
        self.run(
            "openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        )  # fmt: skip
        return key, certificate

    def start_fio(self, uri, *arguments, size="64m"):
        """Starts fio on a volume and returns the process; its output is in fio.log."""
        with open(self.path("fio.log"), "ab") as log:
            return self.spawn(
                "fio", "--name=load", "--ioengine=nbd", f"--uri={uri}", "--direct=1", "--bs=4k",
                f"--size={size}", "--iodepth=16", "--randseed=11", "--output-format=terse",
                *arguments, stdout=log, stderr=log, cwd=self.dir,
            )  # fmt: skip


def environment(**more):
    """The environment of a daemon or of a verb: nothing of the caller's that matters to them."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY")}
    kept.pop("RUST_LOG", None)
    kept.update(more)
    return kept
