"""
Commands at random, several at once, on devices that hang, delay and fail, cancelled, with a daemon that is killed, ended
and handed over meanwhile. Whatever was reported holds:

- a block that was flushed is never older again, wherever its volume or its origin is (unless dirty blocks were given up);
- a command that failed has changed nothing, and its devices are free; one that cannot say so ends with exit code 5;
- what is listed can be served.

FOREBAY_SEED: of the first storm [default: the time]. FOREBAY_STORMS: how many [default: 20].
"""

import fcntl
import json
import os
import random
import signal
import subprocess
import threading
import time

import nbd

from harness import *
from harness.commands import handles_sigint, operations
from harness.data import read_stamp, stamp
from harness.faults import Disk, wait_for
from harness.http_unix import UnixConnection

NAMES = ["v0", "v1", "v2", "v3"]
BLOCKS, BLOCK = 64, 4096
MODES = ["wb", "wt", "wa", "passthrough"]
# Cache devices do not fail here: after that, a volume may need a force.
FAULTS = {
    "cache": ["hang", "hang read", "hang write", "hang sync", "delay 30ms", "hang write after=2"],
    "origin": ["hang", "hang read", "hang write", "hang sync", "delay 30ms", "fail EIO read", "fail EIO write", "fail EIO sync times=1"],
}  # fmt: skip


class Origin(Disk):
    """The disk behind a volume, and which versions of its blocks are promised."""

    def __init__(self, box, name, seed):
        super().__init__(box, name, 16 * MIB)
        self.seed = seed
        self.least, self.most = [0] * BLOCKS, [0] * BLOCKS
        # How often dirty blocks may have been given up.
        self.given_up = 0
        self.lock = threading.Lock()

    def give_up(self):
        """Dirty blocks were given up, or may have been."""
        with self.lock:
            self.least = [0] * BLOCKS
            self.given_up += 1

    def check(self, read, where):
        """Compares every block with the bounds; what is found is the least from now on."""
        for block in range(BLOCKS):
            version = read_stamp(read(block * BLOCK), block, self.seed)
            check(
                self.least[block] <= version <= self.most[block],
                f"{where}: block {block} has version {version}, not {self.least[block]} to {self.most[block]}",
            )


class Storm:
    def __init__(self, box, seed):
        self.box, self.seed, self.random = box, seed, random.Random(seed)
        self.daemon = box.daemon(name=f"s{seed % 1000}")
        self.caches = [Disk(box, f"cache{number}", 64 * MIB) for number in range(2)]
        self.origins = [Origin(box, f"origin{number}", number + 1) for number in range(len(NAMES))]
        for disk in self.caches + self.origins:
            self.fault(disk)
        self.history, self.counts, self.flushed = [], {}, 0

    def fault(self, disk, *rules):
        disk.faults("volatile", *rules)

    def note(self, *what):
        self.history.append(f"{time.monotonic():.3f} " + " ".join(map(str, what)))

    def origin_of(self, volume):
        return next(origin for origin in self.origins if origin.path in volume["origin"]["path"])

    def get(self, path):
        connection = UnixConnection(self.daemon.socket)
        connection.request("GET", path)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return found if answer.status == 200 else None

    def volumes(self):
        """The reports of all volumes."""
        names = [volume["name"] for volume in self.get("/v1/volumes")["volumes"]]
        return [report for report in (self.get(f"/v1/volumes/{name}") for name in names) if report]

    # What can be done.

    def command(self, rng):
        name, cache, origin = rng.choice(NAMES), rng.choice(self.caches), rng.choice(self.origins)
        there = [volume["name"] for volume in self.get("/v1/volumes")["volumes"]]
        if there and rng.random() < 0.8:
            name = rng.choice(there)
        create = ["create", name, "--cache", cache.name, "--origin", origin.name, "--set", f"mode={rng.choice(MODES)}"]
        return rng.choice([
            *[[*create[:1], rng.choice(NAMES), *create[2:], *force] for force in ([], [], ["--force"])], ["start", name], ["start", name], ["start", name, "--force"],
            ["stop", name], ["stop", name, "--force"], ["flush", name], ["drop", name], ["evict", name, "0+64K"],
            ["prefetch", name, "0+64K"], ["pin", name, "0+16K"], ["set", name, f"mode={rng.choice(MODES)}"],
            ["set", name, f"dirty_high={rng.randrange(40, 90)}"], ["set", name, f"cache_dirty_high={rng.randrange(70, 99)}"],
            ["delete", name] if rng.random() < 0.7 else ["delete", "--discard-dirty", name],
        ])  # fmt: skip

    def run(self, words, rng, patience=None):
        """Runs a command, and cancels it after some time, or not."""
        if words[:2] == ["delete", "--discard-dirty"] or "--force" in words and words[0] == "start":
            given_up = [self.origin_of(volume) for volume in self.volumes() if volume["name"] in words]
        else:
            given_up = []
        for origin in given_up:
            origin.give_up()
        process = subprocess.Popen(
            [self.daemon.binary, "--socket", self.daemon.socket, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said = process.communicate(timeout=patience)[1]
        except subprocess.TimeoutExpired:
            while process.poll() is None and not handles_sigint(process.pid):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=90)[1]
        for origin in given_up:
            origin.give_up()
        self.note(*words, "->", process.returncode, said.strip()[-200:])
        key = (words[0], process.returncode)
        self.counts[key] = self.counts.get(key, 0) + 1
        return process.returncode, said

    def commands(self, seed, until):
        rng = random.Random(seed)
        while time.monotonic() < until:
            self.run(self.command(rng), rng, rng.choice([None, None, 0.1, 0.5, 2]))
            time.sleep(rng.random() / 10)

    def faulty(self, seed, until):
        rng = random.Random(seed)
        while time.monotonic() < until:
            kind = rng.choice(["cache", "origin", "origin"])
            disk = rng.choice(self.caches if kind == "cache" else self.origins)
            rule = rng.choice(FAULTS[kind])
            self.note("fault", os.path.basename(disk.path), rule)
            self.fault(disk, rule)
            time.sleep(rng.choice([0.05, 0.3, 1, 3]))
            self.note("healed", os.path.basename(disk.path))
            self.fault(disk)

    def writes(self, seed, until):
        rng = random.Random(seed)
        while time.monotonic() < until:
            try:
                served = [volume for volume in self.volumes() if volume["export"].get("nbd")]
            except OSError:
                served = []
            if not served:
                time.sleep(0.1)
                continue
            volume = rng.choice(served)
            self.write_some(volume, rng)

    def write_some(self, volume, rng):
        """Writes some blocks and flushes them, if that is possible."""
        origin = self.origin_of(volume)
        with origin.lock:
            before = origin.given_up
        blocks = rng.sample(range(BLOCKS), 8)
        try:
            client = nbd.NBD()
            client.set_export_name(volume["name"])
            client.connect_unix(self.daemon.nbd)
            if client.get_size() != 16 * MIB:
                return
            # It may be another volume of this name by now: then its origin is not known.
            for block in blocks:
                with origin.lock:
                    origin.most[block] += 1
                    version = origin.most[block]
                cookie = client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(stamp(block, version, origin.seed))), block * BLOCK)
                self.finish(client, cookie)
            self.finish(client, client.aio_flush())
            present = [other for other in self.volumes() if other["name"] == volume["name"]]
            if present and self.origin_of(present[0]) is origin:
                with origin.lock:
                    # If dirty blocks were given up meanwhile, nothing is promised.
                    if origin.given_up == before:
                        self.flushed += 1
                        for block in blocks:
                            origin.least[block] = origin.most[block]
        except nbd.Error:
            pass

    @staticmethod
    def finish(client, cookie):
        until = time.monotonic() + 20
        while not client.aio_command_completed(cookie):
            if time.monotonic() > until:
                raise nbd.Error("not answered", 0)
            client.poll(100)

    def ends(self, rng):
        """Ends the daemon in some way, or hands over."""
        way = rng.choice(["kill", "kill", "term", "hup", "none"])
        self.note("daemon:", way)
        if way == "kill":
            self.daemon.kill()
        elif way == "term":
            self.daemon.process.send_signal(signal.SIGTERM)
            code = self.daemon.process.wait(120)
            check(code in (0, 1), f"the daemon ended with {code}")
        elif way == "hup":
            self.daemon.process.send_signal(signal.SIGHUP)
            time.sleep(1)
        if way in ("kill", "term"):
            self.daemon.launch()
            wait_for(lambda: self.daemon.cli("list", expect=None).returncode == 0, "the API answers", 60)

    # What has to hold.

    def calm(self):
        for disk in self.caches + self.origins:
            self.fault(disk)
        wait_for(lambda: not operations(self.daemon), "the operations end", 120)
        used = set()
        for volume in self.volumes():
            name, origin = volume["name"], self.origin_of(volume)
            used.add(origin.path)
            if volume["state"] not in ("running", "degraded"):
                wait_for(lambda: self.daemon.cli("start", name, expect=None).returncode != 3, f"{name} is free", 60)
                code, said = self.run(["start", name], None)
                check(code == 0, f"{name} cannot be started: {said}")
            client = nbd.NBD()
            client.set_export_name(name)
            client.connect_unix(self.daemon.nbd)
            origin.check(lambda offset: bytes(client.pread(BLOCK, offset)), f"volume {name}")
            client.shutdown()
        for origin in self.origins:
            if origin.path not in used:
                origin.check(lambda offset: origin.read(offset, BLOCK), f"origin {origin.path}")

    def one_alone(self, rng):
        """One command on a device that hangs, cancelled: it has failed and changed nothing, or goes on."""
        before = {volume["name"]: volume for volume in self.volumes()}
        words = self.command(rng)
        there = [before[word] for word in words if word in before]
        paths = " ".join(words) if not there else there[0]["cache"]["path"] + there[0]["origin"]["path"]
        own = [disk for disk in self.caches + self.origins if disk.path in paths] or self.caches
        digests = [digest(cache.path) for cache in self.caches]
        rule = rng.choice(["hang", "hang sync", "hang read", "hang write", "hang write after=1", "hang sync after=1"])
        self.note("one alone:", rule)
        for disk in own if rng.random() < 0.5 else [rng.choice(own)]:
            self.fault(disk, rule)
        code, said = self.run(words, rng, rng.choice([0.3, 1.5]))
        for disk in own:
            self.fault(disk)
        wait_for(lambda: not operations(self.daemon), "the operations end", 120)
        # What was given up has to end, too.
        time.sleep(1)
        after = {volume["name"]: volume for volume in self.volumes()}
        kept = lambda volumes: {name: self.kept(volume) for name, volume in volumes.items()}
        if code not in (0, 5):
            check_equal(kept(after), kept(before), f"the volumes after {words} ended with {code}: {said}")
            if words[0] == "create" and not before:
                check_equal([digest(cache.path) for cache in self.caches], digests, f"the cache devices after {words}: {said}")
        if words[0] == "stop" and code == 0 and words[1] in before:
            path = self.origin_of(before[words[1]]).path
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @staticmethod
    def kept(volume):
        """What no failed command changes of a volume."""
        served = volume["state"] in ("running", "degraded", "draining")
        return served, volume["settings"], volume["origin"]["path"], volume["cache"]["path"]

    def go(self):
        rng = self.random
        for _ in range(3):
            until = time.monotonic() + rng.choice([3, 6, 10])
            parts = [(self.commands, 1), (self.commands, 2), (self.commands, 3), (self.faulty, 4), (self.writes, 5)]
            threads = [threading.Thread(target=self.guard, args=(part, rng.random() + extra, until)) for part, extra in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.ends(rng)
            self.calm()
            for _ in range(12):
                self.one_alone(rng)
            self.calm()
        self.daemon.terminate()

    def guard(self, part, seed, until):
        try:
            part(seed, until)
        except Exception as error:
            self.note("a part failed:", repr(error))
            self.failed = error


@test
def what_was_reported_holds(box):
    first = int(os.environ.get("FOREBAY_SEED", time.time()))
    totals, flushed = {}, 0
    for seed in range(first, first + int(os.environ.get("FOREBAY_STORMS", 20))):
        storm = Storm(box, seed)
        try:
            storm.go()
            if hasattr(storm, "failed"):
                raise storm.failed
        except BaseException:
            print("\n".join(storm.history), flush=True)
            print(f"FOREBAY_SEED={seed}", flush=True)
            raise
        flushed += storm.flushed
        for key, count in storm.counts.items():
            totals[key] = totals.get(key, 0) + count
        for disk in storm.caches + storm.origins:
            os.remove(disk.path)
    print(f"{flushed} times some blocks were flushed", flush=True)
    for key, count in sorted(totals.items()):
        print(f"{key[0]:10} exit code {key[1]}: {count}", flush=True)


main()
