//! Writes through the cache that are durable on the origin before they are acknowledged.

use std::time::Duration;

use forebay_core::{BlockSize, Durability, IoError, Mode, Op};
use forebay_engine::Settings;
use forebay_testkit::{OpKind, faulty, ram};

use crate::world::{World, settings};

const BLOCK: usize = 4096;
const WRITES: u64 = 8;

fn strict() -> Settings {
    Settings { durability: Durability::Strict, ..settings(Mode::Writethrough) }
}

/// The first write's sync hangs until the others have come: the next sync covers all of them. None
/// of them is written to the origin again by writeback.
#[test]
fn writes_that_come_during_a_sync_share_the_next_and_reach_the_origin_once() {
    let world = World::new();
    let (origin, faults) = faulty(ram(16));
    let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, strict(), 0);
    let totals = || target.volume().stats.totals();
    world.write(&target, 0, &[1; BLOCK]);
    let (before, syncs) = (totals(), faults.syncs());
    faults.hang(&[OpKind::Sync]);
    let submit = |block: u64| {
        let offset = block * BLOCK as u64;
        world.submit(&target, Op::Write, offset, BLOCK as u64, Some(&[2; BLOCK]))
    };
    let tags: Vec<u64> = (0..WRITES).map(submit).collect();
    world.advance(Duration::from_secs(3));
    assert!(tags.iter().all(|tag| world.done(*tag).is_none()), "they are not durable");
    assert_eq!(target.volume().dirty_blocks(), WRITES);
    faults.heal();
    tags.iter().for_each(|tag| assert_eq!(world.wait(*tag).result, Ok(())));
    assert_eq!(faults.syncs() - syncs, 2);
    let written = totals().origin_written_bytes - before.origin_written_bytes;
    assert_eq!(written, WRITES * BLOCK as u64);
    assert_eq!((totals().written_back_blocks, target.volume().dirty_blocks()), (0, 0));
}

/// A sync that fails may have lost the writes of all that wait for their turn.
#[test]
fn a_failed_sync_fails_all_that_wait_for_the_next() {
    let world = World::new();
    let (origin, faults) = faulty(ram(16));
    let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, strict(), 0);
    faults.hang(&[OpKind::Sync]);
    let submit = |block: u64| {
        let offset = block * BLOCK as u64;
        world.submit(&target, Op::Write, offset, BLOCK as u64, Some(&[2; BLOCK]))
    };
    let tags: Vec<u64> = (0..WRITES).map(submit).collect();
    world.advance(Duration::from_secs(1));
    faults.heal();
    faults.fail_next(OpKind::Sync, 0..u64::MAX, 1);
    let syncs = faults.syncs();
    tags.iter().for_each(|tag| assert_eq!(world.wait(*tag).result, Err(IoError::Io)));
    assert_eq!(faults.syncs(), syncs, "no other sync may seem to succeed");
    // Writeback brings the origin what it may have lost.
    world.advance(Duration::from_secs(20));
    assert_eq!(target.volume().dirty_blocks(), 0);
}

/// A flush needs nothing of the cache device if the origin has all data: neither for writes through
/// the cache nor for fills. The data of a write that ends in the log is committed once.
#[test]
fn a_flush_leaves_the_cache_device_alone_unless_the_log_alone_has_data() {
    let world = World::new();
    let (cache, faults) = faulty(ram(64));
    let origin = ram(16);
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Writethrough), 0);
    let flush = || {
        let before = (faults.writes(), faults.syncs());
        world.op(&target, Op::Flush, 0, 0);
        (faults.writes(), faults.syncs()) != before
    };
    flush();
    world.write(&target, 0, &[1; BLOCK]);
    world.op(&target, Op::Prefetch, 8 * BLOCK as u64, BLOCK as u64);
    assert!(!flush(), "the origin has everything");
    assert_eq!(target.volume().dirty_blocks(), 0);

    world.set(&engine, settings(Mode::Writeback)).expect("set");
    for block in [0, 1, 8] {
        // Quickly, then not.
        world.write(&target, block * BLOCK as u64, &[2; BLOCK]);
        assert!(flush(), "block {block} is in the log alone");
        world.write(&target, block * BLOCK as u64, &[3; 512]);
        assert!(flush(), "a part of block {block} is in the log alone");
        assert!(!flush(), "it was committed");
    }
    world.op(&target, Op::WriteZeroes, 0, BLOCK as u64);
    assert!(flush(), "the zeroes are in the log");
}
