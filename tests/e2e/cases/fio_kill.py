"""What fio has flushed survives a SIGKILL of the daemon, under load and more than once."""

from harness import *

WRITE = ["--rw=randwrite", "--verify=crc32c", "--do_verify=0", "--fsync=32", "--end_fsync=1"]
VERIFY = ["--rw=randwrite", "--verify=crc32c", "--verify_only", "--verify_fatal=1"]


def kill_under_load(box, daemon, name):
    """Writes, kills and verifies, three times, on a volume of half a gigabyte."""
    uri = daemon.uri(name)
    for round in range(3):
        area = [f"--offset={64 * round}m", f"--randseed={round}"]
        box.fio(uri, *WRITE, *area)
        load = box.start_fio(
            uri, "--rw=randrw", "--offset=256m", "--time_based", "--runtime=60", "--fsync=50"
        )
        try:
            load.wait(1.5 + round)
        except Exception:
            pass
        check(load.poll() is None, "the load ended before the kill")
        daemon.kill()
        load.wait()
        daemon.start()
        uri = daemon.uri(name)
        for earlier in range(round + 1):
            area = [f"--offset={64 * earlier}m", f"--randseed={earlier}"]
            box.fio(uri, *VERIFY, *area)


@test
def flushed_data_survives_a_kill_under_load(box):
    need("fio")
    daemon = box.daemon()
    cache, origin = box.file("cache", 256 * MIB), box.file("origin", 512 * MIB)
    daemon.create("v", cache, origin)
    kill_under_load(box, daemon, "v")


@test
def flushed_data_survives_it_with_deferred_writes(box):
    need("fio")
    daemon = box.daemon()
    # Space is scarce under this load, and data is written down early as well.
    deferred = ["--ram", "32M", "--durability", "deferred", "--defer", "500ms"]
    cache, origin = box.file("cache", 256 * MIB), box.file("origin", 512 * MIB)
    daemon.create("v", cache, origin, *deferred)
    kill_under_load(box, daemon, "v")
    daemon.cli("delete", "v")
    daemon.cli("create", "w", "-p", box.file("other", 512 * MIB), *deferred)
    kill_under_load(box, daemon, "w")


@test
def jobs_of_every_block_size_verify_side_by_side(box):
    """Sectors, blocks and large requests at once, several times the size of the cache."""
    need("fio")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 32 * MIB), box.file("origin", 256 * MIB))
    job = [
        "--ioengine=nbd", f"--uri={uri}", "--iodepth=16", "--rw=randrw", "--verify=crc32c",
        "--verify_backlog=256", "--verify_fatal=1", "--fsync=64", "--output-format=terse",
    ]  # fmt: skip
    command = ["fio"]
    for number, (block, size) in enumerate((("512", "8m"), ("4k", "48m"), ("64k", "60m"), ("1m", "60m"))):
        # The second starts in the middle of a cached block.
        shift = 64 * MIB * number + (512 if block == "4k" else 0)
        command += [f"--name=b{block}", *job, f"--bs={block}", f"--size={size}", f"--offset={shift}"]
    box.run(*command, cwd=box.dir)
    daemon.cli("flush", "v")
    check_equal(daemon.dirty("v"), 0, "dirty blocks after a flush")


main()
