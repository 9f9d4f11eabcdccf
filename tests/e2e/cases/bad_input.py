"""Wrong command lines and settings: the right exit code, one clear line, nothing touched."""

import json
import os
import pathlib
import socket

from harness import *


def one_line(done, *words):
    """Fails unless stderr is one line that holds the words."""
    lines = done.stderr.strip().splitlines()
    check_equal(len(lines), 1, f"lines on stderr: {done.stderr!r}")
    for word in words:
        check(word in lines[0], f"'{word}' is not in: {lines[0]}")


@test
def command_lines(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    before = digest(cache, origin)
    create = ["create", "v", "--cache", cache, "--origin", origin]
    for arguments, word in (
        (["frobnicate"], "frobnicate"),
        (["create"], "NAME"),
        (["create", "v", "--cache", cache], "--origin"),
        (["create", "", "--cache", cache, "--origin", origin], "name"),
        (["create", "-v", "--cache", cache, "--origin", origin], "-v"),
        (["create", "a/b", "--cache", cache, "--origin", origin], "a/b"),
        (["create", "x" * 65, "--cache", cache, "--origin", origin], "name"),
        ([*create, "--mode", "writesideways"], "writesideways"),
        ([*create, "--policy", "mru"], "mru"),
        ([*create, "--durability", "none"], "none"),
        *(([*create, "--block-size", size], "block") for size in (
            "-1", "1e30", "10 GB", "", "18446744073709551616", "0", "3", "1K", "2M", "2147483648",
        )),
        *(([*create, "--alignment", size], "align") for size in ("1", "4096", "-512", "1e3", "")),
        ([*create, "--cache", cache], "--cache"),
        ([*create, "--set", "admission=never"], "admission"),
        ([*create, "--set", "promote"], "promote"),
        ([*create, "--set", "nothing=1"], "nothing"),
        ([*create, "--set", "promote=64K", "--set", "promote=32K"], "promote"),
        ([*create, "--mode", "wt", "--set", "mode=wb"], "mode"),
        ([*create, "--set", "dirty_low=60"], "dirty_low"),
        (["set", "v", "dirty_high"], "dirty_high"),
        (["list", "--yaml"], "--yaml"),
        (["show"], "NAME"),
    ):  # fmt: skip
        one_line(daemon.cli(*arguments, expect=2), word)
    check_equal(daemon.cli("list", "--json").stdout.split(), ['{', '"volumes":', '[]', '}'], "the list")
    check_equal(digest(cache, origin), before, "the devices")


@test
def devices_that_cannot_be(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    os.mkfifo(box.path("fifo"))
    os.symlink(cache, box.path("link"))
    os.symlink("nowhere", box.path("dangling"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(box.path("socket"))
    before = digest(cache, origin)
    for bad in (
        str(box.dir), box.path("fifo"), box.path("absent"), box.path("dangling"), box.path("socket"),
        "/dev/null", "/dev/zero", "", "ram:", "ram:-1", "ram:1e30", "ram:10 GB",
        "ram:18446744073709551616", "hdd7200:", f"floppy:{cache}", f"{cache}/x",
    ):  # fmt: skip
        one_line(daemon.create_run("v", bad, origin, expect=2))
        one_line(daemon.create_run("v", cache, bad, expect=2))
    for ram in ("ram:64M", "sata-ssd:ram:64M"):
        one_line(daemon.create_run("v", cache, ram, expect=2), "origin", "RAM")
    for same in (cache, box.path("link"), box.path(f"../{box.dir.name}/cache")):
        one_line(daemon.create_run("v", cache, same, expect=2), "origin")
    one_line(daemon.create_run("v", box.file("tiny", 64 * KIB), origin, expect=2), "cache")
    one_line(daemon.create_run("v", box.file("empty", 0), origin, expect=2), "cache")
    one_line(daemon.create_run("v", cache, box.file("nothing", 0), expect=2), "origin")
    check_equal(daemon.cli("list").stdout.count("\n"), 1, "lines of an empty list")
    check_equal(digest(cache, origin), before, "the devices")
    daemon.create("v", cache, origin)


@test
def a_mounted_device_is_refused(box):
    need("losetup", "mkfs.ext4", "mount")
    daemon = box.daemon()
    image = box.file("image", 64 * MIB)
    box.run("mkfs.ext4", "-q", "-F", image)
    made = box.run("losetup", "--find", "--show", image, expect=None)
    if made.returncode != 0:
        skip(f"no loop device: {made.stderr.strip()}")
    loop = made.stdout.strip()
    box.at_end(box.run, "losetup", "--detach", loop)
    mount = box.path("mnt")
    os.mkdir(mount)
    if box.run("mount", loop, mount, expect=None).returncode != 0:
        skip("ext4 cannot be mounted here")
    box.at_end(box.run, "umount", mount)
    spare = box.file("spare", 64 * MIB)
    one_line(daemon.create_run("v", loop, spare, "--force", expect=3), loop)
    one_line(daemon.create_run("v", spare, loop, expect=3), loop)


@test
def settings(box):
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    before = daemon.show("v")["settings"]
    for bad in (
        "dirty_high=-1", "dirty_high=101", "dirty_high=1e30", "dirty_high=", "dirty_high=50 %",
        "dirty_high=18446744073709551616", "dirty_high=50.5", "dirty_hihg=50", "=50", "dirty_high",
        "dirty_low=60", "sequential_cutoff=10 GB", "sequential_cutoff=-1", "mode=WB", "mode=",
        "commit_interval=0", "commit_interval=-1s", "commit_interval=1 s", "writeback_depth=0",
        "writeback_running=maybe", "durability=hope", "policy=belady",
        "admission=", "admission=never", "admission=ghost", "admission=ghost:0", "admission=ghost:17",
        "admission=ghost:1e1", "write_budget=-1", "write_budget=10 GB", "write_budget=18446744073709551616",
        "write_budget=2P", "promote=12K", "promote=1K", "promote=8M", "promote=-4096",
        "congested_read_threshold=2", "congested_read_threshold=-2ms", "congested_write_threshold=2m",
        "cache_dirty_high=101", "cache_dirty_low=61", "writeback_gap=2M", "writeback_gap=64 K",
        "writeback_rate_min=-1", "writeback_rate_min=1e6", "writeback_rate_max=2T",
        "writeback_rate_max=18446744073709551616", "writeback_latency=50", "writeback_latency=1h",
        "limit_iops=-1", "limit_iops=2.5", "limit_iops=1e3", "limit_iops=9999999999", "limit_bandwidth=1K",
        "limit_bandwidth=-1", "limit_bandwidth=2T",
        "quiet_hours=", "quiet_hours=night", "quiet_hours=22-06", "quiet_hours=22:00-24:00",
        "quiet_hours=06:00-06:00", "quiet_hours=22:00", "quiet_hours=22:00-6:00",
    ):  # fmt: skip
        one_line(daemon.cli("set", "v", bad, expect=2), bad.split("=")[0])
    one_line(daemon.cli("set", "v", "dirty_high=60", "dirty_high=70", expect=2), "twice")
    one_line(daemon.cli("set", "v", "mode=wt", "dirty_high=200", expect=2), "dirty_high")
    crossed = ("writeback_rate_min=2M", "writeback_rate_max=1M")
    one_line(daemon.cli("set", "v", *crossed, expect=2), "writeback_rate_min", "writeback_rate_max")
    raw = [daemon.binary.encode(), b"--socket", daemon.socket.encode(), b"set", b"v", b"mode=\xff\xfe"]
    one_line(box.run(*raw, expect=2))
    check_equal(daemon.show("v")["settings"], before, "the settings")


@test
def verbs_without_a_volume_or_a_daemon(box):
    daemon = box.daemon()
    for verb in (["show"], ["set"], ["flush"], ["stop"], ["start"], ["delete"]):
        arguments = ["dirty_high=60"] if verb == ["set"] else []
        one_line(daemon.cli(*verb, "nobody", *arguments, expect=2), "nobody")
    daemon.terminate()
    done = daemon.cli("list", expect=None)
    check(done.returncode in (1, 2, 3), f"no daemon: code {done.returncode}")
    one_line(done, daemon.socket)


@test
def sockets_and_state_directories(box):
    def fails(code, *words, **paths):
        daemon = Daemon(box, name="x")
        for key, value in paths.items():
            setattr(daemon, key, value)
        one_line(box.run(*daemon.command(), expect=code), *words)

    long = box.path("n" * 120)
    fails(2, "107", socket=long)
    fails(2, "107", nbd=long)
    plain = box.file("plain", 10, b"precious")
    fails(2, plain, socket=plain)
    fails(2, plain, nbd=plain)
    check_equal(pathlib.Path(plain).read_bytes()[:8], b"precious", "a file in the place of a socket")
    fails(2, "absent", socket=box.path("absent/admin.sock"))
    fails(2, "port", nbd="localhost:0")
    fails(2, "--nbd", nbd="localhost")
    fails(2, "--state-dir", state="")
    # A socket of somebody who lives is neither used nor removed.
    listener = socket.socket(socket.AF_UNIX)
    path = box.path("theirs.sock")
    listener.bind(path)
    listener.listen()
    fails(3, path, socket=path)
    fails(3, path, nbd=path)
    check(os.path.exists(path), "the socket of somebody else is gone")
    # State that is not ours to read.
    state = pathlib.Path(box.path("state"))
    state.mkdir()
    for content in (b"", b"{", b"[]", b'{"version": 99, "volumes": []}', b"\xff\xfe", b"null"):
        (state / "state.json").write_bytes(content)
        fails(2, "state", state=str(state))
        check_equal((state / "state.json").read_bytes(), content, "the state")
    daemon = Daemon(box, name="y")
    for arguments in (["--lanes", "0"], ["--lanes", "1000"], ["--lanes", "x"], ["--log", "=="]):
        one_line(box.run(*daemon.command(*arguments), expect=2), arguments[0])


@test
def help_and_version_are_there_for_every_verb(box):
    daemon = Daemon(box)
    binary = daemon.binary
    check("forebay" in box.run(binary, "--version").stdout, "no version")
    verbs = "daemon create list show set flush stop start delete check dump".split()
    overview = box.run(binary, "--help").stdout
    for verb in verbs:
        check(verb in overview, f"'{verb}' is not in the help")
        check("Usage" in box.run(binary, verb, "--help").stdout, f"'{verb} --help' has no usage")
    for shell in ("bash", "zsh", "fish"):
        check("forebay" in box.run(binary, "completions", shell).stdout, f"no completions for {shell}")
    pages = box.path("man")
    os.mkdir(pages)
    box.run(binary, "man", pages)
    check("forebay-create.1" in os.listdir(pages), "no manual page of create")


@test
def output_for_programs_is_json(box):
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    made = json.loads(daemon.create("v", cache, origin, "--json"))
    check_equal(made["origin"]["size"], 16 * MIB, "the size in JSON")
    listing = json.loads(daemon.cli("list", "--json").stdout)
    check_equal([volume["name"] for volume in listing["volumes"]], ["v"], "the names in JSON")


main()
