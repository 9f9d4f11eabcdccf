"""A PostgreSQL server of a test, and clients that know which of their commits it has acknowledged."""

import glob
import os
import pwd
import signal
import subprocess
import threading
import time

from .cases import check, check_equal, need

# PostgreSQL refuses to run as root.
USER = "nobody"
TABLE = "CREATE TABLE t(client int, row int, data text, PRIMARY KEY (client, row));"


class Server:
    """A PostgreSQL server with its data in a directory where a volume is mounted."""

    def __init__(self, box, directory, name="pg"):
        # The newest, with its own name for the programs: those in PATH are wrappers.
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
        self.bin = found[-1] if found else ""
        need(*(f"{self.bin}/{tool}" if found else tool for tool in ("initdb", "postgres", "psql", "pg_amcheck")))
        self.box, self.data, self.socket = box, f"{directory}/data", box.path(name)
        self.process = None
        person = pwd.getpwnam(USER)
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": self.socket}
        self.user = {"user": person.pw_uid, "group": person.pw_gid, "extra_groups": [], "env": environment}
        os.makedirs(self.socket, exist_ok=True)
        os.chown(self.socket, person.pw_uid, person.pw_gid)
        # It has to reach the mounted directory; the directory of a test is of root alone.
        for directory in os.environ["E2E_DIR"], box.dir:
            os.chmod(directory, 0o711)

    def initialise(self):
        os.makedirs(self.data, mode=0o700)
        os.chown(self.data, self.user["user"], self.user["group"])
        self.run("initdb", "--pgdata", self.data, "--auth=trust", "--username=test", "--encoding=UTF8", "--locale=C")

    def run(self, program, *arguments, **options):
        return self.box.run(f"{self.bin}/{program}", *arguments, cwd="/", **self.user, **options)

    def start(self):
        """Starts it and waits until it has recovered."""
        settings = [
            "listen_addresses=", f"unix_socket_directories={self.socket}", "restart_after_crash=off",
            # Checkpoints and the log of them go on during the test.
            "checkpoint_timeout=30s", "max_wal_size=32MB", "shared_buffers=16MB", "log_checkpoints=on",
        ]  # fmt: skip
        options = [part for setting in settings for part in ("-c", setting)]
        with open(f"{self.socket}.log", "ab") as log:
            self.process = self.box.spawn(
                f"{self.bin}/postgres", "-D", self.data, *options, stdout=log, stderr=log, cwd="/", **self.user
            )
        self.box.at_end(self.stop, signal.SIGQUIT)
        end = time.monotonic() + 120
        while self.run(*self.psql("SELECT 1;"), expect=None).returncode != 0:
            running = self.process.poll() is None and time.monotonic() < end
            check(running, f"PostgreSQL does not start: {self.log()[-600:]}")
            time.sleep(0.2)

    def stop(self, how=signal.SIGINT):
        """Ends it with everything that it has started: in order, or with SIGQUIT as after a crash."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(120)

    def log(self):
        with open(f"{self.socket}.log", errors="replace") as file:
            return file.read()

    def psql(self, *statements):
        command = [part for statement in statements for part in ("-c", statement)]
        return ["psql", "-qAtX", "-h", self.socket, "-U", "test", "-d", "postgres", "-v", "ON_ERROR_STOP=1", *command]

    def ask(self, *statements):
        return self.run(*self.psql(*statements)).stdout.strip()

    def check_rows(self, inserters):
        """Fails unless the rows of each client are whole up to its last, and the indexes have all of them. Gives the
        number of each client's last row."""
        last = {}
        for inserter in inserters:
            found = self.ask(f"SELECT count(*), coalesce(max(row), 0) FROM t WHERE client = {inserter.number};")
            count, last[inserter] = (int(part) for part in found.split("|"))
            check_equal(count, last[inserter], f"rows of client {inserter.number} up to its last")
        wrong = self.ask("SELECT count(*) FROM t WHERE data <> repeat(md5(client || '-' || row), 12);")
        check_equal(wrong, "0", "rows with other data")
        self.run("pg_amcheck", "-h", self.socket, "-U", "test", "--install-missing", "--heapallindexed", "postgres")
        return last

    def session(self):
        """A client that takes statements."""
        program, *arguments = self.psql()
        return self.box.spawn(
            f"{self.bin}/{program}", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1, cwd="/", **self.user,
        )  # fmt: skip


class Inserter(threading.Thread):
    """A client that inserts rows, one commit each, until the server does not answer any more."""

    def __init__(self, server, number):
        super().__init__(daemon=True)
        self.number, self.session = number, server.session()
        self.sent = self.acknowledged = 0
        # When the commit of each row was asked for, and when it was acknowledged.
        self.sent_at, self.acknowledged_at = [], []

    def run(self):
        try:
            while True:
                row = self.sent + 1
                self.sent = row
                self.sent_at.append(time.monotonic())
                # The answer comes when the transaction is committed.
                self.session.stdin.write(
                    f"INSERT INTO t VALUES({self.number}, {row}, repeat(md5('{self.number}-{row}'), 12)) RETURNING row;\n"
                )
                if self.session.stdout.readline().strip() != str(row):
                    return
                self.acknowledged_at.append(time.monotonic())
                self.acknowledged = row
        except (OSError, ValueError):
            pass
