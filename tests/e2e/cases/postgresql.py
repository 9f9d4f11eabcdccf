"""PostgreSQL on a volume with deferred writes: what it has acknowledged survives a crash of the daemon."""

import glob
import os
import pwd
import signal
import subprocess
import threading
import time

from harness import *
from harness.mounted import Mounted

CLIENTS = 4
# Rows of all clients together before the daemon is killed; each is a commit of its own.
COMMITS = 1500
# PostgreSQL refuses to run as root.
USER = "nobody"


class Server:
    """A PostgreSQL server with its data on a mounted volume."""

    def __init__(self, box, mounted):
        # The newest, with its own name for the programs: those in PATH are wrappers.
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
        self.bin = found[-1] if found else ""
        need(*(f"{self.bin}/{tool}" if found else tool for tool in ("initdb", "postgres", "psql", "pg_amcheck")))
        self.box, self.data, self.socket = box, f"{mounted.mount}/data", box.path("pg")
        self.process = None
        person = pwd.getpwnam(USER)
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": box.path("pg")}
        self.user = {"user": person.pw_uid, "group": person.pw_gid, "extra_groups": [], "env": environment}
        os.makedirs(self.socket)
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
        with open(self.box.path("pg.log"), "ab") as log:
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
        with open(self.box.path("pg.log"), errors="replace") as file:
            return file.read()

    def psql(self, *statements):
        command = [part for statement in statements for part in ("-c", statement)]
        return ["psql", "-qAtX", "-h", self.socket, "-U", "test", "-d", "postgres", "-v", "ON_ERROR_STOP=1", *command]

    def ask(self, *statements):
        return self.run(*self.psql(*statements)).stdout.strip()

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

    def run(self):
        try:
            while True:
                row = self.sent + 1
                self.sent = row
                # The answer comes when the transaction is committed.
                self.session.stdin.write(
                    f"INSERT INTO t VALUES({self.number}, {row}, repeat(md5('{self.number}-{row}'), 12)) RETURNING row;\n"
                )
                if self.session.stdout.readline().strip() != str(row):
                    return
                self.acknowledged = row
        except (OSError, ValueError):
            pass


def acknowledged_commits_survive(box, *arguments):
    need("nbdfuse", "fusermount3", "losetup", "mount", "mkfs.ext4", "e2fsck")
    if os.geteuid() != 0:
        skip("mounting takes root")
    daemon = box.daemon()
    # Only a flush brings anything from RAM to where it survives, unless space is short.
    deferred = ["--ram", "64M", "--durability", "deferred", "--set", "write_down=infinite"]
    uri = daemon.cli("create", "v", *arguments, "-p", box.file("origin", 512 * MIB), *deferred).stdout.strip()
    mounted = Mounted(box, uri)
    server = Server(box, mounted)
    mounted.attach()
    box.run("mkfs.ext4", "-q", "-F", mounted.loop)
    mounted.mount_it()
    server.initialise()
    server.start()
    server.ask("CREATE TABLE t(client int, row int, data text, PRIMARY KEY (client, row));")
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
        for inserter in inserters:
            query = f"SELECT count(*), max(row) FROM t WHERE client = {inserter.number};"
            found, last = (int(part) for part in server.ask(query).split("|"))
            check_equal(found, last, f"rows of client {inserter.number} up to its last")
            check(
                inserter.acknowledged <= last <= inserter.sent,
                f"client {inserter.number} has {last} rows; {inserter.acknowledged} were acknowledged, {inserter.sent} sent",
            )
        wrong = server.ask("SELECT count(*) FROM t WHERE data <> repeat(md5(client || '-' || row), 12);")
        check_equal(wrong, "0", "rows with other data")
        server.run(
            "pg_amcheck", "-h", server.socket, "-U", "test", "--install-missing", "--heapallindexed", "postgres"
        )  # fmt: skip
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
