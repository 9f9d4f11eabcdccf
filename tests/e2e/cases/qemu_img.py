"""After a drain the origin alone is the volume, as qemu-img sees it."""

from harness import *


@test
def origin_and_export_compare_equal_after_a_drain(box):
    need("qemu-img", "qemu-io")
    size = 64 * MIB
    content = random_bytes("reference", size)
    reference = box.file("reference", size, content)
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 128 * MIB), box.file("origin", size))
    box.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", reference, uri)
    for target in (reference, uri):
        box.run(
            "qemu-io", "-f", "raw",
            "-c", "write -P 0x5a 1000k 200k", "-c", "write -z 5M 1M", "-c", "discard 8M 64k",
            "-c", "write -P 0x21 8M 64k", "-c", "write -f -P 0x77 33556992 512", "-c", "flush",
            target,
        )  # fmt: skip
    box.run("qemu-img", "compare", "-f", "raw", "-F", "raw", reference, uri)
    daemon.cli("flush", "v")
    check_equal(daemon.dirty("v"), 0, "dirty blocks after a flush")
    origin = box.path("origin")
    box.run("qemu-img", "compare", "-U", "-f", "raw", "-F", "raw", origin, uri)
    daemon.cli("stop", "v")
    box.run("qemu-img", "compare", "-f", "raw", "-F", "raw", origin, reference)


@test
def qemu_img_bench_of_every_kind_ends(box):
    need("qemu-img")
    daemon = box.daemon()
    uri = daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 64 * MIB))
    for arguments in (["-w", "--flush-interval=64"], ["-w", "--no-drain", "--flush-interval=32"], []):
        box.run("qemu-img", "bench", "-f", "raw", "-c", "4000", "-d", "32", "-s", "4k", *arguments, uri)


main()
