"""The filter of system calls of the unit: the daemon does all that it does, and nothing beyond."""

import pathlib
import subprocess
import sys

from harness import *
from harness.devices import exported
from harness.seccomp import allowed, numbers, within
from harness.wire import free_port

UNIT = pathlib.Path(__file__).resolve().parents[3] / "dist/forebay.service"

# Calls that reach into other processes, change whose the process is, or have the kernel run code.
FORBIDDEN = (
    "add_key", "bpf", "chroot", "finit_module", "init_module", "kexec_load", "keyctl", "kcmp", "open_by_handle_at",
    "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace",
    "reboot", "setgid", "setresuid", "setuid", "swapon", "userfaultfd",
)
EPERM = 1

TRY = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    ctypes.set_errno(0)
    libc.syscall(number, -1, 0, 0, 0, 0, 0)
    print(ctypes.get_errno())
"""


@test
def calls_that_no_cache_needs_are_refused(box):
    need("systemd-analyze")
    calls, known = allowed(UNIT), numbers()
    check_equal(calls & set(FORBIDDEN), set(), "what the unit allows")
    tried = [known[name] for name in FORBIDDEN if name in known]
    done = subprocess.run(
        [*within(box, UNIT), sys.executable, "-c", TRY, *map(str, tried)], capture_output=True, text=True, check=True
    )
    check_equal(done.stdout.split(), [str(EPERM)] * len(tried), "the errors")


@test
def the_daemon_serves_and_hands_over_within_it(box):
    need("systemd-analyze", "nbdinfo")
    port, metrics = free_port(), free_port()
    daemon = Daemon(box, within=within(box, UNIT))
    daemon.start("--nbd", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{metrics}")
    small = ("--ram", "64M", "--set", "ram_lock=on", "--set", "nbd=all")
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB), *small))
    data = random_bytes("data", MIB)
    client.pwrite(data, 0)
    client.flush()
    client.trim(64 * 1024, 2 * MIB)
    daemon.create("guest", box.file("cache2", 64 * MIB), box.file("origin2", 64 * MIB), "--export", "vhost-user")
    box.run("nbdinfo", f"nbd://127.0.0.1:{port}/v")
    daemon.cli("flush", "v")
    daemon.cli("set", "v", "mode=writethrough")
    daemon.cli("daemon", "--take-over")
    check_equal(bytes(client.pread(MIB, 0)), data, "the data after a hand-over")
    for name in ("v", "guest"):
        daemon.cli("stop", "--force", name)
        daemon.cli("start", name)
        daemon.cli("show", name)
    daemon.cli("delete", "guest")
    check("Operation not permitted" not in daemon.log(), daemon.log())
    check_equal(daemon.terminate()[0], 0, "the exit code")


@test
def block_devices_are_made_and_taken_away_within_it(box):
    need("systemd-analyze")
    daemon = Daemon(box, within=within(box, UNIT))
    daemon.start()
    _, device = exported(box, daemon=daemon)
    with open(device, "r+b", buffering=0) as file:
        file.write(b"x" * 4096)
    # Programs that look at all devices hold it for a moment.
    wait_for(lambda: daemon.cli("stop", "v", expect=None).returncode == 0, "the volume stops")
    daemon.cli("delete", "v")
    check_equal(daemon.terminate()[0], 0, "the exit code")


main()
