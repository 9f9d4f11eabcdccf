"""A daemon of a test, and the verbs that talk to it."""

import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

from .cases import Failure, check
from .sandbox import environment

# How long a daemon may take to serve small volumes again, and to end. The promise is seconds.
PATIENCE = 60


class Daemon:
    """One `forebay daemon` with a state directory and sockets in the sandbox."""

    # What every daemon of a case is started with.
    options = []

    def __init__(self, box, name="d", keeps=0, within=()):
        self.box = box
        # Descriptors that a service manager keeps for it, by their names, and how many it would keep.
        self.kept, self.keeps = [], keeps
        self.binary = os.environ["FOREBAY"]
        self.socket = box.path(f"{name}.sock")
        self.nbd = box.path(f"{name}-nbd.sock")
        self.state = box.path(f"{name}-state")
        self.log_path = box.path(f"{name}.log")
        # Words in front of its command line, for another network for example.
        self.within = list(within)
        self.process = None
        self.notify = None
        box.daemons.append(self)

    def command(self, *arguments):
        """The command line of this daemon."""
        return [
            *self.within, self.binary, "--socket", self.socket, "daemon", "--state-dir", self.state,
            "--nbd", self.nbd, *self.options, *arguments,
        ]  # fmt: skip

    def start(self, *arguments):
        """Starts it and waits until it says that everything is served."""
        self.wait_ready(self.launch(*arguments))

    def launch(self, *arguments):
        """Starts it without waiting; gives the socket that will say that it is ready."""
        self.hear_all()
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = self.box.path("notify")
        pathlib.Path(path).unlink(missing_ok=True)
        notify.bind(path)
        # It stays open as long as the daemon: that also says when it stops.
        self.notify = notify
        command, variables, fds = self.command(*arguments), {}, [fd for _, fd in self.kept]
        if self.keeps:
            variables["FDSTORE"] = str(self.keeps)
        if fds:
            # As sd_listen_fds(3) expects them. The shell becomes the daemon.
            variables["LISTEN_FDS"] = str(len(fds))
            variables["LISTEN_FDNAMES"] = ":".join(name for name, _ in self.kept)
            moves = " ".join(f"{number}<&{fd}-" for number, fd in enumerate(fds, 3))
            command = ["bash", "-c", f'exec {moves}; LISTEN_PID=$$ exec "$@"', "bash", *command]
        with open(self.log_path, "ab") as log:
            self.process = self.box.spawn(
                *command, stdout=log, stderr=log, pass_fds=fds,
                env=environment(NOTIFY_SOCKET=path, **variables),
            )  # fmt: skip
        return notify

    def hear(self):
        """Takes one message to the service manager; gives its lines."""
        message, fds, _, _ = socket.recv_fds(self.notify, 4096, 8)
        lines = message.decode().splitlines()
        names = [line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")]
        if "FDSTORE=1" in lines:
            # Away from the numbers that the next daemon finds them at.
            self.kept += [(name, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)) for name, fd in zip(names, fds)]
        if "FDSTOREREMOVE=1" in lines:
            for name, fd in [entry for entry in self.kept if entry[0] in names]:
                os.close(fd)
                self.kept.remove((name, fd))
        for fd in fds:
            os.close(fd)
        return lines

    def hear_all(self):
        """Takes every message that is there."""
        if self.notify is None:
            return
        self.notify.setblocking(False)
        try:
            while True:
                self.hear()
        except BlockingIOError:
            pass

    def let_go(self):
        """Closes what is kept, as a service manager does when the service is stopped for good."""
        self.hear_all()
        for _, fd in self.kept:
            os.close(fd)
        self.kept = []

    def wait_ready(self, notify):
        """Waits for the message that a service manager waits for."""
        notify.settimeout(0.05)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if "READY=1" in self.hear():
                    return
            except TimeoutError:
                if self.process.poll() is not None:
                    code = self.process.returncode
                    raise Failure(f"the daemon ended with {code}: {self.last_line()}") from None
        raise Failure(f"the daemon was not ready after {PATIENCE} s: {self.last_line()}")

    def log(self):
        """Everything that it has written."""
        self.wait_log()
        try:
            return pathlib.Path(self.log_path).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def wait_log(self):
        """Waits a moment until the thread that writes the log has nothing to do."""
        end = time.monotonic() + 1
        while self.process and self.is_alive() and time.monotonic() < end:
            for task in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*"):
                try:
                    if (task / "comm").read_text().strip() == "log" and "futex" not in (task / "wchan").read_text():
                        break
                except OSError:
                    pass
            else:
                return
            time.sleep(0.002)

    def describe(self):
        """What each thread does in the kernel, and what the daemon says of its volumes."""
        lines = []
        for task in sorted(pathlib.Path(f"/proc/{self.process.pid}/task").glob("*")):
            try:
                name, waits = ((task / file).read_text().strip() for file in ("comm", "wchan"))
                stat = (task / "stat").read_text().rpartition(")")[2].split()
                lines.append(f"thread {name}: state {stat[0]}, in {waits}, ticks {stat[11]} and {stat[12]}")
            except OSError as error:
                lines.append(f"thread {task.name}: {error}")
        try:
            listed = json.loads(self.cli("list", "--json", patience=10).stdout)
            for volume in listed["volumes"]:
                done = self.cli("show", volume["name"], "--json", expect=None, patience=10)
                lines.append(" ".join((done.stdout or done.stderr).split()))
        except (Failure, ValueError) as error:
            lines.append(f"it does not say anything of its volumes: {error}")
        return lines

    def last_line(self):
        return (self.log().strip().splitlines() or [""])[-1]

    def is_alive(self):
        """Whether it still runs."""
        return self.process.poll() is None

    def resident(self):
        """Its memory, in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    def processor(self):
        """The CPU time that it has used, in seconds."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check_alive(self):
        """Fails if it has ended."""
        check(self.is_alive(), f"the daemon ended with {self.process.poll()}: {self.last_line()}")

    def kill(self):
        """Ends it as a crash would."""
        self.check_alive()
        self.process.kill()
        self.process.wait()

    def terminate(self):
        """Ends it in order; returns the exit code and the seconds that it took."""
        self.check_alive()
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"the daemon had not ended {PATIENCE} s after SIGTERM") from None
        return code, time.monotonic() - start

    def restart(self, *arguments):
        """Ends it in order and starts it again."""
        code, _ = self.terminate()
        check(code == 0, f"the daemon ended with {code}: {self.last_line()}")
        self.start(*arguments)

    def cli(self, *arguments, expect=0, **options):
        """Runs a verb; fails unless it ends with the code that is expected."""
        command = [self.binary, "--socket", self.socket, *arguments]
        return self.box.run(*command, expect=expect, env=environment(), **options)

    def create(self, name, cache, origin, *arguments, expect=0):
        """Makes a volume; returns its URI."""
        return self.create_run(name, cache, origin, *arguments, expect=expect).stdout.strip()

    def create_run(self, name, cache, origin, *arguments, expect=0):
        """Makes a volume, or tries to; returns all that the verb said."""
        return self.cli("create", name, "--cache", cache, "--origin", origin, *arguments, expect=expect)

    def show(self, name):
        """Everything about a volume."""
        return json.loads(self.cli("show", name, "--json").stdout)

    def uri(self, name):
        """The URI of a volume."""
        uri = self.show(name)["export"]["nbd"]
        check(uri, f"volume {name} is not served: {self.show(name)['state']}")
        return uri

    def dirty(self, name):
        """How many blocks are dirty."""
        return self.show(name)["blocks"]["dirty"]
