"""Commands that a person forgives: names that are nearly right, amounts at the end, odd paths and locales."""

import json
import resource
import shlex

from harness import *
from harness.daemon import Daemon

SIZE = 16 * MIB


def made(box, name="v"):
    daemon = box.daemon()
    uri = daemon.create(name, box.file("cache", 64 * MIB), box.file("origin", SIZE), "--set", "idle=0")
    return daemon, connect(uri)


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


@test
def a_name_that_is_nearly_right_is_answered_with_the_right_one(box):
    daemon, _ = made(box, "data")
    for words, meant in (
        (("show", "dta"), "did you mean 'data'?"),
        (("set", "data", "dirtyhigh=60"), "did you mean 'dirty_high'?"),
        (("set", "data", "ram=4"), "like 4G"),
        (("shwo", "data"), "'show'"),
    ):
        said = daemon.cli(*words, expect=2).stderr
        check(meant in said and said.count("\n") == 1, f"{words}: {said}")
    said = daemon.cli("create", "data", "-s", box.path("cache"), "-p", box.path("origin"), expect=3).stderr
    check("'forebay start data'" in said and "another name" not in said, said)


@test
def commands_end_with_how_much_they_moved(box):
    daemon, client = made(box)
    client.pwrite(b"x" * MIB, 0)
    client.flush()
    check_equal(last_line(daemon.cli("flush", "v")), "v: flushed, 1M written back", "flush")
    check_equal(last_line(daemon.cli("evict", "v", "0+256K")), "v: 256K discarded from the cache", "evict")
    check_equal(last_line(daemon.cli("drop", "v")), "v: 768K discarded from the cache", "drop")
    client.pwrite(b"y" * MIB, 0)
    client.shutdown()
    said = "v: stopped, 0 written back; 1M stays cached, 1M of it dirty: not on the origin yet"
    check_equal(last_line(daemon.cli("stop", "v")), said, "stop")
    check_equal(last_line(daemon.cli("delete", "v")), "v: deleted, 1M written back", "delete")
    uri = daemon.create("w", box.path("cache"), box.path("origin"), "--set", "idle=0")
    client = connect(uri)
    client.pwrite(b"z" * MIB, 0)
    client.shutdown()
    said = last_line(daemon.cli("delete", "w", "--discard-dirty"))
    check_equal(said, "w: deleted, 1M of dirty data discarded", "delete --discard-dirty")


@test
def a_stopped_volume_is_listed_as_it_was(box):
    daemon, client = made(box)
    client.pwrite(b"x" * MIB, 0)
    client.shutdown()
    daemon.cli("stop", "v")
    for _ in range(2):
        text = daemon.cli("list").stdout
        check("(1M)" in text and "those of the stop" in text, text)
        check(all(len(line) <= 100 for line in text.splitlines()), f"too wide: {text}")
        (volume,) = json.loads(daemon.cli("list", "--json").stdout)["volumes"]
        numbers = volume["known"], volume["as_of_stop"], volume["used"], volume["dirty"]
        check_equal(numbers, (False, True, MIB, MIB), "the numbers of the stop")
        check("256 dirty (1M) when it was stopped" in daemon.cli("show", "v").stdout, "show")
        daemon.restart()
    daemon.cli("start", "v")
    check("(" not in daemon.cli("list").stdout, "it is served again")


@test
def paths_may_have_spaces_and_locales_may_have_no_letters(box):
    daemon = box.daemon()
    for name, locale in (("a b", "C"), ("dïsk", "C"), ("x", "no_SUCH.locale")):
        cache, origin = box.file(f"{name} cache", 64 * MIB), box.file(f"{name} origin", SIZE)
        command = ["env", f"LC_ALL={locale}", f"LANG={locale}", daemon.binary, "--socket", daemon.socket]
        box.run(*command, "create", "v", "-s", cache, "-p", origin)
        check(origin in box.run(*command, "list", "--wide").stdout, f"{name}: list")
        check(origin in box.run(*command, "show", "v").stdout, f"{name}: show")
        said = box.run(*command, "delete", "v").stderr
        words = shlex.split(said[said.index("dd if=") : said.index(" ('delete")])
        check(f"of={cache}" in words, f"the command to copy: {words}")
        box.run(*words)
        check("nothing" in box.run(daemon.binary, "probe", cache).stdout, "probe")
    said = daemon.cli("create", "my volume", "-s", cache, "-p", origin, expect=2).stderr
    check("'my volume' cannot name a volume" in said and said.count("\n") == 1, said)


@test
def the_limit_of_open_files_is_raised_or_warned_of(box):
    daemon = Daemon(box, within=["prlimit", "--nofile=256:4096"])
    daemon.start()
    check_equal(resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)[0], 4096, "the limit")
    check("files open" not in daemon.log(), daemon.log())
    fixed = Daemon(box, "fixed", within=["prlimit", "--nofile=256:256"])
    fixed.start()
    check("only 256 files open" in fixed.log() and "LimitNOFILE" in fixed.log(), fixed.log())
    fixed.create("v", box.file("cache", 64 * MIB), box.file("origin", SIZE))


main()
