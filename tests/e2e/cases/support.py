"""What a bug report needs is in one archive, and none of what others need not know."""

import json
import os
import pathlib
import platform
import re
import stat
import tarfile

from harness import *
from harness.wire import free_port

HOMES = "/home"
PAYLOAD = b"the content of the volume is nobody's business"
# Planted where operators and programs leave them.
SECRETS = {
    "a host in a URI": "vault7.invalid",
    "a directory of keys in a URI": "hidden-directory",
    "a user in a URI": "mallory",
    "a password in a URI": "hunter2",
    "a password in a message": "swordfish",
    "a token in JSON": "tok-1234567890",
    "a key in a message": "MIIEvQIBADANBgkqhki",
    "the path of a TLS key": "daemon-private-key-file",
    "an address": "198.51.100.77",
    "an address of IPv6": "2001:db8::77",
    "an Ethernet address": "52:54:00:12:34:56",
    "a mail address": "carol@corp.invalid",
    "the home of a user": "bobs-home",
    "the content of a volume": PAYLOAD.decode(),
}


def unpack(path):
    """The texts of an archive by their names, without the directory."""
    with tarfile.open(path, "r:gz") as archive:
        members = archive.getmembers()
        check(all(member.isfile() and member.mode == 0o600 for member in members), "the modes of files")
        tops = {member.name.split("/")[0] for member in members}
        check_equal(len(tops), 1, "directories in the archive")
        return {m.name.split("/", 1)[1]: archive.extractfile(m).read().decode() for m in members}


def support(box, daemon, name, *arguments):
    """Runs the command; gives what it wrote and what it said."""
    path = box.path(name)
    said = daemon.cli("support", path, *arguments).stdout
    check_equal(stat.S_IMODE(os.stat(path).st_mode), 0o600, "the mode of the archive")
    return unpack(path), said


def tls_key(box):
    """A certificate and its key, whose path has a name to be found."""
    key, certificate = box.self_signed("daemon-private-key-file", "public-certificate")
    return "--nbd-tls-cert", certificate, "--nbd-tls-key", key


def plant(daemon):
    """Puts secrets into what a daemon has written down, while it is down."""
    path = pathlib.Path(daemon.state) / "state.json"
    state = json.loads(path.read_text())
    volume = next(entry for entry in state["volumes"] if entry["volume"]["name"] == "far")
    uri = f"nbds://{SECRETS['a host in a URI']}/e?tls-certificates=/srv/{SECRETS['a directory of keys in a URI']}&reconnect=1"
    volume["volume"]["origin"] = uri
    path.write_text(json.dumps(state))
    said = (
        f"rbd://{SECRETS['a user in a URI']}:{SECRETS['a password in a URI']}@ceph/pool failed; "
        f"password={SECRETS['a password in a message']} of {SECRETS['a mail address']} "
        f"-----BEGIN PRIVATE KEY----- {SECRETS['a key in a message']} -----END PRIVATE KEY----- "
        f"from {SECRETS['an address']}:4711, {SECRETS['an address of IPv6']} and {SECRETS['an Ethernet address']} "
        f"in {HOMES}/{SECRETS['the home of a user']}/x; {SECRETS['a host in a URI']} is gone"
    )
    events = pathlib.Path(daemon.state) / "events.jsonl"
    event = json.loads(events.read_text().splitlines()[-1])
    event["id"] += 1
    event.update(kind="operation-failed", message=said, fields={"token": SECRETS["a token in JSON"], "error": said})
    with open(events, "a") as file:
        file.write(json.dumps(event) + "\n")


def check_secrets(texts, said, *more):
    for what, secret in [*SECRETS.items(), *more]:
        found = [name for name, text in texts.items() if secret in text]
        check(not found, f"{what}, {secret}, is in {found}")
        check(secret not in said, f"{what}, {secret}, is printed")


def with_secrets(box):
    daemon = box.daemon()
    origin, cache = box.file("origin", 16 * MIB), box.file("cache", 64 * MIB)
    client = connect(daemon.create("v", cache, origin, "--set", "idle=0", "--set", "dirty_age=0"))
    client.pwrite(PAYLOAD.ljust(4096), 0)
    client.flush()
    daemon.create("far", box.file("far-cache", 64 * MIB), box.file("far", 16 * MIB))
    daemon.cli("stop", "far")
    daemon.terminate()
    plant(daemon)
    return daemon


@test
def the_archive_has_what_a_report_needs_and_no_secret(box):
    daemon = with_secrets(box)
    daemon.start(*tls_key(box), "--nbd", f"127.0.0.1:{free_port()}")
    daemon.cli("start", "far", expect=None)
    texts, said = support(box, daemon, "a.tar.gz")
    for name in (
        "README", "version.txt", "doctor.json", "host/kernel.txt", "host/lscpu.txt", "devices.txt", "command-line.txt", "daemon.json",
        "memory.json", "operations.json", "metrics.txt", "log.txt", "events.jsonl", "volumes/v.json", "volumes/far.json",
        "volumes/v.lost.json", "state/state.json", "state/dirty/v.json", "caches/1.jsonl", "caches/2.jsonl",
    ):  # fmt: skip
        check(texts.get(name, "").strip(), f"{name} is missing or empty; there are {sorted(texts)}")
        check(f"  {name}\n" in said, f"{name} is not among the printed names")
    check_equal(json.loads(texts["volumes/v.json"])["state"], "running", "the state of the volume")
    kinds = [json.loads(line)["kind"] for line in texts["events.jsonl"].splitlines()]
    check("operation-failed" in kinds and "start-failed" in kinds, f"the events: {kinds}")
    superblock = json.loads(texts["caches/1.jsonl"].splitlines()[0])
    check_equal(superblock["type"], "superblock", "the first line of a cache")
    check("the admin API is ready" in texts["log.txt"], "the log")
    check("forebay_build_info" in texts["metrics.txt"], "the metrics")
    check(box.path("origin") in texts["devices.txt"], "the devices")
    check(json.loads(texts["state/state.json"])["volumes"][0]["volume"]["settings"]["mode"], "the state is JSON")
    # The same stand-in for the same host, wherever it is.
    stand_ins = {re.search(r"nbds://(host-\d+)/e", texts[name])[1] for name in ("state/state.json", "volumes/far.json")}
    check_equal(len(stand_ins), 1, "names for one host")
    host = platform.node()
    more = [("the name of this host", host)] if len(host) > 3 and host not in ("localhost", "forebay") else []
    check_secrets(texts, said, *more)
    # What stands for them.
    event = next(line for line in texts["events.jsonl"].splitlines() if '"token"' in line)
    for part in ("[user]@host-", "password=[redacted]", "[mail address]", "address-", f"{HOMES}/user-1", '"token":"[redacted]"'):
        check(part in event, f"{part} is not in {event}")
    check("--nbd-tls-key [keys]" in texts["command-line.txt"], texts["command-line.txt"])
    done = daemon.cli("support", box.path("a.tar.gz"), expect=2)
    check("a.tar.gz" in done.stderr, f"a file that is there: {done.stderr}")


@test
def without_a_daemon_it_has_less_and_says_so(box):
    daemon = with_secrets(box)
    texts, said = support(box, daemon, "b.tar.gz", "--state-dir", daemon.state)
    for name in ("doctor.json", "host/kernel.txt", "events.jsonl", "state/state.json", "state/dirty/v.json", "caches/1.jsonl", "devices.txt"):
        check(texts.get(name, "").strip(), f"{name} is missing or empty; there are {sorted(texts)}")
    check("metrics.txt" not in texts and "log.txt" not in texts, f"there are {sorted(texts)}")
    for text in said, texts["README"]:
        check("The daemon does not answer" in text, f"it does not say that the daemon is down: {text}")
    check_secrets(texts, said)
    check_equal(json.loads(texts["caches/1.jsonl"].splitlines()[0])["clean_shutdown"], True, "the superblock")
    # Nothing has changed: the daemon starts as before.
    daemon.start()
    check_equal(daemon.show("v")["state"], "running", "the state of the volume afterwards")


@test
def a_device_that_hangs_does_not_keep_it_waiting(box):
    daemon = box.daemon()
    cache, origin = Disk(box, "cache", 64 * MIB), Disk(box, "origin", 16 * MIB)
    client = Client(daemon.create("v", cache.name, origin.name, "--mode", "wt"))
    cache.faults("hang")
    origin.faults("hang")
    client.start_write(b"\x01" * 4096, 0)
    texts, said = support(box, daemon, "c.tar.gz")
    check(json.loads(texts["volumes/v.json"])["name"] == "v", "the report of the volume")
    check("caches/1.jsonl" in texts or "Missing: caches/1.jsonl" in said, f"nothing about the cache: {said}")
    cache.heal()
    origin.heal()


main()
