//! Writes through the cache, and the syncs that make them durable.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Durability, IoError, Mode, Op, Survives};
use forebay_device::IoBuf;
use forebay_engine::{
    BlockService, Completion, CompletionSink, EngineLane, LaneVolume, Request, Settings,
};
use forebay_testkit::{Faults, OpKind, faulty, peek, ram};

use crate::world::two::{MIB, open_small};
use crate::world::{Book, World, settings};

const BLOCK: usize = 4096;
const WRITES: u64 = 8;

fn strict() -> Settings {
    Settings { durability: Durability::Strict, ..settings(Mode::Writethrough) }
}

/// A volume whose origin has faults.
struct Bench {
    world: World,
    faults: Arc<Faults>,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

fn bench(settings: Settings) -> Bench {
    let world = World::new();
    let (origin, faults) = faulty(ram(16));
    let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings, 0);
    Bench { world, faults, engine, target }
}

/// Starts writes of the first blocks, and returns their tags.
fn write_many(world: &World, target: &Rc<LaneVolume>) -> Vec<u64> {
    let len = BLOCK as u64;
    let submit = |block| world.submit(target, Op::Write, block * len, len, Some(&[2; BLOCK]));
    (0..WRITES).map(submit).collect()
}

/// The first write's sync hangs until the other writes have arrived; the next sync covers all of
/// them. Writeback writes none of them to the origin again.
#[test]
fn writes_during_a_sync_share_the_next_one() {
    let Bench { world, faults, engine: _engine, target } = bench(strict());
    let totals = || target.volume().stats.totals();
    world.write(&target, 0, &[1; BLOCK]);
    let (before, syncs) = (totals(), faults.syncs());
    faults.hang(&[OpKind::Sync]);
    let tags = write_many(&world, &target);
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

/// Zeroes that do not go through the log, and discards: if acknowledged, they survive a power
/// failure here too.
#[test]
fn a_strict_volume_syncs_what_it_zeroes_on_the_origin() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let Bench { world, faults, engine: _engine, target } = bench(strict());
        let (len, before) = (1 << 20, faults.syncs());
        world.op(&target, op, 0, len);
        assert_eq!(faults.syncs() - before, 1, "{op:?}");
        faults.hang(&[OpKind::Sync]);
        let tag = world.submit(&target, op, 0, len, None);
        world.advance(Duration::from_secs(3));
        assert!(world.done(tag).is_none(), "{op:?}");
        faults.heal();
        assert_eq!(world.wait(tag).result, Ok(()));
    }
}

/// A block that became dirty because it was overwritten before its sync is left to writeback, which
/// needs the range.
#[test]
fn a_write_through_a_cache_that_fails_does_not_wait_for_itself() {
    let world = World::new();
    let ((cache, cache_faults), origin) = (world.faulty(ram(64)), ram(16));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    engine.cache.set_ledger(Arc::new(Book::default()));
    let target = world.create(&engine, &origin, settings(Mode::Writethrough), 0);
    world.write(&target, 0, &[1; BLOCK]);
    cache_faults.fail(&[OpKind::Write, OpKind::Sync]);
    let request = Request {
        tag: 0,
        op: Op::Write,
        offset: 512,
        len: 512,
        survives: Survives::PowerLoss,
        fast: false,
        no_hole: false,
        data: Some(IoBuf::copy_from(&[2; 512])),
    };
    let tag = world.submit_as(&target, request);
    assert_eq!(world.wait(tag).result, Ok(()), "the origin has it");
    assert_eq!(peek(&origin, 0, 1024), [[1; 512], [2; 512]].concat());
}

/// A failed sync may have lost the writes of all tasks that wait for their turn.
#[test]
fn a_failed_sync_fails_all_that_wait_for_the_next() {
    let Bench { world, faults, engine: _engine, target } = bench(strict());
    faults.hang(&[OpKind::Sync]);
    let tags = write_many(&world, &target);
    world.advance(Duration::from_secs(1));
    faults.heal();
    faults.fail_next(OpKind::Sync, 0..u64::MAX, 1);
    let syncs = faults.syncs();
    tags.iter().for_each(|tag| assert_eq!(world.wait(*tag).result, Err(IoError::Io)));
    assert_eq!(faults.syncs(), syncs, "no other sync may seem to succeed");
    // Writeback writes the data that the origin may have lost.
    world.advance(Duration::from_secs(20));
    assert_eq!(target.volume().dirty_blocks(), 0);
}

/// A flush does not use the cache device if the origin has all data, neither for writes through the
/// cache nor for fills. The data of a write that ends in the log is committed once.
#[test]
fn a_flush_commits_only_if_the_log_alone_has_data() {
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
        // Once on the quick path, then on the other.
        world.write(&target, block * BLOCK as u64, &[2; BLOCK]);
        assert!(flush(), "block {block} is in the log alone");
        world.write(&target, block * BLOCK as u64, &[3; 512]);
        assert!(flush(), "a part of block {block} is in the log alone");
        assert!(!flush(), "it was committed");
    }
    world.op(&target, Op::WriteZeroes, 0, BLOCK as u64);
    assert!(flush(), "the zeroes are in the log");
}

/// Writes the next block as soon as a write has ended.
struct Again {
    target: Weak<LaneVolume>,
    own: Weak<Again>,
    next: Cell<u64>,
    stopped: Cell<bool>,
}

impl Again {
    fn submit(self: &Rc<Self>) {
        let Some(target) = self.target.upgrade().filter(|_| !self.stopped.get()) else { return };
        let tag = self.next.get();
        self.next.set(tag + 1);
        let (op, survives, fast, no_hole) = (Op::Write, Survives::Nothing, false, false);
        let (offset, len) = (tag % 512 * BLOCK as u64, BLOCK as u64);
        let data = Some(IoBuf::copy_from(&[3; BLOCK]));
        let sink: Rc<dyn CompletionSink> = self.clone();
        target.submit(Request { tag, op, offset, len, survives, fast, no_hole, data }, &sink);
    }
}

impl CompletionSink for Again {
    fn complete(&self, completion: Completion) {
        assert_eq!(completion.result, Ok(()));
        if let Some(own) = self.own.upgrade() {
            own.submit();
        }
    }
}

/// Each sync covers the writes that arrived during the one before, so there is always a dirty block
/// that is being written to the origin.
#[test]
fn a_drain_ends_while_writes_through_the_cache_never_do() {
    let Bench { world, faults, engine, target } = bench(strict());
    let again = Rc::new_cyclic(|own| Again {
        target: Rc::downgrade(&target),
        own: own.clone(),
        next: Cell::new(0),
        stopped: Cell::new(false),
    });
    let (ends, disk, lane) = (again.clone(), faults.clone(), world.lane.clone());
    faults.hang(&[OpKind::Sync]);
    world.lane.spawn(async move {
        while !ends.stopped.get() {
            lane.sleep(Duration::from_millis(5)).await;
            disk.heal();
            // The hung sync ends; the next one hangs.
            forebay_lane::yield_now().await;
            disk.hang(&[OpKind::Sync]);
        }
        disk.heal();
    });
    (0..8).for_each(|_| again.submit());
    world.drain(&engine).expect("drained");
    assert!(again.next.get() > 8 && target.volume().dirty_blocks() > 0, "writes go on");
    again.stopped.set(true);
    world.advance(Duration::from_secs(1));
    assert_eq!(target.volume().dirty_blocks(), 0);
}

/// A later sync by writeback proves nothing about writes that a failed one may have lost. Reads
/// must not bring them into the cache, which would keep them after the origin has lost them
/// (invariant 12).
#[test]
fn writes_that_a_failed_sync_may_have_lost_stay_uncached() {
    let Bench { world, faults, engine, target } = bench(settings(Mode::Writearound));
    world.write(&target, 0, &[1; BLOCK]);
    faults.fail_next(OpKind::Sync, 0..u64::MAX, 1);
    assert_eq!(world.outcome(&target, Op::Flush, 0, 0, None), Err(IoError::Io));

    world.set(&engine, settings(Mode::Writeback)).expect("set");
    world.write(&target, 8 * BLOCK as u64, &[2; BLOCK]);
    let syncs = faults.syncs();
    world.drain(&engine).expect_err("flushes fail until the volume is started again");
    assert!(faults.syncs() > syncs && target.volume().dirty_blocks() == 0, "it was written back");

    let misses = || target.volume().stats.totals().read_misses;
    let before = misses();
    (0..3).for_each(|_| assert_eq!(world.read(&target, 0, BLOCK), [1; BLOCK]));
    assert_eq!(misses() - before, 3);
}

/// A write that waits for free space was meant only for the log when it began.
#[test]
fn a_write_that_waited_during_a_mode_change_is_on_the_origin() {
    let world = World::new();
    let (origin, faults) = faulty(ram(16));
    let engine = open_small(&world, 8 * MIB);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    faults.hang(&[OpKind::Write]);
    let len = BLOCK as u64;
    let mut tags: VecDeque<u64> = (0..4096)
        .map(|block| world.submit(&target, Op::Write, block * len, len, Some(&[1; BLOCK])))
        .collect();
    world.advance(Duration::from_secs(1));
    tags.retain(|tag| world.done(*tag).is_none());
    assert!(tags.len() > 1000, "the log is full");
    faults.heal();
    let first = 4096 - tags.len() as u64;
    world.set(&engine, settings(Mode::Writethrough)).expect("set");
    for (block, tag) in (first..).zip(tags) {
        assert_eq!(world.wait(tag).result, Ok(()));
        assert!(peek(&origin, block * len, BLOCK) == [1; BLOCK], "block {block}");
    }
}

/// Until the end of the order is durable, clients write only to the log.
#[test]
fn leaving_order_and_writeback_leaves_a_volume_clean() {
    let world = World::new();
    let origin = ram(16);
    let (cache, faults) = faulty(ram(64));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let ordered = Settings { ordered: true, ..settings(Mode::Writeback) };
    let target = world.create(&engine, &origin, ordered, 0);
    world.advance(Duration::from_secs(1));
    let drained = Rc::new(Cell::new(false));
    let (done, own, hanging) = (drained.clone(), engine.clone(), faults.clone());
    world.lane.spawn(async move {
        own.set("data", settings(Mode::Writethrough)).await.expect("set");
        hanging.hang(&[OpKind::Write]);
        own.drain("data", |_| Ok(())).await.expect("drained");
        done.set(true);
    });
    world.advance(Duration::from_millis(300));
    assert!(!drained.get(), "the order is not over");
    faults.heal();
    world.advance(Duration::from_secs(30));
    assert!(drained.get());
    let tag = world.submit(&target, Op::Write, 0, BLOCK as u64, Some(&[1; BLOCK]));
    assert_eq!(world.wait(tag).result, Ok(()));
    assert_eq!(peek(&origin, 0, BLOCK), [1; BLOCK]);
}
