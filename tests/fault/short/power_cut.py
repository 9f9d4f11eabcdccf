"""Power cuts: devices with volatile caches lose what was not synced when the daemon is killed."""

from harness import *

BLOCKS = 1024
SETTINGS = ("--set", "idle=30ms", "--set", "commit_interval=50ms")
VICTIMS = (("cache", "origin"), ("cache",), ("origin",))


def cut(box, mode, *more):
    for victims in VICTIMS:
        name = "+".join(victims)
        daemon = box.daemon(name=f"{name}d")
        disks = {role: Disk(box, f"{name}.{role}", 32 * MIB) for role in ("cache", "origin")}
        for role in victims:
            disks[role].faults("volatile")
        uri = daemon.create("v", disks["cache"].name, disks["origin"].name, "--mode", mode, *SETTINGS, *more)
        recorder = Survivor(uri, connections=2, blocks=BLOCKS, seed=3)
        for round in range(4):
            for _ in range(3):
                recorder.write(150)
                check(recorder.try_flush(), "a flush failed")
            recorder.write(round * 40)
            recorder.forget()
            daemon.kill()
            daemon.start()
            report = daemon.show("v")
            what = f"{mode}, power of {name} cut in round {round}"
            check_equal(report["state"], "running", f"{what}: the state")
            check_equal(report["errors"]["lost"], [], f"{what}: what is lost")
            uri = report["export"]["nbd"]
            recorder.verify(uri)
            recorder.reconnect(uri)
        check_equal(verb(daemon, "delete", "--force", "v").returncode, 0, f"{mode}, {name}: the exit code of delete")
        recorder.forget()
        daemon.kill()
        for block in range(BLOCKS):
            version = read_stamp(disks["origin"].read(block * BLOCK, BLOCK), block, recorder.seed)
            check(
                recorder.acked[block] <= version <= recorder.submitted[block],
                f"{mode}, {name}: after a delete block {block} has version {version} on the origin",
            )


@test
def writeback(box):
    cut(box, "wb")


@test
def ordered_writeback(box):
    cut(box, "wb", "--ordered")


@test
def writethrough(box):
    cut(box, "wt")


@test
def writearound(box):
    cut(box, "wa")


@test
def writeonly(box):
    cut(box, "wo")


main()
