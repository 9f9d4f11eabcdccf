"""The filter of system calls of a unit, as systemd would install it, for a process of a test."""

import os
import pathlib
import re
import struct
import subprocess
import sys

from .cases import Failure, skip

HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/aarch64-linux-gnu/asm/unistd.h",
           "/usr/include/asm-generic/unistd.h")
ALLOW, REFUSE, ABSENT = 0x7FFF0000, 0x00050001, 0x00050026

# Takes the filter from a file, and becomes another program.
INSTALL = """
import ctypes, os, struct, sys
rules = open(sys.argv[1], "rb").read()
libc, code = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(rules)
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rules) // 8, ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[2], sys.argv[2:])
"""


def numbers():
    """System calls with their numbers on this machine."""
    for header in HEADERS:
        if os.path.exists(header):
            text = pathlib.Path(header).read_text()
            found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.M)
            return {name: int(number) for name, number in found}
    skip("there are no headers of the kernel")


def members(name):
    """The system calls of a name, or of a group that begins with '@'."""
    if not name.startswith("@"):
        return {name}
    done = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    inner = [line for line in lines[1:] if line and not line.startswith("#")]
    return set().union(*(members(line) for line in inner))


def allowed(unit):
    """The system calls that a unit allows."""
    calls = set()
    lines = re.findall(r"^SystemCallFilter=(.*)$", pathlib.Path(unit).read_text(), re.M)
    if not lines or lines[0].startswith("~"):
        raise Failure(f"{unit} has no list of system calls that are allowed")
    for line in lines:
        names = set().union(*(members(name) for name in line.removeprefix("~").split()))
        calls = calls - names if line.startswith("~") else calls | names
    return calls


def within(box, unit):
    """The beginning of a command whose program gets the filter of a unit."""
    known, calls = numbers(), allowed(unit)
    rules = [(0x20, 0, 0, 0)]
    for name, number in known.items():
        # Each is compared for itself: a jump reaches no further than 255 rules.
        rules += [(0x15, 0, 1, number), (0x06, 0, 0, ALLOW if name in calls else REFUSE)]
    # Calls that are newer than the headers are absent, as systemd has it.
    rules.append((0x06, 0, 0, ABSENT))
    path = box.path("filter")
    with open(path, "wb") as file:
        file.write(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    return [sys.executable, "-c", INSTALL, path]
