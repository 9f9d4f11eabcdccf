"""Names of devices that lead to other devices after a boot: links, and numbers of loop devices."""

import os

from harness import *


def attach(box, file):
    need("losetup")
    if os.geteuid() != 0:
        skip("loop devices take root")
    done = box.run("losetup", "--show", "-f", file, expect=None)
    if done.returncode:
        skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    box.at_end(box.run, "losetup", "-d", device)
    return device


def lead(link, device):
    """Has a link lead to a device, as udev does."""
    if os.path.islink(link):
        os.unlink(link)
    os.symlink(device, link)


@test
def a_link_to_another_disk_is_noticed_even_if_both_are_blank(box):
    for content in (b"", b"something" * 1000):
        name = f"v{len(content)}"
        right, wrong = box.file(f"right-{name}", 32 * MIB, content), box.file(f"wrong-{name}", 32 * MIB, content)
        one, two, link = attach(box, right), attach(box, wrong), box.path(f"by-id-{name}")
        lead(link, one)
        daemon = box.daemon(name=name)
        cache = box.file(f"cache-{name}", 64 * MIB)
        client = connect(daemon.create(name, cache, link, "--set", "idle=0"))
        client.pwrite(b"x" * 65536, 16 * MIB)
        client.flush()
        client.shutdown()
        check_equal(daemon.terminate()[0], 0, "the exit code")
        if content:
            # Its content proves that it is the same, wherever it is now.
            lead(link, two)
            daemon.start()
            check_equal(daemon.show(name)["state"], "running", "the state on a copy")
            daemon.cli("delete", name)
            continue
        before = digest(wrong)
        lead(link, two)
        daemon.start()
        check_equal(daemon.show(name)["state"], "failed", "the state on another blank disk")
        done = daemon.cli("start", name, expect=4)
        check("is not the one that" in done.stderr, done.stderr)
        check_equal(digest(wrong), before, "the other disk")
        # Right again, also under another number.
        lead(link, attach(box, right))
        box.run("losetup", "-d", one)
        daemon.cli("start", name)
        check_equal(bytes(connect(daemon.uri(name)).pread(65536, 16 * MIB)), b"x" * 65536, "data")
        daemon.cli("delete", name)


main()
