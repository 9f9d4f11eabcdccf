"""Settings that the volumes of one cache share, changed by several commands at once."""

import json
import pathlib
import threading

from harness import *

POLICIES = ("lru", "fifo", "clock", "arc", "sieve")


def shared(settings):
    return tuple(settings[name] for name in ("policy", "cache_dirty_high", "cache_dirty_low"))


def agree(daemon, names, when):
    """The state, the running volumes and the volume table have one value; returns it."""
    state = json.loads(pathlib.Path(daemon.state, "state.json").read_text())
    stored = {entry["volume"]["name"]: shared(entry["volume"]["settings"]) for entry in state["volumes"]}
    running = {name: shared(daemon.show(name)["settings"]) for name in names}
    check_equal(len({*stored.values(), *running.values()}), 1, f"values {when}: stored {stored}, running {running}")
    return running[names[0]]


def at_once(*jobs):
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@test
def changes_by_two_commands_at_once_are_not_undone(box):
    daemon, names = box.daemon(), ("v", "w", "x")
    cache = box.file("cache", 96 * MIB)
    for name in names:
        daemon.create(name, cache, box.file(f"origin-{name}", 16 * MIB))
    for round in range(60):
        policy, high = POLICIES[round % len(POLICIES)], 60 + round % 30
        at_once(
            lambda: daemon.cli("set", "v", f"policy={policy}"),
            lambda: daemon.cli("set", "w", f"cache_dirty_high={high}"),
            lambda: daemon.cli("set", "x", f"idle={5 + round}s"),
        )
        check_equal(agree(daemon, names, f"in round {round}")[:2], (policy, high), f"what was set in round {round}")
        # Of the same setting, the last one in the state holds.
        at_once(*(lambda name=name, policy=policy: daemon.cli("set", name, f"policy={policy}") for name, policy in zip(names, POLICIES)))
        agree(daemon, names, f"in the second half of round {round}")
    last = agree(daemon, names, "at the end")
    daemon.restart()
    check_equal(agree(daemon, names, "after a restart"), last, "the values after a restart")


@test
def a_change_beside_a_creation_a_start_and_a_stop_is_not_undone(box):
    daemon, names = box.daemon(), ["v", "w"]
    cache = box.file("cache", 96 * MIB)
    for name in names:
        daemon.create(name, cache, box.file(f"origin-{name}", 16 * MIB))
    for round in range(30):
        policy, other = POLICIES[round % len(POLICIES)], POLICIES[(round + 1) % len(POLICIES)]
        daemon.cli("stop", "w")
        # The one that is set is stopped, and its neighbour runs.
        daemon.cli("set", "w", f"policy={other}")
        check_equal(agree(daemon, ["v"], f"after a set on a stopped volume in round {round}")[0], other, "the policy")
        new, origin = f"new{round}", box.file(f"origin-new{round}", 8 * MIB)
        at_once(
            lambda: daemon.cli("set", "v", f"policy={policy}"),
            lambda: daemon.cli("start", "w"),
            lambda: daemon.create(new, cache, origin),
        )
        check_equal(agree(daemon, [*names, new], f"in round {round}")[0], policy, f"the policy in round {round}")
        daemon.cli("delete", new)


@test
def a_new_volume_has_the_policy_that_a_stopped_one_was_given(box):
    daemon, cache = box.daemon(), box.file("cache", 96 * MIB)
    daemon.create("v", cache, box.file("origin-v", 16 * MIB))
    daemon.cli("stop", "v")
    # The volume table on the cache device learns of it at the next start of the volume.
    daemon.cli("set", "v", "policy=lru", "cache_dirty_high=61")
    daemon.create("w", cache, box.file("origin-w", 16 * MIB))
    check_equal(agree(daemon, ["w"], "after the creation")[:2], ("lru", 61), "the policy and the limit")
    daemon.cli("start", "v")
    agree(daemon, ["v", "w"], "after the start of the other volume")


main()
