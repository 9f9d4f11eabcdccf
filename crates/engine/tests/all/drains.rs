//! Drains of volumes whose clients continue to write, and whose origin refuses some writes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op};
use forebay_device::DeviceOp;
use forebay_engine::{EngineError, EngineLane, LaneVolume, Settings};
use forebay_testkit::{ANYWHERE, Faults, OpKind, faulty, ram};
use parking_lot::Mutex;

use crate::world::{World, settings};

const BLOCK: u64 = 4096;

struct Bench {
    world: World,
    faults: Arc<Faults>,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

impl Bench {
    fn new() -> Self {
        let world = World::new();
        let (origin, faults) = faulty(ram(64));
        let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
        let writeback = Settings { merge_bytes: 0, ..settings(Mode::Writeback) };
        let target = world.create(&engine, &origin, writeback, 0);
        Bench { world, faults, engine, target }
    }

    fn write(&self, block: u64) -> u64 {
        self.world.submit(&self.target, Op::Write, block * BLOCK, BLOCK, Some(&[1; 4096]))
    }

    /// Slows down every following operation of the origin.
    fn slow_down(&self) {
        let clock = self.world.clock.clone();
        self.faults.observe(move |_| clock.pass(Duration::from_millis(3)));
    }

    /// Advances time while a client rewrites blocks that are far from each other, until `ended`
    /// returns true or for ten seconds.
    fn rewrite_until(&self, ended: impl Fn() -> bool) {
        for round in 0..1000 {
            if ended() {
                return;
            }
            for step in 0..32 {
                self.write(1000 + (32 * round + step) * 7 % 512 * 30);
            }
            self.world.advance(Duration::from_millis(10));
        }
    }

    /// Starts `work`; the cell has its result once it has ended.
    fn start<F>(&self, work: impl FnOnce(Rc<EngineLane>) -> F) -> Rc<Cell<Option<F::Output>>>
    where
        F: Future<Output = Result<(), EngineError>> + 'static,
    {
        let result = Rc::new(Cell::new(None));
        let (future, own) = (work(self.engine.clone()), result.clone());
        self.world.lane.spawn(async move { own.set(Some(future.await)) });
        result
    }
}

fn has_ended<T>(result: &Cell<Option<T>>) -> bool {
    let there = result.take();
    let ended = there.is_some();
    result.set(there);
    ended
}

#[test]
fn a_drain_gives_up_a_refused_range_despite_writes_elsewhere() {
    let bench = Bench::new();
    bench.faults.fail_in(OpKind::Write, 7 * BLOCK..8 * BLOCK);
    (0..64).for_each(|block| _ = bench.write(block));
    let drained = bench.start(|engine| async move { engine.drain("data", |_| Ok(())).await });
    bench.rewrite_until(|| has_ended(&drained));
    let error = drained.take().expect("it has ended").expect_err("a block is not written");
    assert!(error.message.contains("cannot be written back"), "{error:?}");
}

/// Advances time until a drain has ended, for 20 seconds at most.
fn end_of(bench: &Bench) -> Result<(), EngineError> {
    let drained = bench.start(|engine| async move { engine.drain("data", |_| Ok(())).await });
    for _ in 0..2000 {
        if has_ended(&drained) {
            break;
        }
        bench.world.advance(Duration::from_millis(10));
    }
    drained.take().expect("it has ended")
}

#[test]
fn a_failed_sync_after_many_failures_does_not_end_a_drain() {
    let bench = Bench::new();
    bench.faults.fail(&[OpKind::Write]);
    // Several syncs of the origin; the first fails.
    (0..2000).for_each(|block| _ = bench.write(2 * block));
    // The pauses between attempts grow to seconds during this.
    (0..2).for_each(|_| _ = end_of(&bench).expect_err("nothing is written"));
    bench.faults.heal();
    let failed = bench.faults.failed();
    bench.faults.fail_next(OpKind::Sync, ANYWHERE, 1);
    end_of(&bench).expect("the origin works");
    assert_eq!(bench.faults.failed(), failed + 1, "a sync has failed");
}

#[test]
fn an_error_is_shown_until_what_it_is_about_is_written() {
    let bench = Bench::new();
    let eager =
        Settings { dirty_age: Duration::from_millis(1), ..bench.target.volume().settings() };
    bench.world.set(&bench.engine, eager).expect("set");
    bench.faults.fail_in(OpKind::Write, 7 * BLOCK..8 * BLOCK);
    (0..64).for_each(|block| _ = bench.write(block));
    let seen = Cell::new(false);
    bench.rewrite_until(|| {
        let shown = bench.target.volume().writeback_error().is_some();
        assert!(shown || !seen.get(), "it is gone, and block 7 dirty");
        seen.set(shown);
        false
    });
    assert!(seen.get());
    bench.faults.heal();
    bench.world.advance(Duration::from_secs(60));
    assert!(bench.target.volume().writeback_error().is_none());
}

#[test]
fn a_drain_outlives_a_single_failed_write() {
    let bench = Bench::new();
    (0..5000).for_each(|number| _ = bench.write(3 * number));
    bench.faults.fail_next(OpKind::Write, 30 * BLOCK..31 * BLOCK, 1);
    bench.slow_down();
    bench.world.drain(&bench.engine).expect("the block is written at last");
}

#[test]
fn a_volume_is_deleted_although_clients_write_all_the_time() {
    let bench = Bench::new();
    (0..64).for_each(|block| _ = bench.write(block));
    bench.slow_down();
    let deleted = bench.start(|engine| async move {
        engine.delete("data", false, |_| Ok(()), || Ok(())).await.map(drop)
    });
    bench.rewrite_until(|| has_ended(&deleted));
    deleted.take().expect("it has ended").expect("deleted");
}

#[test]
fn after_a_doubt_only_what_was_sent_before_it_is_written_again() {
    let bench = Bench::new();
    let (last, discarded) = (2048, 8000);
    (0..last).chain([discarded]).for_each(|block| _ = bench.write(block));
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (all, clock) = (seen.clone(), bench.world.clock.clone());
    bench.faults.observe(move |op| {
        if let (DeviceOp::Write { .. }, Some(range)) = (op, op.range()) {
            all.lock().push(range.start / BLOCK);
        }
        clock.pass(Duration::from_millis(1));
    });
    let drained = bench.start(|engine| async move { engine.drain("data", |_| Ok(())).await });
    while seen.lock().len() < 200 {
        bench.world.advance(Duration::from_millis(1));
    }
    // A failed discard leaves unknown content in the range, including earlier writes.
    let range = discarded * BLOCK..(discarded + 1) * BLOCK;
    bench.faults.fail_next(OpKind::Discard, range.clone(), 1);
    bench.faults.fail_next(OpKind::Write, range.clone(), 1);
    let failed = bench.world.outcome(&bench.target, Op::Discard, range.start, BLOCK, None);
    assert!(failed.is_err() && !has_ended(&drained));
    // Writes in flight count as sent before.
    let doubt = seen.lock().len() + 128;
    while !has_ended(&drained) {
        bench.world.advance(Duration::from_millis(100));
    }
    drained.take().expect("it has ended").expect("everything is written at last");
    let seen = seen.lock();
    let again: BTreeSet<u64> = {
        let mut once = BTreeSet::new();
        seen.iter().copied().filter(|block| !once.insert(*block)).collect()
    };
    assert!(!again.is_empty(), "nothing was in doubt");
    let later: BTreeSet<u64> =
        seen.iter().skip(doubt).copied().filter(|block| *block != discarded).collect();
    let sent_before: BTreeSet<u64> = seen.iter().take(doubt).copied().collect();
    let needless: Vec<_> =
        again.intersection(&later).filter(|block| !sent_before.contains(block)).collect();
    assert!(needless.is_empty(), "written again without a doubt: {needless:?}");
}
