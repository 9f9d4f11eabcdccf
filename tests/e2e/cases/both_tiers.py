"""RAM in front of an SSD, or of a disk: who served what, why it was missed, and what sizes would do."""

import json

from harness import *

SIZE = 64 * MIB
REQUEST = 16 * KIB


def volume(box, daemon, name="v", cached=True, ram=None, *arguments):
    """A volume; returns a connection to it. Streams are cached like all other data."""
    cache = ["-s", box.file(f"{name}.cache", 64 * MIB)] if cached else []
    memory = ["--ram", ram] if ram else []
    every = ["--set", "sequential_cutoff=0"] if cached else []
    origin = box.file(f"{name}.origin", SIZE)
    uri = daemon.cli("create", name, *cache, "-p", origin, *memory, *every, *arguments).stdout.strip()
    return connect(uri)


def read(client, length, first=0, step=REQUEST):
    """Reads a range from its start to its end; returns the number of requests."""
    for at in range(first, first + length, step):
        client.pread(step, at)
    return length // step


def served(daemon, name="v", which="reads"):
    """Total, and what RAM, cache and origin have served of it."""
    by = daemon.show(name)["served"][which]
    parts = by["ram"], by["cache"], by["origin"]
    check_equal(sum(parts), by["total"], f"the sum of {by}")
    return by["total"], *parts


def advice(daemon, name, *arguments):
    return json.loads(daemon.cli("advise", "--live", name, "--json", *arguments).stdout)


def fill(daemon, client, name, length):
    """Has the cache filled from its start. A fill never waits for space in the log, so one may leave blocks out."""

    def filled():
        for at in range(0, length, MIB):
            client.cache(MIB, at)
        return daemon.show(name)["blocks"]["filled"] >= length // BLOCK

    wait_for(filled, "the cache is filled")


def near(found, expected, what, within=0.03):
    close = all(abs(one - other) <= within for one, other in zip(found, expected, strict=True))
    check(close, f"{what}: found {found}, expected {expected}")


@test
def reads_are_counted_where_they_were_served_and_have_one_reason(box):
    daemon = box.daemon()
    # RAM has a quarter of what is read.
    client = volume(box, daemon, "v", True, "8M", "--set", "ram_policy=lru")
    count = read(client, 32 * MIB)
    check_equal(served(daemon), (count, 0, 0, count), "after a first pass")
    # What is read once does not enter the cache, unless a client asks for it.
    few = daemon.show("v")["blocks"]["filled"]
    check(few < 32 * MIB // BLOCK // 20, f"{few} blocks have entered the cache after one read")
    fill(daemon, client, "v", 32 * MIB)
    read(client, 32 * MIB)
    check_equal(served(daemon), (2 * count, 0, count, count), "after a second pass")
    for _ in range(2):
        read(client, 4 * MIB, 28 * MIB)
    few = 4 * MIB // REQUEST
    check_equal(served(daemon), (2 * count + 2 * few, 2 * few, count, count), "after reads that RAM has")
    shown = daemon.show("v")
    check_equal(sum(shown["why"]["miss"].values()), count, "the reasons")
    # The ghosts mistake one block in 260 for another.
    cold = shown["why"]["miss"]["cold"]
    check(cold > count * 0.98, f"{cold} of {count} reads were cold")
    check_equal(shown["bytes"]["user_read"], (2 * count + 2 * few) * REQUEST, "bytes that clients read")
    check_equal(shown["bytes"]["ram_read"], 2 * few * REQUEST, "bytes from RAM")
    words = [line.split() for line in daemon.cli("show", "v").stdout.splitlines()]
    check(["SERVED", "BY", "TOTAL", "RAM", "CACHE", "ORIGIN"] in words, f"no table: {words}")
    reads = next(line for line in words if line[:1] == ["reads"])
    check_equal(reads[1], f"{2 * count + 2 * few:,}", "the total in words")
    check_equal(json.loads(daemon.cli("list", "--json").stdout)["volumes"][0]["ram"], 8 * MIB, "RAM in list")
    # It survives the connection, and begins anew with the volume.
    client.shutdown()
    check_equal(served(daemon)[0], 2 * count + 2 * few, "after the connection has ended")
    daemon.cli("stop", "v")
    daemon.cli("start", "v")
    check_equal(served(daemon), (0, 0, 0, 0), "after a stop and a start")


@test
def without_one_of_the_tiers_the_others_add_up(box):
    daemon = box.daemon()
    alone = volume(box, daemon, "ram", False, "16M")
    count = read(alone, 8 * MIB)
    read(alone, 8 * MIB)
    check_equal(served(daemon, "ram"), (2 * count, count, 0, count), "RAM alone")
    check_equal(daemon.show("ram")["why"]["miss"]["mode"], count, "reasons")
    cache = volume(box, daemon, "cache", True, None)
    read(cache, 8 * MIB)
    fill(daemon, cache, "cache", 8 * MIB)
    read(cache, 8 * MIB)
    check_equal(served(daemon, "cache"), (2 * count, 0, count, count), "a cache alone")
    cache.pwrite(bytes(REQUEST), 0)
    check_equal(served(daemon, "cache", "writes"), (1, 0, 1, 0), "a write to the cache")


@test
def writes_are_counted_where_they_were_when_they_were_acknowledged(box):
    daemon = box.daemon()
    client = volume(box, daemon, "v", True, "32M", "--durability", "deferred", "--set", "write_down=infinite")
    data = random_bytes("v", REQUEST)
    for at in range(100):
        client.pwrite(data, at * REQUEST)
    check_equal(served(daemon, "v", "writes"), (100, 100, 0, 0), "deferred writes")
    daemon.cli("flush", "v")
    client.flush()
    check(daemon.show("v")["ram"]["written_down"] == 100 * REQUEST, "nothing was written down")
    check_equal(served(daemon, "v", "writes"), (100, 100, 0, 0), "deferred writes, written down")
    check_equal(daemon.show("v")["bytes"]["user_written"], 100 * REQUEST, "bytes that clients wrote")
    for mode, expected in (("wb", (10, 0, 10, 0)), ("wt", (10, 0, 0, 10)), ("wa", (10, 0, 0, 10))):
        client = volume(box, daemon, mode, True, "32M", "--mode", mode)
        for at in range(10):
            client.pwrite(data, at * REQUEST)
        check_equal(served(daemon, mode, "writes"), expected, mode)
    client = volume(box, daemon, "disk", False, "32M")
    client.pwrite(data, 0)
    check_equal(served(daemon, "disk", "writes"), (1, 0, 0, 1), "a disk without a cache")


@test
def advice_is_the_same_with_and_without_ram_in_front(box):
    daemon = box.daemon()
    found = {}
    for name, cached, ram in ("ssd", True, None), ("both", True, "16M"), ("all", True, "40M"), ("disk", False, "40M"):
        client = volume(box, daemon, name, cached, ram)
        # A loop of 24 MiB, and one of 2 MiB in it: half of all reads.
        for at in range(0, 96 * MIB, REQUEST):
            client.pread(REQUEST, at % (24 * MIB))
            client.pread(REQUEST, 32 * MIB + at % (2 * MIB))
        sizes = "--sizes", "1M,6M,32M", "--ram", "1M,6M,32M,64M"
        found[name] = advice(daemon, name, *sizes)
    for name, one in found.items():
        shares = [row["reads"]["share"] for row in one["rows"]]
        near(shares, [0, 0.49, 0.87], f"shares of {name}")
        check_equal(one["rows"], found["ssd"]["rows"], f"the rows of {name}")
        for row in one["ram_rows"] + ([one["ram"]] if one["ram"] else []):
            near([row["ram"]["share"] + row["cache"] + row["origin"]["share"]], [1], f"{name}: {row}", 1e-9)
    # The cache holds everything: RAM takes reads from it, and none from the origin.
    both = found["both"]["ram_rows"]
    near([row["ram"]["share"] for row in both], [0, 0.49, 0.87, 0.87], "from RAM")
    near([row["cache"] for row in both], [0.87, 0.38, 0, 0], "from the cache")
    near([row["origin"]["share"] for row in both], [0.13] * 4, "from the origin")
    check_equal((found["both"]["ram"]["bytes"], found["both"]["take_ram"]), (16 * MIB, 32 * MIB), "present, to take")
    check_equal(found["ssd"]["ram"], None, "RAM where there is none")
    # Without a cache device, what RAM does not serve comes from the origin.
    disk = found["disk"]["ram_rows"]
    near([row["origin"]["share"] for row in disk], [1, 0.51, 0.13, 0.13], "from the origin, without a cache")
    check_equal([row["cache"] for row in disk], [0] * 4, "from a cache that is not there")
    check_equal(found["disk"]["present"]["bytes"], 0, "the present cache")
    # What was served in fact, where RAM holds everything.
    total, ram, cache, origin = served(daemon, "disk")
    near([ram / total, cache, origin / total], [0.87, 0, 0.13], "what was served")
    text = daemon.cli("advise", "--live", "both", "--ram", "6M,32M").stdout
    for word in ("FROM RAM", "Take 32M of RAM", "RAM of the present size, 16M", "those from RAM included"):
        check(word in text, f"'{word}' is not in:\n{text}")
    text = daemon.cli("advise", "--live", "disk").stdout
    check("in front of the origin alone" in text and "A cache of the present size" not in text, text)


@test
def a_trace_is_enough_for_advice_about_both(box):
    trace = box.path("trace.csv")
    with open(trace, "w") as file:
        file.write("op,offset,size\n")
        for _ in range(4):
            file.writelines(f"R,{block * 4096},4096\n" for block in range(4096))
    daemon = box.daemon()
    found = json.loads(daemon.cli("advise", trace, "--json", "--sizes", "8M,16M", "--ram", "1M,16M").stdout)
    check_equal((found["take"], found["ram_before"], found["take_ram"]), (16 * MIB,) * 3, "what to take")
    shares = [(row["ram"]["share"], row["cache"], row["origin"]["share"]) for row in found["ram_rows"]]
    check_equal(shares, [(0, 0.75, 0.25), (0.75, 0, 0.25)], "shares")
    text = daemon.cli("advise", trace).stdout
    check("RAM in front of a cache of 16M" in text, text)


main()
