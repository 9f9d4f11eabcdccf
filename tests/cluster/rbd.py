"""Volumes on images of Ceph: that they work, and what they do when the cluster or the daemon fails."""

import os
import pathlib
import signal
import time

from harness import *
from harness.ceph import *

need_cluster()
CACHE = ",size=64M"


def settle(daemon, name="v"):
    """Writes everything back."""
    daemon.cli("flush", name)
    check_equal(daemon.dirty(name), 0, "dirty blocks")


def same(found, expected, what):
    """Fails unless two long byte strings are the same."""
    place = first_difference(bytes(found), expected)
    check(place is None, f"{what}: they differ from byte {place} on")


@test
def a_volume_on_an_image_works_in_every_mode_and_survives_a_kill(box):
    for number, arguments in enumerate((["--mode", "writeback"], ["--ordered"], ["--mode", "writethrough"])):
        image = Image(box, f"works{number}")
        daemon = box.daemon(name=f"d{number}")
        uri = daemon.create("v", box.path(f"cache{number}") + CACHE, image.origin, *arguments)
        check_equal(daemon.show("v")["origin"]["path"], image.origin, "the origin's name")
        check_equal(daemon.show("v")["origin"]["size"], 32 * MIB, "its size")
        client = connect(uri)
        content = bytearray(random_bytes(number, 8 * MIB))
        client.pwrite(content, 6 * MIB)
        client.pwrite(b"x" * 512, 7 * MIB - 512)
        content[MIB - 512 : MIB] = b"x" * 512
        client.zero(MIB + 512, 8 * MIB)
        content[2 * MIB : 3 * MIB + 512] = bytes(MIB + 512)
        client.flush()
        same(client.pread(8 * MIB, 6 * MIB), content, f"the volume with {arguments}")
        client.shutdown()
        daemon.kill()
        since = time.monotonic()
        daemon.start()
        wait_for(lambda daemon=daemon: daemon.show("v")["state"] == "running", "the volume is started", 60)
        print(f"     started again {time.monotonic() - since:.1f} s after a kill")
        client = connect(daemon.uri("v"))
        same(client.pread(8 * MIB, 6 * MIB), content, f"the volume after a kill with {arguments}")
        settle(daemon)
        same(image.content()[6 * MIB : 14 * MIB], content, f"the image with {arguments}")
        client.shutdown()
        check_equal(daemon.terminate()[0], 0, "exit code")
        check_equal(image.owner(), None, "the lock after an orderly stop")


@test
def fio_verifies_through_it_and_discards_free_space(box):
    need("fio")
    image = Image(box, "fio", 128 * MIB)
    daemon = box.daemon("--lanes", "2")
    uri = daemon.create("v", box.path("cache") + CACHE, image.origin)
    verify = ("--rw=randwrite", "--verify=crc32c", "--verify_state_save=0", "--fsync=64", "--size=96m")
    box.fio(uri, *verify)
    settle(daemon)
    daemon.cli("drop", "v")
    box.fio(uri, *verify, "--verify_only")
    used = image.used()
    check(used >= 90 * MIB, f"only {used} bytes of the image are in use")
    client = connect(uri)
    for place in range(0, 96, 16):
        client.trim(16 * MIB, place * MIB)
    client.flush()
    settle(daemon)
    check(image.used() < 8 * MIB, f"{image.used()} bytes are in use after a discard of everything")


@test
def an_object_store_that_is_killed_under_load_costs_nothing(box):
    image, store = Image(box, "killed"), Store(box)
    for mode in ("writeback", "writethrough"):
        daemon = box.daemon("--lanes", "2", name=f"d-{mode}")
        settings = ("--mode", mode, "--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
        uri = daemon.create("v", box.path(f"cache-{mode}") + CACHE, image.origin, *settings)
        recorder = Recorder(uri, blocks=4096, seed=len(mode))
        for number in range(3):
            recorder.write(200)
            recorder.flush()
            store.kill()
            for _ in range(40):
                recorder.start_write()
            time.sleep(1 + number)
            store.start()
        recorder.flush()
        recorder.settle()
        # A flush by an operator waits for an origin that does not answer for some seconds only.
        wait_for(lambda daemon=daemon: daemon.dirty("v") == 0, "the object store is found again", 120)
        settle(daemon)
        for client in [*recorder.clients, recorder.flusher]:
            client.shutdown()
        content = image.content()
        for block in range(recorder.blocks):
            data = content[block * BLOCK : (block + 1) * BLOCK]
            if recorder.acked[block]:
                check_equal(read_stamp(data, block, recorder.seed), recorder.acked[block], f"block {block}")
        daemon.cli("delete", "--force", "v")
        check_equal(daemon.terminate()[0], 0, "exit code")


@test
def requests_wait_no_longer_than_is_said_and_the_rest_is_served(box):
    image, store = Image(box, "waits"), Store(box)
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + CACHE, image.limit(3)))
    # Of an object that does not exist, no store has to be asked.
    client.pwrite(b"a" * BLOCK, 8 * MIB)
    settle(daemon)
    daemon.cli("drop", "v")
    client.pwrite(b"a" * BLOCK, 0)
    settle(daemon)
    box.at_end(store.go_on)
    store.stop()
    since = time.monotonic()
    check(attempt(client.pread, BLOCK, 8 * MIB), "a read without a cluster succeeds")
    waited = time.monotonic() - since
    check(2.5 < waited < 20, f"the read took {waited:.1f} s")
    check_equal(bytes(client.pread(BLOCK, 0)), b"a" * BLOCK, "a cached block")
    client.pwrite(b"b" * BLOCK, 0)
    client.flush()
    check("has not answered for 3 s" in daemon.log(), daemon.last_line())
    # Neither a start nor an end waits for ever.
    other = box.daemon(name="other")
    refused = other.create_run("w", box.path("w") + CACHE, image.limit(3), expect=None)
    check("do not answer" in refused.stderr, refused.stderr)
    store.go_on()
    wait_for(lambda: not attempt(client.pread, BLOCK, 8 * MIB), "the cluster is found again")
    settle(daemon)
    same(image.content()[:BLOCK], b"b" * BLOCK, "written back at last")


@test
def a_second_daemon_and_images_that_do_not_fit_are_refused(box):
    image = Image(box, "second")
    daemon, other = box.daemon(), box.daemon(name="other")
    daemon.create("v", box.path("cache") + CACHE, image.origin)
    since = time.monotonic()
    refused = other.create_run("v", box.path("other-cache") + CACHE, image.origin, expect=3)
    check("another client, at" in refused.stderr and "exclusive lock" in refused.stderr, refused.stderr)
    check(time.monotonic() - since < 10, "the refusal took long")
    refused = daemon.create_run("w", box.path("w") + CACHE, image.limit(9), expect=3)
    check("is the origin of volume 'v'" in refused.stderr, refused.stderr)
    plain = Image(box, "plain", 8 * MIB, "--image-feature", "layering")
    refused = other.create_run("w", box.path("w") + CACHE, plain.origin, expect=None)
    check("rbd feature enable rbd/plain exclusive-lock" in refused.stderr, refused.stderr)
    refused = other.create_run("w", "rbd:rbd/plain", box.file("o", 8 * MIB), expect=2)
    check("cannot be a cache device" in refused.stderr, refused.stderr)
    refused = other.create_run("w", box.path("w") + CACHE, "rbd:rbd", expect=2)
    check("rbd:POOL/IMAGE" in refused.stderr, refused.stderr)


@test
def images_count_as_memory_until_they_are_closed(box):
    daemon = box.daemon("--memory-limit", "256M")
    held = 16 * MIB
    refused = None
    for number in range(1, 256 // 16 + 1):
        image = Image(box, f"memory{number}", 8 * MIB)
        said = daemon.create_run(f"v{number}", box.path(f"cache{number}") + CACHE, image.origin, expect=None)
        if said.returncode != 0:
            refused = said
            break
        check_equal(daemon.show("v1")["memory"]["used_bytes"]["remote_devices"], number * held, "memory of images")
    check(refused is not None and number > 2, f"volume {number} of 16 MiB each")
    check_equal(refused.returncode, 3, refused.stderr)
    check("--memory-limit" in refused.stderr, f"no way out: {refused.stderr}")

    def given_back(images):
        # An image is closed by its thread, after its last user has gone.
        used = lambda: daemon.show("v1")["memory"]["used_bytes"]["remote_devices"]
        wait_for(lambda: used() == images * held, f"memory of {images} images is held", 60)

    given_back(number - 1)
    daemon.cli("delete", "--force", "v2")
    given_back(number - 2)
    daemon.create(f"v{number}", box.path("again") + CACHE, image.origin)


@test
def a_machine_without_librbd_is_told_the_package(box):
    library = next(pathlib.Path("/usr/lib").glob("*/librbd.so.1"))
    hidden = f'mount --bind /dev/null {library.resolve()}; exec "$@"'
    daemon = box.daemon(within=["unshare", "--mount", "bash", "-c", hidden, "bash"])
    refused = daemon.create_run("v", box.path("cache") + CACHE, "rbd:rbd/x", expect=2)
    check("librbd1" in refused.stderr, refused.stderr)
    daemon.create("v", box.path("cache") + CACHE, box.file("o", 8 * MIB))


@test
def an_image_that_was_made_anew_is_another_disk(box):
    image = Image(box, "swapped")
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + CACHE, image.origin))
    client.pwrite(b"d" * BLOCK, MIB)
    settle(daemon)
    daemon.cli("set", "v", "writeback_running=off")
    client.pwrite(b"e" * BLOCK, MIB)
    client.flush()
    client.shutdown()

    def swap():
        image.remove()
        image.make(32 * MIB)
        return image.digest()

    daemon.cli("stop", "--force", "v")
    before = swap()
    refused = daemon.cli("start", "v", expect=4)
    check("its RBD image" in refused.stderr, refused.stderr)
    check_equal(image.digest(), before, "the new image")
    # After a crash the identity decides, whatever the content is.
    daemon.cli("start", "v", "--force")
    daemon.kill()
    before = swap()
    daemon.start()
    wait_for(lambda: daemon.show("v")["state"] == "failed", "the volume is refused", 60)
    check("its RBD image" in daemon.show("v")["errors"]["last"], "the reason")
    check_equal(image.digest(), before, "the new image")


@test
def an_image_may_grow_and_a_smaller_one_is_noticed(box):
    image = Image(box, "resized")
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + CACHE, image.origin))
    client.pwrite(b"d" * BLOCK, MIB)
    client.flush()
    client.shutdown()
    rbd(box, "resize", "--no-progress", "--size", "48M", image.name)
    wait_for(lambda: "has grown" in daemon.log(), "the growth is noticed")
    daemon.cli("stop", "--force", "v")
    daemon.cli("start", "v")
    check_equal(daemon.show("v")["origin"]["size"], 48 * MIB, "the size after a start")
    rbd(box, "resize", "--no-progress", "--allow-shrink", "--size", "16M", image.name)
    wait_for(lambda: "has shrunk" in (daemon.show("v")["errors"]["last"] or ""), "the loss is shown")


@test
def the_next_program_goes_on_with_the_image(box):
    image = Image(box, "handed")
    daemon = box.daemon()
    client = connect(daemon.create("v", box.path("cache") + CACHE, image.origin))
    before = image.owner()
    for number in range(3):
        client.pwrite(bytes([number + 1]) * BLOCK, number * BLOCK)
        since = time.monotonic()
        daemon.cli("daemon", "--take-over")
        check(time.monotonic() - since < 10, "the next program waited for the lock of the one before")
        check_equal(bytes(client.pread(BLOCK, number * BLOCK)), bytes([number + 1]) * BLOCK, "what was written")
    check(image.owner() not in (None, before), "the lock has not changed hands")
    settle(daemon)
    same(image.content()[: 3 * BLOCK], b"".join(bytes([n + 1]) * BLOCK for n in range(3)), "the image")


@test
def an_image_in_a_namespace_is_found(box):
    rbd(box, "namespace", "create", "rbd/space")
    rbd(box, "create", "--size", "8M", "rbd/space/image")
    daemon = box.daemon()
    origin = f"rbd:rbd/space/image?conf={os.environ['FOREBAY_CEPH_CONF']}&id=admin"
    client = connect(daemon.create("v", box.path("cache") + CACHE, origin))
    client.pwrite(b"n" * BLOCK, 0)
    settle(daemon)
    done = box.run("bash", "-c", "rbd export --no-progress rbd/space/image - | head -c 4")
    check_equal(done.stdout, "nnnn", "the image in the namespace")


@test
def a_client_that_an_operator_fences_stops_and_says_so(box):
    image = Image(box, "operator")
    daemon = box.daemon("--lanes", "2")
    settings = ("--set", "writeback_latency=0", "--set", "idle=0", "--set", "dirty_age=100ms")
    client = connect(daemon.create("v", box.path("cache") + CACHE, image.origin, *settings))
    client.pwrite(b"1" * BLOCK, 0)
    settle(daemon)
    [address] = image.watchers()
    ceph(box, "osd", "blocklist", "add", address)
    before = image.digest()
    wait_for(lambda: "is lost" in (daemon.show("v")["errors"]["last"] or ""), "the loss is shown")
    check_equal(daemon.show("v")["state"], "degraded", "the state")
    check(attempt(client.pwrite, b"2" * BLOCK, 0), "a write of a fenced volume succeeds")
    check(attempt(client.pread, BLOCK, 0), "a read of a fenced volume succeeds")
    check(attempt(client.flush), "a flush of a fenced volume succeeds")
    check("was fenced" in daemon.log(), "the log does not say so")
    check_equal(image.digest(), before, "the image")
    client.shutdown()
    # An operator starts it again as another client.
    daemon.cli("stop", "--force", "v", expect=None)
    daemon.cli("start", "v")
    client = connect(daemon.uri("v"))
    client.pwrite(b"3" * BLOCK, 0)
    settle(daemon)
    same(image.content()[:BLOCK], b"3" * BLOCK, "the image after a start")
    os.kill(daemon.process.pid, signal.SIGTERM)


@test
def a_key_opens_what_its_rights_allow_and_the_error_says_so(box):
    image, daemon = Image(box, "rights"), box.daemon()
    before = image.digest()
    keyring = pathlib.Path(os.environ["FOREBAY_CEPH_CONF"]).parent / "keyring"
    for user, rights in (("reader", "profile rbd-read-only pool=rbd"), ("elsewhere", "profile rbd pool=other")):
        key = ceph(box, "auth", "get-or-create", f"client.{user}", "mon", "profile rbd", "osd", rights).stdout
        with open(keyring, "a") as file:
            file.write(key)
    for user, error in (("reader", "not permitted"), ("elsewhere", "not permitted"), ("unknown", "Permission denied")):
        origin = image.origin.replace("id=forebay", f"id={user}")
        refused = daemon.create_run("v", box.path(user) + CACHE, origin, expect=1)
        check(error in refused.stderr, f"{user}: {refused.stderr}")
    check_equal((image.digest(), image.owner()), (before, None), "the image")
    connect(daemon.create("v", box.path("cache") + CACHE, image.origin)).pwrite(b"r" * BLOCK, 0)


main()
