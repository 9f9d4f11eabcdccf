"""Volumes as block devices of this machine: export=fuse, a file of the daemon and a loop device on it."""

import os
import pathlib
import stat
import subprocess
import time

from harness import *
from harness.devices import attached, attached_by, backing, exported, let_go, mount
from harness.faults import Disk, wait_for

FILESYSTEMS = {
    "ext4": (["mkfs.ext4", "-q", "-F"], ["e2fsck", "-f", "-n"]),
    "xfs": (["mkfs.xfs", "-q", "-f"], ["xfs_repair", "-n"]),
    "btrfs": (["mkfs.btrfs", "-q", "-f"], ["btrfs", "check"]),
}


def queue(device, name):
    return int(pathlib.Path(f"/sys/block/{os.path.basename(device)}/queue/{name}").read_text())


def fill(point):
    """Writes files until there is no room; gives their content by name."""
    written = {}
    for number in range(10000):
        content = random_bytes(number, 4 * MIB + number)
        try:
            with open(f"{point}/fill{number}", "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            check_equal(error.errno, 28, "the error of a full filesystem")
            os.unlink(f"{point}/fill{number}")
            return written
        written[f"fill{number}"] = content
    raise Failure("the filesystem is never full")


def compare(point, written):
    for name, content in written.items():
        with open(f"{point}/{name}", "rb") as file:
            check(file.read() == content, f"{name} differs")


def stored(path):
    return os.stat(path).st_blocks * 512


def ended(daemon, *command):
    """Takes a device away as soon as no case beside this one has a copy of its mount, in a namespace of its own."""
    wait_for(lambda: daemon.cli(*command, expect=None).returncode == 0, f"nothing is in the way of {command}")


def repaired(box, repair, device):
    """Checks a filesystem. Programs that look at all devices, as those of other tests, hold the device for a moment."""
    for _ in range(100):
        said = subprocess.run([*repair, device], capture_output=True, text=True, check=False)
        if "busy" not in said.stderr:
            break
        time.sleep(0.05)
    check(said.returncode == 0, f"{repair[0]}: {said.stdout}{said.stderr}")


def filesystem(box, kind):
    make, repair = FILESYSTEMS[kind]
    need(make[0], repair[0], "fio", "fstrim")
    daemon, device = exported(box)
    box.run(*make, device)
    point = mount(box, kind, device)
    box.run(
        "fio", "--name=verify", f"--directory={point}", "--rw=randwrite", "--bs=4k", "--size=48m",
        "--ioengine=libaio", "--iodepth=16", "--direct=1", "--fsync=64", "--verify=crc32c",
        "--do_verify=1", "--randseed=5", "--output-format=terse", cwd=box.dir,
    )  # fmt: skip
    box.run("rm", "-r", *[str(path) for path in pathlib.Path(point).glob("verify*")])
    written = fill(point)
    check(len(written) > 20, f"only {len(written)} files fitted")
    box.run("umount", point)
    repaired(box, repair, device)
    mount(box, kind, device)
    compare(point, written)
    for name in list(written)[::2]:
        os.unlink(f"{point}/{name}")
        del written[name]
    box.run("sync")
    daemon.cli("flush", "v")
    before = stored(box.path("origin-v"))
    trimmed = box.run("fstrim", "-v", point).stdout
    check("0 B" not in trimmed, f"fstrim: {trimmed.strip()}")
    after = stored(box.path("origin-v"))
    check(after < before - 50 * MIB, f"fstrim freed {before - after} bytes of the origin")
    compare(point, written)
    check(daemon.show("v")["requests"]["flushes"] > 0, "no flush has reached the volume")
    box.run("umount", point)
    repaired(box, repair, device)
    ended(daemon, "stop", "v")
    # Programs that look at all devices, as those of other tests, hold it for a moment longer.
    wait_for(lambda: let_go(box, device), "the device of a stopped volume has no file")
    daemon.cli("start", "v")
    device = daemon.show("v")["export"]["device"]
    mount(box, kind, device)
    compare(point, written)
    box.run("umount", point)
    daemon.cli("flush", "v")
    ended(daemon, "delete", "v")
    # Without the cache the origin is a whole filesystem as well.
    origin = box.run("losetup", "--find", "--show", box.path("origin-v")).stdout.strip()
    box.at_end(box.run, "losetup", "-d", origin)
    box.run(*repair, origin)


@test
def ext4_is_filled_trimmed_and_found_again(box):
    filesystem(box, "ext4")


@test
def xfs_is_filled_trimmed_and_found_again(box):
    filesystem(box, "xfs")


@test
def btrfs_is_filled_trimmed_and_found_again(box):
    filesystem(box, "btrfs")


@test
def the_device_is_the_volume(box):
    daemon, device = exported(box, size=64 * MIB + 512)
    report = daemon.show("v")["export"]
    check_equal(report["device"], device, "the device in the report")
    if report["link"]:
        check_equal(os.path.realpath(report["link"]), device, "the target of the link")
    check(device in daemon.cli("show", "v").stdout, "show has no device")
    size = int(box.run("blockdev", "--getsize64", device).stdout)
    check_equal(size, 64 * MIB + 512, "the size of the device")
    for name in ("logical_block_size", "physical_block_size"):
        check_equal(queue(device, name), 512, name)
    check(queue(device, "discard_max_bytes") > 0, "the device has no discard")
    check(queue(device, "write_zeroes_max_bytes") > 0, "the device has no write zeroes")
    data = random_bytes(1, MIB)
    client = connect(report["nbd"])
    client.pwrite(data, 4096)
    file = os.open(device, os.O_RDWR | os.O_DIRECT)
    try:
        check_equal(read_direct(file, MIB, 4096), data, "the data of the other front end")
    finally:
        os.close(file)
    # Any part of the file below can be read as well, but only whole sectors written.
    with open(backing(device), "r+b", buffering=0) as file:
        file.seek(4097)
        check_equal(file.read(1000), data[1:1001], "a part of a sector")
        file.seek(0, os.SEEK_END)
        check_equal(file.tell(), size, "the size of the file")
        file.seek(1)
        try:
            file.write(b"x" * 512)
            raise Failure("a part of a sector was written")
        except OSError as error:
            check_equal(error.errno, 22, "the error of a part of a sector")
    flushes = daemon.show("v")["requests"]["flushes"]
    box.run("blkdiscard", "-z", "-o", "0", "-l", str(MIB), device)
    box.run("dd", "if=/dev/urandom", f"of={device}", "bs=4k", "count=1", "seek=300", "conv=fsync")
    check(daemon.show("v")["requests"]["flushes"] > flushes, "the sync of the device is no flush")
    zeroes = bytes(client.pread(MIB, 0))
    check_equal(zeroes, bytes(MIB), "what was overwritten with zeroes")
    check_equal(bytes(client.pread(4096, MIB)), data[-4096:], "what was not")
    client.shutdown()


def read_direct(file, size, offset):
    """Reads into memory that is aligned."""
    import mmap

    with mmap.mmap(-1, size) as memory:
        check_equal(os.preadv(file, [memory], offset), size, "bytes that were read")
        return bytes(memory)


@test
def an_export_is_set_and_removed_while_the_volume_is_used(box):
    daemon, device = exported(box)
    uri = daemon.uri("v")
    client = connect(uri)
    client.pwrite(b"\x11" * 4096, 0)
    daemon.cli("set", "v", "export=nbd")
    check_equal(daemon.show("v")["export"]["device"], None, "the device without an export")
    check(let_go(box, device), f"the device still has {backing(device)}")
    check_equal(bytes(client.pread(4096, 0)), b"\x11" * 4096, "the data")
    daemon.cli("set", "v", "export=fuse")
    check_equal(daemon.show("v")["settings"]["export"], "nbd,fuse", "the setting")
    device = daemon.show("v")["export"]["device"]
    with open(device, "rb") as file:
        check_equal(file.read(4096), b"\x11" * 4096, "the data of the new device")
        refused = daemon.cli("set", "v", "export=nbd", expect=3).stderr
        check(str(os.getpid()) in refused, f"the refusal does not name this process: {refused}")
    check_equal(daemon.show("v")["settings"]["export"], "nbd,fuse", "the setting after the refusal")
    # The device that is there is good enough for auto.
    daemon.cli("set", "v", "export=auto")
    check_equal(daemon.show("v")["export"]["device"], device, "the device of auto")
    daemon.cli("set", "v", "export=fuse")
    check_equal(daemon.show("v")["export"]["device"], device, "the device after auto")
    daemon.cli("set", "v", "export=loop", expect=2)
    daemon.cli("set", "v", "export=nbd")
    client.shutdown()


@test
def a_device_in_use_is_not_removed_without_force(box):
    need("mkfs.ext4")
    daemon, device = exported(box)
    box.run("mkfs.ext4", "-q", "-F", device)
    point = mount(box, "ext4", device)
    for command in (["stop", "v"], ["delete", "v"], ["delete", "--discard-dirty", "v"], ["set", "v", "export=nbd"]):
        refused = daemon.cli(*command, expect=3).stderr
        check(point in refused and device in refused, f"{command}: {refused.strip()}")
        check_equal(daemon.show("v")["state"], "running", "the state after a refusal")
    with open(f"{point}/file", "wb") as file:
        file.write(b"x" * MIB)
    daemon.cli("stop", "--force", "v")
    check_equal(daemon.show("v")["state"], "stopped", "the state after a stop by force")
    box.run("umount", "-l", point)
    daemon.cli("start", "v")
    device = daemon.show("v")["export"]["device"]
    mount(box, "ext4", device)
    # What was in memory was written before the device was cut off.
    with open(f"{point}/file", "rb") as file:
        check_equal(file.read(), b"x" * MIB, "the file")
    box.run("umount", point)


@test
def users_of_a_partition_and_in_other_namespaces_are_named(box):
    need("mkfs.ext4", "addpart", "delpart", "unshare")
    daemon, device = exported(box)
    box.run("mkfs.ext4", "-q", "-F", device)
    # In a view of its own, as a container has it.
    point, name = box.path("elsewhere"), os.path.basename(device)
    os.makedirs(point)
    hidden = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c",
         f"mount {device} {point} && echo mounted && read end"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    box.at_end(hidden.kill)
    check_equal(hidden.stdout.readline(), "mounted\n", "what the mount in a namespace said")
    refused = daemon.cli("stop", "v", expect=3).stderr
    check(f"mounted on {point} in the view of process" in refused, f"the refusal: {refused.strip()}")
    hidden.communicate("end\n")

    made = box.run("addpart", device, "1", "2048", "65536", expect=None)
    if made.returncode != 0:
        skip(f"loop devices have no partitions here: {made.stderr.strip()}")
    # It would outlive the device: this one is not scanned for partitions.
    box.at_end(box.run, "delpart", device, "1")
    partition = f"{device}p1"
    for _ in range(100):
        if os.path.exists(partition):
            break
        time.sleep(0.1)
    else:
        # Nobody makes nodes for devices here.
        number = pathlib.Path(f"/sys/class/block/{name}p1/dev").read_text().strip().split(":")
        os.mknod(partition, 0o600 | stat.S_IFBLK, os.makedev(*map(int, number)))
        box.at_end(os.unlink, partition)
    box.run("mkfs.ext4", "-q", "-F", partition)
    point = mount(box, "ext4", partition)
    refused = daemon.cli("stop", "v", expect=3).stderr
    check(f"mounted on {point} (partition {name}p1)" in refused, f"the refusal: {refused.strip()}")
    box.run("umount", point)
    with open(partition, "rb"):
        refused = daemon.cli("stop", "v", expect=3).stderr
    check(f"(python3) (partition {name}p1)" in refused, f"the refusal: {refused.strip()}")
    box.run("delpart", device, "1")
    daemon.cli("stop", "v")


@test
def a_daemon_that_ends_removes_its_devices(box):
    # Daemons of other cases make links with the names of their volumes.
    name = f"v{os.urandom(4).hex()}"
    daemon, device = exported(box, name)
    link = daemon.show(name)["export"]["link"]
    code, _ = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check(let_go(box, device), f"the device still has {backing(device)}")
    check(not link or not os.path.lexists(link), "the link is left")
    check(str(box.dir) not in pathlib.Path("/proc/mounts").read_text(), "a mount is left")
    daemon.start()
    check(backing(daemon.show(name)["export"]["device"]), "no device after a restart")


@test
def a_daemon_that_ends_cuts_off_what_is_mounted(box):
    need("mkfs.ext4", "e2fsck")
    daemon, device = exported(box)
    box.run("mkfs.ext4", "-q", "-F", device)
    point = mount(box, "ext4", device)
    with open(f"{point}/file", "wb") as file:
        file.write(b"x" * MIB)
    code, seconds = daemon.terminate()
    check_equal(code, 0, "the exit code")
    check(seconds < 30, f"the end took {seconds:.0f} s")
    check(point in daemon.log(), "the log does not name the mount")
    daemon.start()
    again = daemon.show("v")["export"]["device"]
    check(again != device, "the new device is the one that is still mounted")
    box.run("umount", "-l", point)
    mount(box, "ext4", again)
    with open(f"{point}/file", "rb") as file:
        check_equal(file.read(), b"x" * MIB, "what was in memory when the daemon ended")
    box.run("umount", point)
    # A case beside this one may have a copy of the mount, in a namespace of its own.
    wait_for(lambda: let_go(box, device), "the old device has no file below it any more")


@test
def the_remains_of_a_service_are_found(box):
    need("unshare")
    before = attached()
    daemon, device = exported(box)
    daemon.terminate()
    # A service has a mount namespace of its own, which is gone when it is started again.
    plain = daemon.command
    daemon.command = lambda *rest: ["unshare", "--mount", "--propagation", "slave", *plain(*rest)]
    for _ in range(3):
        daemon.start()
        device = daemon.show("v")["export"]["device"]
        with open(device, "rb") as file:
            check_equal(len(file.read(4096)), 4096, "bytes of the device")
        daemon.kill()
    daemon.start()
    device = daemon.show("v")["export"]["device"]
    more = [name for name in attached() - before - {os.path.basename(device)} if not let_go(box, name)]
    check(not more, f"devices of earlier daemons: {more}")
    daemon.terminate()


def hanging(box):
    """A volume whose origin hangs, with a process that waits for it."""
    daemon, _ = exported(box, "other")
    disk = Disk(box, "bad", 64 * MIB)
    device = daemon.create("h", box.file("cache-h", 64 * MIB), disk.name, "--export", "fuse")
    disk.faults("hang read")
    reader = box.spawn(
        "dd", f"if={device}", "of=/dev/null", "bs=4k", "count=1", "skip=9000", "iflag=direct",
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(1)
    check(reader.poll() is None, "the read did not wait")
    refused = daemon.cli("stop", "h", expect=3).stderr
    check(f"{reader.pid} (dd)" in refused, f"the refusal: {refused.strip()}")
    daemon.cli("stop", "other")
    daemon.cli("start", "other")
    return daemon, disk, reader


@test
def a_reader_of_a_hung_origin_gets_an_error_when_the_daemon_ends(box):
    daemon, _, reader = hanging(box)
    _, seconds = daemon.terminate()
    check(seconds < 70, f"the end took {seconds:.0f} s")
    check(reader.wait(30) != 0, "the read succeeded")


@test
def a_reader_of_a_hung_origin_gets_an_error_when_the_daemon_is_killed(box):
    daemon, disk, reader = hanging(box)
    daemon.kill()
    check(reader.wait(30) != 0, "the read succeeded")
    disk.heal()
    daemon.start()
    for name in ("h", "other"):
        with open(daemon.show(name)["export"]["device"], "rb") as file:
            check_equal(len(file.read(4096)), 4096, f"bytes of {name}")


@test
def kills_at_any_moment_of_publishing_leave_nothing_that_blocks(box):
    daemon, _ = exported(box)
    for number in range(25):
        daemon.cli("set", "v", "export=nbd")
        setting = box.spawn(
            daemon.binary, "--socket", daemon.socket, "set", "v", "export=fuse",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(number * 0.001)
        daemon.kill()
        setting.wait(30)
        daemon.start()
        daemon.cli("set", "v", "export=fuse")
        with open(daemon.show("v")["export"]["device"], "rb") as file:
            check_equal(len(file.read(4096)), 4096, "bytes of the device")
    check_equal(len(attached_by(box)), 1, "loop devices of this daemon")


@test
def a_killed_daemon_brings_the_device_back(box):
    need("mkfs.ext4", "e2fsck")
    daemon, device = exported(box)
    box.run("mkfs.ext4", "-q", "-F", device)
    point = mount(box, "ext4", device)
    content = random_bytes(3, 8 * MIB)
    with open(f"{point}/kept", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    daemon.kill()
    # The mounted filesystem gets errors from now on.
    try:
        with open(f"{point}/lost", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        raise Failure("a write without a daemon succeeded")
    except OSError as error:
        check(error.errno in (5, 30), f"the error without a daemon: {error}")
    daemon.start()
    again = daemon.show("v")["export"]["device"]
    check(backing(again), "no device after a restart")
    box.run("umount", "-l", point)
    box.run("e2fsck", "-f", "-p", again, expect=None)
    point = mount(box, "ext4", again, "again")
    with open(f"{point}/kept", "rb") as file:
        check(file.read() == content, "the file differs")
    box.run("umount", point)
    for _ in range(3):
        daemon.kill()
        daemon.start()
    again = daemon.show("v")["export"]["device"]
    check(backing(again), "no device after three more crashes")
    check_equal(len(attached_by(box)), 1, "loop devices of this daemon")
    daemon.cli("stop", "v")


@test
def writes_survive_a_crash_as_soon_as_they_are_synced(box):
    need("fio")
    daemon, device = exported(box)
    load = box.spawn(
        "fio", "--name=load", f"--filename={device}", "--rw=randrw", "--bs=4k", "--size=64m",
        "--ioengine=libaio", "--iodepth=32", "--direct=1", "--time_based", "--runtime=60",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=box.dir,
    )  # fmt: skip
    time.sleep(2)
    daemon.kill()
    load.wait(30)
    daemon.start()
    check(backing(daemon.show("v")["export"]["device"]), "no device after a crash under load")


@test
def two_volumes_have_two_devices(box):
    daemon, one = exported(box, "one")
    _, two = exported(box, "two", daemon=daemon)
    check(one != two, "the devices are the same")
    for number, device in enumerate((one, two)):
        with open(device, "r+b") as file:
            file.write(bytes([number + 1]) * MIB)
            file.flush()
            os.fsync(file.fileno())
    for number, name in enumerate(("one", "two")):
        client = connect(daemon.uri(name))
        check_equal(bytes(client.pread(MIB, 0)), bytes([number + 1]) * MIB, f"the data of {name}")
        client.shutdown()
    daemon.cli("stop", "one")
    with open(two, "rb") as file:
        check_equal(file.read(4096), b"\x02" * 4096, "the other volume")


@test
def a_daemon_without_privileges_refuses_and_changes_nothing(box):
    need("setpriv")
    if os.geteuid() != 0:
        skip("privileges can be dropped by root only")
    daemon = box.daemon()
    daemon.terminate()
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *daemon.command()]
    with open(daemon.log_path, "ab") as log:
        daemon.process = box.spawn(*command, stdout=log, stderr=log)
    end = time.monotonic() + 20
    while daemon.cli("list", expect=None).returncode and time.monotonic() < end:
        time.sleep(0.1)
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    before = digest(cache, origin)
    refused = daemon.create_run("v", cache, origin, "--export", "fuse", expect=2).stderr
    check("CAP_SYS_ADMIN" in refused, f"the refusal: {refused.strip()}")
    check_equal(digest(cache, origin), before, "the devices")
    daemon.create("v", cache, origin)
    refused = daemon.cli("set", "v", "export=fuse", expect=2).stderr
    check("CAP_SYS_ADMIN" in refused, f"the refusal: {refused.strip()}")


if __name__ == "__main__":
    main()
