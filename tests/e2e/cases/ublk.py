"""Volumes with export=ublk on a machine that has no ublk. The rest runs in a guest: tests/vm/ublk."""

import os

from harness import *


@test
def a_machine_without_ublk_refuses_and_changes_nothing(box):
    if os.path.exists("/dev/ublk-control"):
        skip("this machine has ublk")
    daemon = box.daemon()
    cache, origin = box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)
    before = digest(cache, origin)
    refused = daemon.create_run("v", cache, origin, "--export", "ublk", expect=2).stderr
    check("modprobe ublk_drv" in refused, f"the refusal: {refused.strip()}")
    check_equal(digest(cache, origin), before, "the devices")
    daemon.create("v", cache, origin)
    refused = daemon.cli("set", "v", "export=nbd,ublk", expect=2).stderr
    check("export=fuse" in refused, f"the refusal: {refused.strip()}")
    check_equal(daemon.show("v")["settings"]["export"], "nbd", "the setting")
    daemon.cli("stop", "v")
    daemon.cli("start", "v")


main()
