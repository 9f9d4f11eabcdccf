//! Uses of cached blocks: each counts once, whichever path answers it, and blocks that are read
//! stay cached.

use std::rc::Rc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op, OriginBlock};
use forebay_engine::{BlockService, EngineLane, LaneVolume};
use forebay_store::{StoreLane, StoreOptions};
use forebay_testkit::{OpKind, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

fn test() -> Test {
    let world = World::new();
    let (cache, origin) = (ram(32), ram(64));
    world.format(&cache, BlockSize::DEFAULT);
    let (engine, _) = world.open_with(&cache, StoreOptions { lanes: 1, ..StoreOptions::default() });
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    Test { world, engine, target }
}

impl Test {
    fn ranks(&self, blocks: std::ops::Range<u64>) -> Vec<u8> {
        let store = &self.engine.cache.store;
        let space = store.space_of(self.target.volume().id).expect("there");
        let rank = |block| store.peek(&space, OriginBlock(block)).map(|found| found.entry.rank);
        blocks.map(|block| rank(block).expect("cached")).collect()
    }

    /// Checks that the segments' counters match the index.
    fn check(&self) {
        let store = &self.engine.cache.store;
        let (mut blocks, mut kept) = (0, 0);
        store.index.scan(|_, entry| {
            blocks += 1;
            kept += u64::from(entry.rank > 0);
        });
        assert_eq!(store.segments.all_live(), (blocks, kept));
    }

    fn read_now(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.target.read_now(offset, &mut data).expect("cached, in RAM").expect("read");
        data
    }

    fn write_now(&self, block: u64, byte: u8) {
        let data = vec![byte; BLOCK as usize];
        self.target.write_now(block * BLOCK, &data).expect("room").expect("written");
    }
}

#[test]
fn each_use_counts_once_and_three_uses_are_most() {
    let test = test();
    // New blocks are in the small queue.
    (0..4).for_each(|block| test.write_now(block, 1));
    assert_eq!(test.ranks(0..4), [1, 1, 1, 1]);
    // A whole read, a partial read, a submitted read, an overwrite.
    test.read_now(0, BLOCK as usize);
    test.read_now(BLOCK + 512, 1024);
    test.world.read(&test.target, 2 * BLOCK, BLOCK as usize);
    test.write_now(3, 2);
    assert_eq!(test.ranks(0..4), [2, 2, 2, 2]);
    // Reads all blocks with one request.
    assert_eq!(test.read_now(0, 4 * BLOCK as usize)[3 * BLOCK as usize], 2);
    assert_eq!(test.ranks(0..4), [3, 3, 3, 3]);
    for _ in 0..3 {
        test.read_now(0, 4 * BLOCK as usize);
        test.read_now(0, BLOCK as usize);
        test.write_now(1, 3);
    }
    assert_eq!(test.ranks(0..4), [4, 4, 4, 4]);
    test.check();
}

#[test]
fn a_block_in_part_counts_once() {
    let test = test();
    test.world.write(&test.target, 512, &[7; 1024]);
    assert_eq!(test.ranks(0..1), [1]);
    assert_eq!(test.read_now(512, 1024), [7; 1024]);
    assert_eq!(test.ranks(0..1), [2]);
    // Only the first part of the block is cached.
    let mut data = [0; 512];
    assert!(test.target.read_now(0, &mut data).is_none());
    assert_eq!(test.ranks(0..1), [2]);
    test.check();
}

#[test]
fn a_block_that_was_given_up_and_is_used_is_kept_again() {
    let test = test();
    for (uses, ways) in [(0, 0), (1, 0), (0, 1)] {
        test.write_now(5, 1);
        let store = &test.engine.cache.store;
        let space = store.space_of(test.target.volume().id).expect("there");
        let slot = store.peek(&space, OriginBlock(5)).expect("cached").entry.slot;
        store.rerank(&space, OriginBlock(5), slot, |_| 0).expect("there");
        assert_eq!(test.ranks(5..6), [0]);
        test.check();
        (0..uses).for_each(|_| drop(test.read_now(5 * BLOCK, BLOCK as usize)));
        (0..ways).for_each(|_| test.write_now(5, 9));
        assert_eq!(test.ranks(5..6)[0] > 0, uses + ways > 0);
        test.check();
    }
}

#[test]
fn unread_blocks_are_evicted_once_they_are_clean() {
    for reads in [false, true] {
        let test = test();
        // More blocks than fit, so that reclaim has taken the clients' accesses into account.
        for block in (0..10_000).chain(0..10_000) {
            test.world.write(&test.target, block * BLOCK, &[1; BLOCK as usize]);
            if reads && block % 8 == 0 {
                test.world.read(&test.target, block * BLOCK, BLOCK as usize);
            }
        }
        for byte in 2..5 {
            let data = [byte; BLOCK as usize];
            (0..64).for_each(|block| test.world.write(&test.target, block * BLOCK, &data));
        }
        assert!(test.ranks(0..64).iter().all(|rank| *rank > 0), "dirty blocks are kept");
        test.world.drain(&test.engine).expect("drained");
        assert!(test.ranks(0..64).iter().all(|rank| (*rank > 0) == reads), "{reads}");
        test.check();
    }
}

/// The protection with which a task holds the block that it has looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// A hazard slot that no other look-up uses.
    Hazard,
    /// A slot that another look-up uses too, and releases first.
    Second,
    /// A pin, because no slot is free.
    Pin,
}

#[test]
fn blocks_being_read_are_not_overwritten() {
    for look in [Look::Hazard, Look::Second, Look::Pin] {
        let test = test();
        let (engine, world) = (&test.engine, &test.world);
        let store = &engine.cache.store;
        let space = store.space_of(test.target.volume().id).expect("there");
        (0..32).for_each(|block| test.write_now(block, 0x11));
        // One lane has two slots, and the engine uses one of them.
        let ways = [(); 2].map(|()| {
            let queue = world.context.open(store.device()).expect("a queue");
            StoreLane::new(store.clone(), world.lane.clone(), queue)
        });
        let way = &ways[usize::from(look == Look::Pin)];
        let see = |block| way.look_up_now(&space, OriginBlock(block), |entry| entry.rank);
        let other = (look == Look::Second).then(|| see(7));
        let pinned = see(0).expect("cached");
        drop(other);
        let slots = u64::from(store.segments.count()) * store.cells_per_segment();
        for turn in 0..4 * slots {
            world.write(&test.target, turn % 64 * BLOCK, &[0x22; BLOCK as usize]);
        }
        let mut data = vec![0; BLOCK as usize];
        way.read_now(&space, &pinned, &mut data).expect("RAM").expect("as it was");
        assert!(data.iter().all(|byte| *byte == 0x11), "{look:?}");
        drop(pinned);
        assert_eq!(test.read_now(0, BLOCK as usize), [0x22; BLOCK as usize]);
        test.check();
    }
}

#[test]
fn a_rank_that_changes_during_a_hit_is_not_overwritten() {
    let test = test();
    test.write_now(0, 1);
    let store = &test.engine.cache.store;
    let space = store.space_of(test.target.volume().id).expect("there");
    let queue = test.world.context.open(store.device()).expect("a queue");
    let lane = StoreLane::new(store.clone(), test.world.lane.clone(), queue);
    let mut seen = Vec::new();
    let pinned = lane.look_up_now(&space, OriginBlock(0), |entry| {
        if seen.is_empty() {
            // Done in the way of another lane.
            store.rerank(&space, OriginBlock(0), entry.slot, |_| 2).expect("there");
        }
        seen.push(entry.rank);
        entry.rank + 1
    });
    drop(pinned.expect("cached"));
    assert_eq!((seen.as_slice(), test.ranks(0..1).as_slice()), ([1, 2].as_slice(), [3].as_slice()));
    test.check();
}

/// A tier above serves reads that do not reach this volume.
#[test]
fn reads_served_by_a_tier_above_count_as_uses() {
    let test = test();
    for block in 0..4 {
        test.write_now(block, 7);
    }
    let before = test.ranks(0..4);
    // Parts of blocks 1 and 2, and blocks that are not cached.
    test.target.used(BLOCK + 512, BLOCK);
    test.target.used(8 * BLOCK, 4 * BLOCK);
    let after = test.ranks(0..4);
    assert_eq!((after[0], after[3]), (before[0], before[3]));
    assert_eq!((after[1], after[2]), (before[1] + 1, before[2] + 1));
    test.check();
}

/// Writes and reads blocks that all fit into the cache, and reads others once, from an origin whose
/// reads take `time` and whose writes take none. Returns how many reads of the former missed at the
/// end.
fn misses_of_hot(time: Duration) -> u64 {
    let world = World::new();
    let engine = world.new_cache(&ram(16), BlockSize::DEFAULT);
    let (origin, faults) = world.faulty(ram(512));
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    world.op(&target, Op::Flush, 0, 0);
    let read = |block: u64| {
        if !time.is_zero() {
            faults.hang(&[OpKind::Read]);
        }
        let tag = world.submit(&target, Op::Read, block * BLOCK, BLOCK, None);
        if world.wait_for(tag, time).is_none() {
            faults.heal();
            world.wait(tag);
        }
    };
    let mut random = fastrand::Rng::with_seed(3);
    let (hot, mut cold, mut missed) = (1500, 1500, 0);
    for request in 0..40_000 {
        let block = random.u64(..hot);
        match random.u8(..4) {
            0 | 1 => world.write(&target, block * BLOCK, &[request as u8; BLOCK as usize]),
            2 => {
                let before = target.volume().stats.totals().read_misses;
                read(block);
                let after = target.volume().stats.totals().read_misses;
                missed += if request > 20_000 { after - before } else { 0 };
            }
            _ => {
                read(cold);
                cold += 1;
            }
        }
    }
    missed
}

#[test]
fn dirty_blocks_that_are_kept_stay_where_a_miss_costs_much() {
    let [slow, fast] = [Duration::from_millis(1), Duration::ZERO].map(misses_of_hot);
    println!("{slow} misses where a read takes 1 ms, {fast} where it takes nothing");
    assert!(slow * 2 < fast, "{slow} {fast}");
}
