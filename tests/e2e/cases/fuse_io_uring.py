"""Devices of export=fuse whose requests come through io_uring: what holds for the others, and what is different."""

import pathlib
import re

from harness import *
from harness.daemon import Daemon
from harness.devices import exported

PARAMETER = pathlib.Path("/sys/module/fuse/parameters/enable_uring")


def switch_on():
    """Has the kernel offer it; gives whether it does."""
    try:
        PARAMETER.write_text("Y")
    except OSError:
        return False
    return PARAMETER.read_text().startswith("Y")


if switch_on():
    Daemon.options = ["--fuse-io-uring"]
    # Everything that is tested there is a test here as well.
    import fuse


def submissions(daemon):
    """What the daemon has submitted to its rings."""
    count = 0
    for info in pathlib.Path(f"/proc/{daemon.process.pid}/fdinfo").iterdir():
        found = re.search(r"^SqHead:\s*(\d+)", info.read_text(), re.MULTILINE)
        count += int(found.group(1)) if found else 0
    return count


@test
def a_request_is_one_submission(box):
    if not Daemon.options:
        skip(f"{PARAMETER} cannot be switched on: it takes root and Linux 6.14")
    need("fio")
    daemon, device = exported(box)
    reads = 4000
    load = ["fio", "--name=load", f"--filename={device}", "--rw=read", "--bs=4k", f"--size={reads * 4}k",
            "--direct=1", "--output-format=terse"]  # fmt: skip
    box.run(*load, cwd=box.dir)
    before = submissions(daemon)
    box.run(*load, cwd=box.dir)
    each = (submissions(daemon) - before) / reads
    # A request that is read from the connection takes three: the wait, the read, the reply.
    check(0.9 < each < 2, f"{each:.2f} submissions for each request")


@test
def another_program_cannot_go_on_with_such_a_device(box):
    if not Daemon.options:
        skip(f"{PARAMETER} cannot be switched on: it takes root and Linux 6.14")
    daemon, device = exported(box)
    refused = daemon.cli("daemon", "--take-over", expect=3).stderr
    check(device in refused and "io_uring" in refused, f"the refusal: {refused.strip()}")
    check_equal(daemon.show("v")["state"], "running", "the state after the refusal")
    daemon.cli("set", "v", "export=nbd")
    process = daemon.process.pid
    daemon.cli("daemon", "--take-over")
    check_equal(daemon.process.pid, process, "the process")
    check_equal(daemon.show("v")["state"], "running", "the state after the hand-over")


main()
