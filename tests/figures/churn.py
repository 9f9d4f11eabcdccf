"""Volumes that come and go beside one that is served: time, memory and state as their number grows."""

import json
import os
import pathlib
import time

from harness import *
from harness.http_unix import UnixConnection

ROUNDS = int(os.environ.get("FOREBAY_ROUNDS", "100000"))
# So many lines are printed.
LINES = 10
# Each so many a volume is written to, so that its deletion has something to write back or to discard.
WRITTEN = 20
SIZE = 512 * MIB


def ask(connection, path, body):
    """One verb of the admin API, to its end; fails unless it succeeds."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    while True:
        answer = connection.getresponse()
        said = json.loads(answer.read())
        check(answer.status < 300 and not said.get("error"), f"{path}: {answer.status} {said}")
        if answer.status != 202:
            return
        time.sleep(0.005)
        connection.request("GET", f"/v1/operations/{said['id']}")


@test
def volumes_come_and_go(box):
    daemon, cache = box.daemon(), box.file("cache", 256 * MIB)
    origins = [box.file(f"o{number}", SIZE + number * 64 * MIB) for number in range(3)]
    kept = Recorder(daemon.create("kept", cache, box.file("kept", 64 * MIB)), connections=1, blocks=2000)
    kept.write(4000)
    connection = UnixConnection(daemon.socket)
    begun, used = time.monotonic(), daemon.processor()
    print(f"     {0:>7} volumes: {daemon.resident() >> 20} MiB resident")
    for number in range(ROUNDS):
        name = f"w{number}"
        ask(connection, "/v1/volumes", {"name": name, "cache": cache, "origin": origins[number % 3]})
        written = number % WRITTEN == 0
        if written:
            client = connect(daemon.uri(name))
            for block in range(16):
                client.pwrite(stamp(block, number + 1), block * 64 * KIB)
            client.flush()
            client.shutdown()
            kept.write(5)
            kept.settle()
        ask(connection, f"/v1/volumes/{name}/delete", {"discard_dirty": number % (2 * WRITTEN) == 0})
        if written and number % (2 * WRITTEN):
            with open(origins[number % 3], "rb") as file:
                for block in range(16):
                    file.seek(block * 64 * KIB)
                    check_equal(read_stamp(file.read(BLOCK), block), number + 1, f"the origin after {name}")
        if (number + 1) % max(1, ROUNDS // LINES) == 0:
            # Without the events, which have a limit of their own.
            files = [path for path in pathlib.Path(daemon.state).rglob("*") if path.is_file() and "events" not in path.name]
            state = sum(path.stat().st_size for path in files)
            took, used_now = time.monotonic() - begun, daemon.processor()
            each = (used_now - used) / (number + 1) * 1e3
            print(
                f"     {number + 1:>7} volumes: {daemon.resident() >> 20} MiB resident, {state >> 10} KiB of state, "
                f"{took:.0f} s, {each:.2f} ms of CPU for each"
            )
    kept.verify(daemon.uri("kept"))


main()
