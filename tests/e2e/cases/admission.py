"""What may enter the cache, as operators set it, and the reasons that they are told."""

import pathlib

from harness import *

SIZE = 16 * MIB
RULES = ("admission=ghost:2", "write_budget=512G", "promote=64K", "congested_read_threshold=2ms",
         "congested_write_threshold=20ms")  # fmt: skip


def volume(box, *settings, cache=None):
    """A daemon with a volume of random content, and a connection to it."""
    content = random_bytes("origin", SIZE)
    daemon = box.daemon()
    arguments = [word for setting in settings for word in ("--set", setting)]
    origin = box.file("origin", SIZE, content)
    cache = cache or box.file("cache", 64 * MIB)
    uri = daemon.create("v", cache, origin, "--set", "sequential_cutoff=0", *arguments)
    return daemon, connect(uri), content


def reason_sums(report):
    """Fails unless the reasons add up to what was counted without them."""
    why, requests = report["why"], report["requests"]
    check_equal(sum(why["miss"].values()), requests["read_misses"] + requests["read_partial"], "misses")
    check_equal(sum(why["bypass"].values()), requests["bypassed"], "bypasses")
    check_equal(sum(why["written_back"].values()), report["blocks"]["written_back"], "blocks written back")
    return why


@test
def settings_are_made_changed_and_kept(box):
    daemon, _client, _content = volume(box, *RULES)

    def kept():
        settings = daemon.show("v")["settings"]
        check_equal(settings["admission"], "ghost:2", "admission")
        check_equal(settings["write_budget"], 512 << 30, "write_budget")
        check_equal(settings["promote"], 64 << 10, "promote")
        check_equal(settings["congested_read_threshold"], "2ms", "congested_read_threshold")
        check_equal(settings["congested_write_threshold"], "20ms", "congested_write_threshold")
        check_equal(settings["sequential_cutoff"], 0, "sequential_cutoff")

    kept()
    daemon.restart()
    kept()
    daemon.cli("stop", "--force", "v")
    daemon.cli("set", "v", "dirty_high=70")
    daemon.cli("start", "v")
    kept()
    daemon.kill()
    daemon.start()
    kept()
    daemon.cli("set", "v", "admission=second-hit", "promote=0")
    check_equal(daemon.show("v")["settings"]["admission"], "second-hit", "admission")


@test
def second_hit_lets_in_what_is_read_again_and_says_so(box):
    # In RAM: while a cache device is slow to write, what is read does not wait to enter the cache.
    daemon, client, content = volume(box, "admission=second-hit", "mode=wa", cache="ram:64M")
    for reading in ("cold", "not_admitted", "hit"):
        for at in range(0, SIZE // 2, 64 << 10):
            check(client.pread(64 << 10, at) == content[at : at + (64 << 10)], f"wrong data at {at} ({reading})")
        if reading == "cold":
            check_equal(daemon.show("v")["blocks"]["filled"], 0, "blocks filled after one look")
    report = daemon.show("v")
    why = reason_sums(report)
    requests = SIZE // 2 >> 16
    check_equal((why["miss"]["cold"], why["miss"]["not_admitted"]), (requests, requests), "reasons")
    check_equal(why["refused"]["not_admitted"], SIZE // 2 >> 12, "blocks that were kept out")
    check_equal(report["requests"]["read_hits"], requests, f"hits {why}")
    # Overwritten on the origin: the cache forgets, and knows why.
    client.pwrite(bytes(64 << 10), 0)
    client.flush()
    check(client.pread(64 << 10, 0) == bytes(64 << 10), "what was just written")
    why = reason_sums(daemon.show("v"))
    check_equal((why["invalidated"]["write_around"], why["miss"]["invalidated"]), (16, 1), "an overwrite")
    text = daemon.cli("show", "v").stdout
    for word in ("WHY", "not_admitted", "invalidated", "write_around"):
        check(word in text, f"'{word}' is not in:\n{text}")
    check("congested" not in text.split("SETTING")[0], "a reason that was not counted is shown")


@test
def a_write_budget_keeps_clean_data_out_and_dirty_data_safe(box):
    daemon, client, content = volume(box, "write_budget=24M")
    for at in range(0, SIZE // 2, 64 << 10):
        check(client.pread(64 << 10, at) == content[at : at + (64 << 10)], f"wrong data at {at}")
    report = daemon.show("v")
    check(reason_sums(report)["refused"]["write_budget"] > 1000, f"hardly anything was refused: {report['why']}")
    # The bucket holds an hour's worth, and the request that empties it is still filled.
    check(report["blocks"]["filled"] <= (1 * MIB + (64 << 10)) >> 12, f"too much entered: {report['blocks']}")
    for at in range(0, 4 * MIB, 64 << 10):
        client.pwrite(content[at : at + (64 << 10)][::-1], at)
    client.flush()
    check_equal(daemon.show("v")["blocks"]["dirty"], 4 * MIB >> 12, "dirty blocks")
    daemon.cli("flush", "v")
    why = reason_sums(daemon.show("v"))
    check(why["written_back"]["drain"] > 0, f"nobody waited: {why['written_back']}")
    daemon.cli("delete", "--force", "v")
    whole = pathlib.Path(box.path("origin")).read_bytes()
    for at in range(0, 4 * MIB, 64 << 10):
        check(whole[at : at + (64 << 10)] == content[at : at + (64 << 10)][::-1], f"the origin lacks {at}")


@test
def a_miss_brings_in_its_neighbours(box):
    daemon, client, content = volume(box, "promote=256K")
    check(client.pread(4096, 5 * MIB + 8192) == content[5 * MIB + 8192 : 5 * MIB + 12288], "wrong data")
    check_equal(daemon.show("v")["blocks"]["filled"], 64, "blocks filled")
    check(client.pread(256 << 10, 5 * MIB) == content[5 * MIB : 5 * MIB + (256 << 10)], "wrong neighbours")
    check_equal(reason_sums(daemon.show("v"))["miss"]["cold"], 1, "misses")


main()
