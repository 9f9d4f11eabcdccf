"""Commands that take long: begun, cancelled, and waited for."""

import json
import signal
import subprocess
import time

from .cases import check, check_equal
from .faults import wait_for
from .http_unix import UnixConnection


def begin(box, daemon, *words):
    """Begins a command, to be cancelled."""
    command = [daemon.binary, "--socket", daemon.socket, *words]
    return box.spawn(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def handles_sigint(pid):
    with open(f"/proc/{pid}/status") as status:
        caught = next(line for line in status if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1 == 1


def cancel(command, expect=1):
    """Cancels a command as Ctrl-C does, once it waits for its operation. Exit code 5: it comes too late."""
    wait_for(lambda: handles_sigint(command.pid), "it waits")
    # It has reached the device by then.
    time.sleep(1)
    command.send_signal(signal.SIGINT)
    said = command.communicate(timeout=60)[1]
    check_equal(command.returncode, expect, f"the exit code of a command that was cancelled: {said}")
    check("cancelled" in said if expect == 1 else "has begun" in said, said)


def operations(daemon):
    """The verbs of the operations in progress."""
    connection = UnixConnection(daemon.socket)
    connection.request("GET", "/v1/operations")
    all = json.loads(connection.getresponse().read())["operations"]
    connection.close()
    return [operation["verb"] for operation in all if operation["state"] == "running"]


def ended(daemon, verb):
    wait_for(lambda: verb not in operations(daemon), f"'{verb}' has ended")
