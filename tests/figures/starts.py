"""How long a stopped volume takes to start on a modelled disk of 7,200 rpm, by what is known of the time since it was served."""

import os
import re
import statistics

from harness import *

SIZE, CACHE, CACHED = 64 * GIB, 4 * GIB, 2 * GIB
# Blocks that are cached last, all over the disk.
SCATTERED = 3000
ROUNDS = 7


def took(daemon, seen):
    """The milliseconds of the last start, by the log; lines up to `seen` are those of earlier ones."""

    def logged():
        lines = [line for line in daemon.log().splitlines() if 'done' in line and 'verb="start"' in line]
        return lines if len(lines) > seen else None

    # The answer may come before the line.
    lines = wait_for(logged, "the start is logged")
    value, unit = re.search(r"took=([\d.]+)(ms|µs|s)\b", lines[-1]).groups()
    return float(value) * {"s": 1000, "ms": 1, "µs": 0.001}[unit], len(lines)


@test
def volumes_start_on_a_disk(box):
    daemon = box.daemon()
    path = box.file("origin", SIZE)
    # Four partitions, whose starts are compared.
    box.run("bash", "-c", f"printf 'label: gpt\\n,15G\\n,15G\\n,15G\\n,15G\\n' | sfdisk --quiet {path}")
    uri = daemon.create("v", box.file("cache", CACHE), f"hdd7200:{path}", "--set", "sequential_cutoff=0")
    fio = ["fio", "--name=fill", "--ioengine=nbd", f"--uri={uri}", "--output-format=terse"]
    # From the first partition on: the table of partitions stays.
    box.run(*fio, "--rw=write", "--bs=256k", f"--offset={GIB}", f"--size={CACHED}", "--iodepth=8", patience=1200)
    daemon.cli("flush", "v", patience=1200)
    box.run(
        *fio, "--rw=randread", "--bs=4k", f"--offset={GIB}", f"--size={SIZE - 2 * GIB}", f"--number_ios={SCATTERED}", "--iodepth=32", patience=1200
    )  # fmt: skip
    daemon.cli("flush", "v", patience=1200)
    print(f"     {daemon.show('v')['blocks']['cached']} blocks are cached")
    seen = 0

    def stopped(change):
        def start():
            daemon.cli("stop", "v", patience=600)
            change()
            daemon.cli("start", "v", patience=600)

        return start

    def killed():
        daemon.kill()
        daemon.start()

    def doubted():
        os.chmod(path, 0o600 if os.stat(path).st_mode & 0o077 else 0o644)

    steps = {
        "nothing has happened": stopped(lambda: None),
        "chmod: content is compared": stopped(doubted),
        "killed": killed,
    }
    for what, start in steps.items():
        taken, found = [], None
        for _ in range(ROUNDS):
            start()
            milliseconds, seen = took(daemon, seen)
            taken.append(milliseconds)
            found = daemon.show("v")["origin"].get("check")
        said = f"{found['found']}, {found['compared']} blocks compared" if found else "samples"
        print(f"     {what:<32} {statistics.median(taken):8.0f} ms [{min(taken):.0f}, {max(taken):.0f}]  {said}")
    if "--verify" in box.run(os.environ["FOREBAY"], "start", "--help").stdout:
        daemon.cli("stop", "v", patience=600)
        daemon.cli("start", "v", "--verify", patience=1200)
        print(f"     {'--verify':<32} {took(daemon, seen)[0]:8.0f} ms  {daemon.show('v')['origin']['check']['compared']} blocks compared")


main()
