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


@test
def an_origin_that_was_exchanged_is_noticed_without_a_cache_device(box):
    """A client of a volume who may write to the directory of its origin must not choose which file root opens."""
    for number, arguments in enumerate((("--ram", "4M"), ("--cache", "ram:64M"))):
        name = f"v{number}"
        origin, secret = box.file(f"origin{number}", 16 * MIB), box.file(f"secret{number}", 32 * MIB, b"secret" * 100)
        daemon = box.daemon(name=name)
        daemon.cli("create", name, "--origin", origin, *arguments)
        daemon.cli("stop", name)
        kept, before = box.path(f"kept{number}"), digest(secret)

        def exchange():
            os.rename(origin, kept)
            os.symlink(secret, origin)

        def back():
            os.unlink(origin)
            os.rename(kept, origin)

        exchange()
        done = daemon.cli("start", name, expect=3)
        check("is not the one that" in done.stderr and "--force" in done.stderr, done.stderr)
        back()
        daemon.cli("start", name)
        check_equal(daemon.terminate()[0], 0, "the exit code")
        exchange()
        daemon.start()
        check_equal(daemon.show(name)["state"], "failed", "the state after a start of the daemon")
        check_equal(digest(secret), before, "the other file")
        # The operator says that it is meant; from then on it is the one.
        daemon.cli("start", "--force", name)
        check_equal(bytes(connect(daemon.uri(name)).pread(512, 0))[:6], b"secret", "the content")
        daemon.restart()
        check_equal(daemon.show(name)["state"], "running", "the state with the new one")
        daemon.cli("stop", name)
        back()
        daemon.cli("start", name, expect=3)
        daemon.cli("delete", name)


main()
