//! Volumes that share a cache: one that is stopped, or whose origin hangs or fails, does not block
//! the others.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_core::{BlockSize, Durability, Mode, Op, OriginBlock, Survives};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, BlockSet, CompletionSink};
use forebay_engine::{EngineLane, LaneVolume, Request, Settings, TableChange, VolumeState};
use forebay_testkit::{OpKind, peek, ram};

use crate::world::two::*;
use crate::world::{World, settings};

/// Returns the number of a volume's cached blocks.
fn cached(engine: &EngineLane, volume: &LaneVolume) -> u64 {
    let space = engine.cache.store.space_of(volume.volume().id).expect("it is there");
    let mut count = 0;
    engine.cache.store.index.scan(|address, _| count += u64::from(space.block(address).is_some()));
    count
}

/// Writes and reads random blocks below `blocks`. Returns the hit ratio of the reads in the second
/// half.
fn storm(world: &World, volume: &Rc<LaneVolume>, blocks: u64, requests: u64, seed: u64) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut before = volume.volume().stats.totals();
    for request in 0..requests {
        if request == requests / 2 {
            before = volume.volume().stats.totals();
        }
        let block = random.u64(..blocks);
        if random.bool() {
            world.write(volume, block * 4096, &pattern(block));
        } else {
            world.read(volume, block * 4096, 4096);
        }
        if request % 64 == 0 {
            world.advance(Duration::from_millis(5));
        }
    }
    let after = volume.volume().stats.totals();
    let hits = after.read_hits - before.read_hits;
    let misses = after.read_misses - before.read_misses;
    hits as f64 / (hits + misses) as f64
}

/// Writes both volumes in turn, so that they share segments: up to a third of the cache each.
/// Flushes `a` after every `flush_every` writes.
fn write_both(two: &Two, blocks: u64, flush_every: u64) {
    let mut random = fastrand::Rng::with_seed(1);
    for request in 0..blocks / 3 {
        let (block, other) = (random.u64(..blocks / 2), random.u64(..blocks));
        two.world.write(&two.a, block * 4096, &pattern(block));
        two.world.write(&two.b, other * 4096, &pattern(other));
        if request % flush_every == flush_every - 1 {
            two.world.op(&two.a, Op::Flush, 0, 0);
        }
        if random.u8(..) == 0 {
            two.world.advance(Duration::from_millis(20));
        }
    }
}

/// Asserts that `b`, next to a stopped volume with `waiting` blocks not yet on its origin, has at
/// least this share of the hits that it has alone on a cache that is smaller by as much.
fn assert_rest_is_usable(two: &Two, cache: u64, waiting: u64, share: f64) {
    let blocks = cache * MIB / 4096;
    let hits = storm(&two.world, &two.b, blocks, blocks * 16, 2);
    let alone = World::new();
    let engine = open_small(&alone, cache * MIB - waiting * 4096);
    let only = alone.create_as(&engine, "b", &ram(cache * 2), settings(Mode::Writeback), 0);
    let expected_hits = storm(&alone, &only, blocks, blocks * 16, 2);

    let (cached_b, cached_alone) = (cached(&two.engine, &two.b), cached(&engine, &only));
    println!(
        "{waiting} of {blocks} blocks belong to the stopped volume: {cached_b} cached, {hits:.3} hits; \
         alone in the rest: {cached_alone} cached, {expected_hits:.3} hits"
    );
    assert!(cached_b as f64 > share * cached_alone as f64, "{cached_b} and {cached_alone}");
    assert!(hits > share * expected_hits, "{hits} and {expected_hits}");
}

#[test]
fn a_stopped_volume_leaves_the_rest_of_the_cache_to_others() {
    const CACHE: u64 = 64;
    let two = two(CACHE, kept_dirty(), settings(Mode::Writeback));
    let blocks = CACHE * MIB / 4096;
    write_both(&two, blocks, u64::MAX);
    let dirty = two.a.volume().dirty_blocks();
    assert!(dirty > blocks / 5, "{dirty} of {blocks} blocks are dirty");
    let raw_before = peek(&two.origin_of_a, 0, (blocks / 2 * 4096) as usize);
    two.stop("a").expect("stopped");
    assert_rest_is_usable(&two, CACHE, dirty, 0.95);

    // None of the stopped volume's blocks has reached its origin, and none is lost.
    let size = (blocks / 2 * 4096) as usize;
    assert!(peek(&two.origin_of_a, 0, size) == raw_before);
    let a = two.attach_a();
    assert_eq!(a.volume().dirty_blocks(), dirty);
    let mut found = 0;
    for block in 0..blocks / 2 {
        let data = two.world.read(&a, block * 4096, 4096);
        if data == pattern(block) {
            found += 1;
        } else {
            assert_eq!(data, [0; 4096], "block {block}");
        }
    }
    assert_eq!(found, dirty);
}

#[test]
fn a_stopped_ordered_volume_holds_only_waiting_versions() {
    const CACHE: u64 = 64;
    let mut of_a = kept_dirty();
    of_a.ordered = true;
    let two = two(CACHE, of_a, settings(Mode::Writeback));
    let blocks = CACHE * MIB / 4096;
    write_both(&two, blocks, 100);
    let held = two.engine.cache.store.held_versions(two.a.volume().id);
    let dirty = two.a.volume().dirty_blocks();
    assert!(held > dirty && dirty > blocks / 8, "{held} are held and {dirty} dirty, of {blocks}");
    two.stop("a").expect("stopped");
    assert_rest_is_usable(&two, CACHE, held, 0.90);
}

/// Fills the cache with as many dirty blocks as possible of a volume whose origin hangs.
fn fill(two: &Two) -> u64 {
    two.faults.hang(&OpKind::ALL);
    for block in 0..8000 {
        let data = pattern(block);
        let tag = two.world.submit(&two.a, Op::Write, block * 4096, 4096, Some(&data));
        if two.world.wait_for(tag, Duration::from_secs(5)).is_none() {
            break;
        }
    }
    two.a.volume().dirty_blocks()
}

#[test]
fn a_neighbour_that_is_all_dirty_leaves_a_way() {
    for mode in [Mode::Writeback, Mode::Writethrough, Mode::Writearound] {
        let two = two(16, settings(Mode::Writeback), settings(mode));
        let dirty = fill(&two);
        let _ = two.stop("a");
        for block in 0..2000 {
            assert!(write_soon(&two, &two.b, block), "{mode}: b stops after {block} blocks");
        }
        for block in 0..2000 {
            assert_eq!(two.world.read(&two.b, block * 4096, 4096), pattern(block));
        }
        println!("{mode}: {dirty} blocks are dirty");
    }
}

/// Fills a cache with clean blocks of `b`, guarded as far as possible, and dirty blocks of `a`,
/// which is stopped. `dirty_first`: the number of dirty blocks that are written before those of `b`
/// are read; if 0, as many as fit are written afterwards.
fn guard_beside_dirty(guard: (u8, Range<u64>), dirty_first: u64, ordered: bool) -> Two {
    let all_dirty = Settings {
        dirty_high: 95,
        dirty_low: 94,
        cache_dirty_high: 95,
        cache_dirty_low: 94,
        ..settings(Mode::Writeback)
    };
    let (share_min, pinned) = guard;
    let of_b = Settings { share_min, ordered, ..all_dirty.clone() };
    let two = two(16, all_dirty, of_b);
    if dirty_first > 0 {
        two.faults.hang(&OpKind::ALL);
        (0..dirty_first).for_each(|block| assert!(write_soon(&two, &two.a, block)));
        two.stop("a").expect_err("its origin hangs");
    }
    let stays = BlockSet::from(pinned.clone());
    two.engine.pin("b", &stays).expect("pinned");
    let engine = two.engine.clone();
    two.world.block_on(async move { engine.fill("b", &stays, |_| Ok(())).await }).expect("filled");
    for block in 5000..8190 {
        two.world.read(&two.b, block * 4096, 4096);
    }
    two.world.advance(Duration::from_secs(1));
    let cached = cached(&two.engine, &two.b);
    let dirty = if dirty_first == 0 { fill(&two) } else { dirty_first };
    if dirty_first == 0 {
        let _ = two.stop("a");
    }
    println!("{share_min} {pinned:?}: {cached} cached, {dirty} dirty");
    two
}

/// The rest of the cache is pinned or guarded by a share, so nothing else can leave.
#[test]
fn a_dirty_neighbour_leaves_room_beside_bound_blocks() {
    for guard in [(60, 0..0), (0, 6690..8190)] {
        for (dirty_first, ordered) in [(0, false), (2000, false), (0, true), (2000, true)] {
            let two = guard_beside_dirty(guard.clone(), dirty_first, ordered);
            for block in 0..4000 {
                let soon = write_soon(&two, &two.b, block);
                assert!(soon, "{guard:?}, {dirty_first}, {ordered}: b stops at {block}");
            }
        }
    }
}

#[test]
fn remains_of_a_deleted_volume_disturb_no_other() {
    let two = two(16, kept_dirty(), settings(Mode::Writeback));
    for block in 0..1500 {
        two.world.write(&two.a, block * 4096, &pattern(block));
        two.world.write(&two.b, block * 4096, &pattern(block));
    }
    two.stop("a").expect("stopped");
    let engine = two.engine.clone();
    let deleted = two.world.block_on(async move { engine.delete_stopped("a", true).await });
    assert_eq!(deleted.expect("deleted"), TableChange::OnDevice);
    storm(&two.world, &two.b, 4096, 30_000, 3);
    let count = cached(&two.engine, &two.b);
    assert!(count > 2000, "{count}");
}

#[test]
fn a_hung_origin_holds_up_no_commit_of_others() {
    let two = two(16, settings(Mode::Writethrough), settings(Mode::Writeback));
    two.faults.hang(&[OpKind::Sync]);
    two.world.write(&two.a, 0, &pattern(0));
    // A change that only the origin has, so that upkeep syncs the origin.
    two.world.op(&two.a, Op::WriteZeroes, MIB, MIB);
    two.world.advance(Duration::from_secs(3));
    two.world.write(&two.b, 0, &pattern(1));
    two.world.advance(Duration::from_millis(1100));
    assert!(two.engine.cache.store.all_durable(), "a write of b was not committed within 1.1 s");
}

#[test]
fn checkpoints_go_on_while_an_origin_hangs() {
    let two = two(16, settings(Mode::Writethrough), settings(Mode::Writeback));
    two.faults.hang(&[OpKind::Sync]);
    two.world.op(&two.a, Op::WriteZeroes, MIB, MIB);
    two.world.advance(Duration::from_secs(3));
    let store = &two.engine.cache.store;
    let mut block = 0;
    while store.appended_since_checkpoint() < store.checkpoint_due() {
        two.world.write(&two.b, block % 512 * 4096, &pattern(block));
        block += 1;
    }
    two.world.advance(Duration::from_secs(3));
    assert!(store.appended_since_checkpoint() < store.checkpoint_due());
}

#[test]
fn a_lower_commit_interval_acts_at_once() {
    let long = Settings { commit_interval: Duration::from_secs(3600), ..settings(Mode::Writeback) };
    let two = two(16, long.clone(), long);
    two.world.advance(Duration::from_secs(5));
    two.world.write(&two.a, 0, &pattern(0));
    two.world.advance(Duration::from_secs(5));
    assert!(!two.engine.cache.store.all_durable());
    let short =
        Settings { commit_interval: Duration::from_millis(200), ..settings(Mode::Writeback) };
    two.set("a", short);
    two.world.advance(Duration::from_millis(250));
    assert!(two.engine.cache.store.all_durable(), "the old interval is still in force");
}

#[test]
fn a_hung_origin_leaves_the_rest_of_the_cache_to_others() {
    let two = two(16, settings(Mode::Writeback), settings(Mode::Writeback));
    two.faults.hang(&OpKind::ALL);
    for block in 0..1300 {
        two.world.write(&two.a, block * 4096, &pattern(block));
    }
    // Several times the capacity of the cache.
    for block in 0..8000 {
        assert!(write_soon(&two, &two.b, block), "b stops after {block} blocks");
    }
    assert_eq!(two.a.volume().dirty_blocks(), 1300);
    two.world.advance(Duration::from_secs(6));
    let shown = two.a.volume().origin_waits();
    assert!(shown.is_some_and(|waits| waits > Duration::from_secs(5)), "{shown:?}");
    two.faults.heal();
    two.drain_a().expect("drained");
    for block in 0..1300 {
        assert!(peek(&two.origin_of_a, block * 4096, 4096) == pattern(block));
    }
    assert_eq!(two.a.volume().origin_waits(), None);
}

#[test]
fn writers_to_a_hung_origin_leave_room_to_others() {
    for fails in [false, true] {
        let two = two(16, settings(Mode::Writeback), settings(Mode::Writeback));
        if fails {
            two.faults.fail(&[OpKind::Write]);
        } else {
            two.faults.hang(&OpKind::ALL);
        }
        let mut waits = None;
        for block in 0..8000 {
            let tag =
                two.world.submit(&two.a, Op::Write, block * 4096, 4096, Some(&pattern(block)));
            if two.world.wait_for(tag, LONG).is_none() {
                waits = Some(tag);
                break;
            }
        }
        let dirty = two.a.volume().dirty_blocks();
        assert!(waits.is_some() && dirty < 3600, "{dirty} blocks are dirty");
        for block in 0..6000 {
            assert!(
                write_soon(&two, &two.b, block),
                "b stops after {block} blocks, fails: {fails}"
            );
        }
        two.faults.heal();
        assert!(answered(&two, waits.expect("it waits")), "it goes on when the origin is back");
    }
}

#[test]
fn reads_that_wait_for_an_origin_keep_no_room_from_others() {
    let two = two(16, kept_dirty(), settings(Mode::Writeback));
    // Partly written blocks, one in each segment: reading a whole block needs the origin.
    for number in 0..40 {
        two.world.write(&two.a, number * 4096, &pattern(number)[..512]);
        for other in 0..60 {
            let block = number * 60 + other;
            two.world.write(&two.b, block * 4096, &pattern(block));
        }
    }
    two.faults.hang(&OpKind::ALL);
    let tags: Vec<u64> = (0..40)
        .map(|number| two.world.submit(&two.a, Op::Read, number * 4096, 4096, None))
        .collect();
    for block in 0..8000 {
        assert!(write_soon(&two, &two.b, block), "b stops after {block} blocks");
    }
    two.faults.heal();
    for (number, tag) in tags.into_iter().enumerate() {
        let data = two.world.wait(tag).data.expect("data");
        assert_eq!(data[..512], pattern(number as u64)[..512]);
        assert!(data[512..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn another_volume_stops_and_starts_while_an_origin_hangs() {
    let two = two(16, settings(Mode::Writeback), settings(Mode::Writeback));
    two.faults.hang(&OpKind::ALL);
    let tag = two.world.submit(&two.a, Op::Read, 0, 4096, None);
    two.world.write(&two.b, 0, &pattern(1));
    let before = two.world.lane.now();
    two.stop("b").expect("stopped");
    assert!(two.world.lane.now().since(before) < Duration::from_secs(1));
    let _ = tag;
}

#[test]
fn a_stop_and_a_drain_before_a_hung_origin_end() {
    let two = two(16, settings(Mode::Writeback), settings(Mode::Writeback));
    two.world.write(&two.a, 0, &pattern(1));
    two.faults.hang(&OpKind::ALL);
    let read = two.world.submit(&two.a, Op::Read, MIB, 4096, None);
    let before = two.world.lane.now();
    let error = two.drain_a().expect_err("nothing can be drained");
    assert!(error.to_string().contains("answered"), "{error}");
    assert!(two.world.lane.now().since(before) < LONG);
    assert_eq!(two.a.volume().state(), VolumeState::Running);
    let error = two.stop("a").expect_err("it says that the origin does not answer");
    assert!(error.to_string().contains("answered"), "{error}");
    assert!(two.world.lane.now().since(before) < LONG);
    assert!(two.engine.cache.volume("a").is_none(), "it is stopped all the same");
    // Acknowledged data is present after the next start.
    two.faults.heal();
    two.world.wait(read);
    let a = two.attach_a();
    assert_eq!(two.world.read(&a, 0, 4096), pattern(1));
}

#[test]
fn a_cache_closes_while_an_origin_hangs() {
    let two = two(16, settings(Mode::Writeback), settings(Mode::Writeback));
    two.world.write(&two.a, 0, &pattern(1));
    two.world.write(&two.b, 0, &pattern(2));
    two.faults.hang(&OpKind::ALL);
    two.world.submit(&two.a, Op::Read, MIB, 4096, None);
    let before = two.world.lane.now();
    let closed = two.world.close(&two.engine);
    closed.expect_err("one of them could not be stopped in order");
    assert!(two.world.lane.now().since(before) < LONG);
    assert!(two.engine.cache.store.all_durable());
}

#[test]
fn a_volume_is_deleted_with_dirty_data_while_its_origin_hangs() {
    let two = two(16, settings(Mode::Writeback), settings(Mode::Writeback));
    for block in 0..500 {
        two.world.write(&two.a, block * 4096, &pattern(block));
    }
    two.faults.hang(&OpKind::ALL);
    two.world.advance(Duration::from_secs(30));
    let before = two.world.lane.now();
    let engine = two.engine.clone();
    let deleted =
        two.world.block_on(async move { engine.delete("a", true, |_| Ok(()), || Ok(())).await });
    assert_eq!(deleted.expect("deleted"), TableChange::OnDevice);
    assert!(two.world.lane.now().since(before) < LONG);
    assert_eq!(two.engine.cache.store.volumes().len(), 1);
    two.faults.heal();
    two.world.advance(Duration::from_secs(5));
    storm(&two.world, &two.b, 4096, 10_000, 5);
}

/// A write through the cache while the log is full.
#[test]
fn a_write_through_a_full_log_is_acknowledged_by_the_origin() {
    for survives in [Survives::Nothing, Survives::Daemon, Survives::PowerLoss] {
        let world = World::new();
        let engine = open_small(&world, 8 * MIB);
        let (origin, faults) = world.faulty(ram(32));
        let a = world.create_as(&engine, "a", &origin, settings(Mode::Writeback), 0);
        faults.hang(&OpKind::ALL);
        // Repeat until nothing more can be appended.
        let mut number = 0;
        loop {
            let data = pattern(number);
            let tag = world.submit(&a, Op::Write, number * 4096, 4096, Some(&data));
            if world.wait_for(tag, LONG).is_none() {
                break;
            }
            number += 1;
        }
        world.set_as(&engine, "a", settings(Mode::Writethrough)).expect("set");
        // Both write the same block, so that one replaces the other in the log.
        let (block, tags) = (8000, [1_000_000, 1_000_001]);
        let sink: Rc<dyn CompletionSink> = world.sink.clone();
        for tag in tags {
            let data = Some(IoBuf::copy_from(&pattern(tag)));
            let (op, offset) = (Op::Write, block * 4096);
            let (len, fast, no_hole) = (4096, false, false);
            a.submit(Request { tag, op, offset, len, survives, fast, no_hole, data }, &sink);
        }
        world.advance(Duration::from_secs(1));
        let space = engine.cache.store.space_of(a.volume().id).expect("it is there");
        faults.heal();
        world.run(|| engine.cache.store.peek(&space, OriginBlock(block)).map(drop));
        faults.hang(&OpKind::ALL);
        world.advance(Duration::from_secs(30));
        let on_origin = || {
            let found = peek(&origin, block * 4096, 4096);
            tags.iter().any(|tag| found == pattern(*tag))
        };
        let early = tags.map(|tag| world.done(tag));
        faults.heal();
        if early.iter().any(Option::is_some) {
            assert!(on_origin(), "acknowledged, and the origin has neither");
        }
        let syncs = faults.syncs();
        for (tag, early) in tags.into_iter().zip(early) {
            if early.is_none() {
                world.wait(tag).result.expect("written");
                assert!(survives < Survives::PowerLoss || faults.syncs() > syncs);
            }
        }
        assert!(on_origin());
    }
}

#[test]
fn settings_of_two_volumes_that_change_at_once_are_both_kept() {
    let world = World::new();
    let (cache, faults) = world.faulty(ram(16));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let [a, b] = ["a", "b"].map(|name| world.create_as(&engine, name, &ram(16), kept_dirty(), 0));
    let strict = Settings { durability: Durability::Strict, ..kept_dirty() };
    let through = Settings { mode: Mode::Writethrough, ..kept_dirty() };
    // The second begins while the first is being stored.
    faults.hang(&[OpKind::Write]);
    let lane = world.lane.clone();
    world.block_on(async move {
        for (name, settings) in [("a", strict), ("b", through)] {
            let engine = engine.clone();
            lane.spawn(async move { engine.set(name, settings).await.expect("set") });
        }
        lane.sleep(Duration::from_millis(10)).await;
        faults.heal();
    });
    world.advance(Duration::from_secs(1));
    let now = [a, b].map(|volume| volume.volume().settings());
    assert_eq!(
        now.map(|of| (of.durability, of.mode)),
        [(Durability::Strict, Mode::Writeback), (Durability::Flush, Mode::Writethrough)]
    );
}
