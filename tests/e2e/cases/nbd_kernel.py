"""Volumes with export=nbd-kernel on a machine without the kernel's NBD client. The rest runs in a guest: tests/vm/nbd-kernel."""

import os

from harness import *


@test
def a_machine_without_the_kernels_nbd_client_refuses_and_changes_nothing(box):
    if "this kernel has no nbd" not in box.run(os.environ["FOREBAY"], "doctor", expect=None).stdout:
        skip("this machine may have the kernel's NBD client")
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    before = digest(cache, origin)
    refused = daemon.create_run("v", cache, origin, "--export", "nbd-kernel", expect=2).stderr
    check("modprobe nbd" in refused, f"the refusal: {refused.strip()}")
    check_equal(digest(cache, origin), before, "the devices")
    daemon.create("v", cache, origin)
    refused = daemon.cli("set", "v", "export=nbd,nbd-kernel", expect=2).stderr
    check("export=fuse" in refused, f"the refusal: {refused.strip()}")
    check_equal(daemon.show("v")["settings"]["export"], "nbd", "the setting")


main()
