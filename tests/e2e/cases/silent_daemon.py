"""A daemon that does not answer: verbs say so, end with a code of their own, and doctor says what it is doing."""

import json
import os
import signal
import socket

from harness import *


def stopped(box):
    """A daemon with a volume, which is stopped until the function that is returned is called."""
    daemon = box.daemon()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    daemon.process.send_signal(signal.SIGSTOP)

    def go_on():
        daemon.process.send_signal(signal.SIGCONT)

    box.at_end(go_on)
    return daemon, go_on


@test
def a_verb_says_after_two_seconds_that_there_is_no_answer_and_waits_no_longer_than_it_was_told(box):
    daemon, go_on = stopped(box)
    pid = daemon.process.pid
    for verb in (["list"], ["show", "v"], ["flush", "v"], ["events"], ["top", "--once"], ["set", "v", "idle=0"]):
        done = daemon.cli("--timeout", "2.5", *verb, expect=5)
        first, last = done.stderr.splitlines()
        check(f"(pid {pid}) has not answered for 2 s; waiting up to 2.5 s" in first, f"{verb}: {first}")
        check("has not answered for 2.5 s" in last and "forebay doctor" in last, f"{verb}: {last}")
        changes = verb[0] in ("flush", "set")
        check_equal("may still be carried out" in last, changes, f"{verb}: {last}")
    done = daemon.cli("--timeout", "300ms", "list", expect=5)
    check_equal(len(done.stderr.splitlines()), 1, f"lines: {done.stderr}")
    command = [daemon.binary, "--socket", daemon.socket, "list"]
    done = box.run("env", "FOREBAY_TIMEOUT=0.3", *command, expect=5)
    check("has not answered for 0.3 s" in done.stderr, done.stderr)
    go_on()
    daemon.cli("--timeout", "60", "list")


@test
def a_command_whose_sender_has_left_is_not_carried_out(box):
    daemon, go_on = stopped(box)
    for verb in (["stop", "v"], ["set", "v", "dirty_high=77"], ["delete", "v"]):
        daemon.cli("--timeout", "0.3", *verb, expect=5)
    go_on()
    report = daemon.show("v")
    check_equal(report["state"], "running", "the state")
    check_equal(report["settings"]["dirty_high"], 50, "a setting")
    wait_for(lambda: daemon.log().count("not carried out: its sender has left") == 3, "the log says so")
    check_equal(daemon.show("v")["state"], "running", "the state")


@test
def doctor_says_what_a_daemon_that_does_not_answer_is_doing(box):
    daemon, go_on = stopped(box)
    pid = daemon.process.pid
    done = daemon.cli("doctor")
    check(f"does not answer: pid {pid} is stopped" in done.stdout, done.stdout)
    check(f"kill -CONT {pid}" in done.stdout, done.stdout)
    found = json.loads(daemon.cli("--timeout", "0.3", "doctor", "--json").stdout)["silent_daemon"]
    check_equal((found["process"]["pid"], found["process"]["state"]), (pid, "stopped"), "the process")
    check_equal(found["socket_is_full"], False, "whether the socket is full")
    names = {thread["name"] for thread in found["process"]["threads"]}
    check({"admin", "lane-0", "log"} <= names, f"threads: {names}")
    # As many connections as the kernel keeps for it.
    waiting = []
    try:
        while True:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            waiting.append(one)
            one.connect(daemon.socket)
    except BlockingIOError:
        pass
    found = json.loads(daemon.cli("--timeout", "0.3", "doctor", "--json").stdout)["silent_daemon"]
    check_equal((found["process"]["pid"], found["socket_is_full"]), (pid, True), "with a full socket")
    done = daemon.cli("--timeout", "0.3", "stop", "v", expect=5)
    check("takes no more connections, and nothing was sent" in done.stderr, done.stderr)
    for one in waiting:
        one.close()
    go_on()
    found = json.loads(daemon.cli("--timeout", "60", "doctor", "--json").stdout)
    check_equal(found["silent_daemon"], None, "when it answers")


@test
def a_shell_that_completes_names_does_not_hang(box):
    daemon, go_on = stopped(box)
    script = 'forebay() { "$FOREBAY" "$@"; }; source <(forebay completions bash); ' \
        'COMP_WORDS=(forebay show ""); COMP_CWORD=2; _forebay_values; echo "${#COMPREPLY[@]}"'
    run = ["env", f"FOREBAY_SOCKET={daemon.socket}", "bash", "-c", script]
    check_equal(box.run(*run).stdout.strip(), "0", "names that are offered")
    go_on()
    daemon.cli("--timeout", "60", "list")
    check_equal(box.run(*run).stdout.strip(), "1", "names that are offered")


@test
def a_socket_without_a_daemon_is_no_silent_one(box):
    path = box.path("left.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    done = box.run(os.environ["FOREBAY"], "--socket", path, "list", expect=1)
    check("no daemon answers" in done.stderr, done.stderr)
    found = json.loads(box.run(os.environ["FOREBAY"], "--socket", path, "doctor", "--json").stdout)
    check_equal(found["silent_daemon"], None, "what doctor finds")


main()
