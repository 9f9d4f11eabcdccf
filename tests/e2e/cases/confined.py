"""A daemon that may do less than usual: limits of the process, namespaces, system calls that are refused."""

import os
import resource
import signal
import sys

from harness import *

# Refuses one system call with EPERM, as profiles of containers do, and becomes another program.
WITHOUT = """
import ctypes, os, struct, sys
number, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rules), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[2], sys.argv[2:])
"""
IO_URING_SETUP = 425


@test
def a_daemon_without_io_uring_says_how_to_allow_it(box):
    daemon = Daemon(box, within=[sys.executable, "-c", WITHOUT, str(IO_URING_SETUP)])
    daemon.launch()
    check_equal(daemon.process.wait(60), 1, "the exit code")
    said = daemon.last_line()
    check("the daemon needs io_uring" in said and "seccomp" in said, said)


@test
def a_limit_of_the_size_of_files_fails_writes_and_not_the_daemon(box):
    daemon = box.daemon()
    small, large = box.file("small", 16 * MIB), box.file("large", 64 * MIB)
    cache = box.file("cache", 64 * MIB)
    daemon.create("low", cache, small, "--set", "idle=0")
    client = connect(daemon.create("high", cache, large, "--mode", "writethrough"))
    # Below the cache device's end, so that its writes fail too.
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (32 * MIB, 32 * MIB))
    client.pwrite(b"a" * 4096, 0)
    try:
        client.pwrite(b"b" * 4096, 48 * MIB)
        raise Failure("a write behind the limit succeeded")
    except Exception as error:
        check(not isinstance(error, Failure), str(error))
    daemon.check_alive()
    wait_for(lambda: "SIGXFSZ: a write failed" in daemon.log(), "the log says so")
    check("LimitFSIZE=infinity" in daemon.log(), daemon.log())
    check_equal(bytes(client.pread(4096, 0)), b"a" * 4096, "what was written")


@test
def a_limit_that_may_be_lifted_is_lifted(box):
    daemon = Daemon(box, within=["prlimit", f"--fsize={8 * MIB}:unlimited"])
    daemon.start()
    check_equal(resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)[0], resource.RLIM_INFINITY, "the limit")
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB)))
    client.pwrite(b"x" * MIB, 48 * MIB)
    daemon.cli("flush", "v")
    check_equal(daemon.terminate()[0], 0, "the exit code")
    fixed = Daemon(box, "fixed", within=["prlimit", f"--fsize={8 * MIB}:{8 * MIB}"])
    fixed.start()
    check("this process may write files only up to 8M" in fixed.log(), fixed.log())


@test
def signals_for_other_daemons_end_nothing(box):
    daemon = box.daemon()
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)))
    for number in ("USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "PIPE", "WINCH", "URG"):
        daemon.process.send_signal(signal.Signals[f"SIG{number}"])
    client.pwrite(b"x" * 4096, 0)
    wait_for(lambda: daemon.log().count("has no meaning here") == 6, "the log says so of six")
    daemon.check_alive()
    check_equal(daemon.terminate()[0], 0, "the exit code")


@test
def a_client_of_another_pid_namespace_is_served(box):
    need("unshare")
    if os.geteuid() != 0:
        skip("namespaces take root")
    daemon = Daemon(box, within=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    daemon.start()
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB), "--export", "vhost-user")
    check_equal(daemon.show("v")["state"], "running", "the state")
    daemon.cli("doctor", expect=None)
    daemon.cli("delete", "v")


main()
