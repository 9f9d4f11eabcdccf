//! Discards of blocks that only the cache has.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op};
use forebay_device::{Device, DeviceOp};
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::{Faults, OpKind, peek, poke, ram};
use parking_lot::Mutex;

use crate::world::{World, settings};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

struct Bench {
    world: World,
    cache: Arc<dyn Device>,
    origin: Arc<dyn Device>,
    faults: Arc<Faults>,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

/// A volume whose blocks are written back only on request, with 2 MiB of dirty blocks.
fn bench() -> Bench {
    let world = World::new();
    let (cache, (origin, faults)) = (ram(16), world.faulty(ram(12)));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let settings = Settings { writeback_running: false, ..settings(Mode::Writeback) };
    let target = world.create(&engine, &origin, settings, 0);
    world.write(&target, 0, &vec![1; 2 * MIB as usize]);
    world.op(&target, Op::Flush, 0, 0);
    Bench { world, cache, origin, faults, engine, target }
}

impl Bench {
    /// Returns the bytes appended to the log, those written to the origin, and the dirty blocks.
    fn written(&self) -> (u64, u64, u64) {
        let totals = self.target.volume().stats.totals();
        let dirty = self.target.volume().dirty_blocks();
        (totals.cache_written_bytes, totals.origin_written_bytes, dirty)
    }

    /// Opens the cache again as after `kill -9`.
    fn crash(&mut self) {
        self.world = World::new();
        self.engine = self.world.open(&self.cache).0;
        self.target = self.world.attach(&self.engine, &self.origin);
    }

    /// Returns the first byte of a block, whose bytes are all equal.
    fn read(&self, block: u64) -> u8 {
        let data = self.world.read(&self.target, block * BLOCK as u64, BLOCK);
        assert!(data.iter().all(|byte| *byte == data[0]), "a mixture");
        data[0]
    }
}

#[test]
fn dirty_blocks_are_taken_away_and_no_zeroes_are_written() {
    for op in [Op::Discard, Op::WriteZeroes] {
        let mut bench = bench();
        let (logged, _, dirty) = bench.written();
        assert_eq!(dirty, 512);
        let ops: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let seen = ops.clone();
        bench.faults.observe(move |op| {
            if !matches!(op, DeviceOp::Discard { len: 0, .. } | DeviceOp::Read { .. }) {
                seen.lock().push(op.what());
            }
        });
        bench.world.op(&bench.target, op, MIB / 2, MIB);
        assert_eq!(bench.written(), (logged, 0, 256), "{op:?}");
        assert_eq!(*ops.lock(), ["discard", "sync"], "{op:?}");
        // A second request finds nothing to do.
        bench.world.op(&bench.target, op, MIB / 2, MIB);
        assert_eq!(*ops.lock(), ["discard", "sync", "discard"], "{op:?}");
        for crash in [false, true] {
            if crash {
                bench.crash();
            }
            let read = [0, 127, 128, 383, 384].map(|block| bench.read(block));
            assert_eq!(read, [1, 1, 0, 0, 1], "{op:?}, crash: {crash}");
        }
        assert_eq!(bench.target.volume().dirty_blocks(), 256, "{op:?}");
        bench.world.drain(&bench.engine).expect("drained");
        assert_eq!(bench.written().1, MIB, "{op:?}: zeroes were written");
        assert!(peek(&bench.origin, MIB / 2, MIB as usize).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn blocks_only_in_the_log_stay_until_the_zeroes_are_durable() {
    let mut bench = bench();
    bench.faults.hang(&[OpKind::Sync]);
    let tag = bench.world.submit(&bench.target, Op::Discard, 0, MIB, None);
    bench.world.advance(Duration::from_secs(3));
    assert!(bench.world.done(tag).is_none());
    assert_eq!(bench.written().2, 512);
    // The origin may lose the zeroes in a power failure, and then has older data.
    bench.faults.heal();
    bench.crash();
    assert_eq!([0, 255, 256].map(|block| bench.read(block)), [1; 3]);

    // A sync that fails proves nothing.
    bench.faults.fail(&[OpKind::Sync]);
    let failed = bench.world.outcome(&bench.target, Op::Discard, 0, MIB, None);
    assert_eq!(failed, Err(IoError::Io));
    assert_eq!((bench.written().2, bench.read(0)), (512, 1));
}

#[test]
fn a_version_that_is_not_durable_leaves_no_older_one_behind() {
    let mut bench = bench();
    bench.world.write(&bench.target, 0, &vec![2; MIB as usize]);
    bench.world.op(&bench.target, Op::Discard, 0, MIB);
    bench.crash();
    assert_eq!([0, 255, 256].map(|block| bench.read(block)), [0, 0, 1]);
    assert_eq!(bench.target.volume().dirty_blocks(), 256);
}

/// The blocks were cached clean, and the versions written over them are not durable yet: a power
/// failure would remove them from the log, and bring the clean copies back.
#[test]
fn the_origin_is_not_zeroed_below_a_version_not_yet_durable() {
    for op in [Op::Discard, Op::WriteZeroes] {
        let mut bench = bench();
        let at = 4 * MIB;
        poke(&bench.origin, at, &vec![5; MIB as usize]);
        bench.world.read(&bench.target, at, MIB as usize);
        let engine = bench.engine.clone();
        bench.world.block_on(async move { engine.settle().await }).expect("settled");
        bench.world.write(&bench.target, at, &vec![6; MIB as usize]);
        bench.faults.hang(&[OpKind::Sync]);
        bench.world.submit(&bench.target, op, at, MIB, None);
        bench.world.run(|| (peek(&bench.origin, at, 512) == [0; 512]).then_some(()));
        bench.faults.heal();
        bench.crash();
        let check = bench.target.volume().checked.get().cloned().expect("known");
        assert_eq!(check.differing, 0, "{op:?}: clean copies of what is not there any more");
        let first = at / BLOCK as u64;
        assert_eq!([first, first + 255].map(|block| bench.read(block)), [6, 6], "{op:?}");
        assert_eq!(bench.target.volume().dirty_blocks(), 512 + 256, "{op:?}");
    }
}

/// Writeback has written the blocks to the origin and waits for a sync. Then a discard fails, which
/// leaves the content of the origin unknown.
#[test]
fn a_discard_that_fails_has_writeback_write_again() {
    let bench = bench();
    bench.faults.hang(&[OpKind::Sync]);
    let engine = bench.engine.clone();
    bench.world.lane.spawn(async move {
        let _ = engine.drain("data", |_| Ok(())).await;
    });
    bench.world.advance(Duration::from_secs(1));
    assert_eq!(bench.written(), (2 * MIB, 2 * MIB, 512));
    bench.faults.fail(&[OpKind::Discard]);
    let failed = bench.world.outcome(&bench.target, Op::Discard, 0, 2 * MIB, None);
    assert_eq!(failed, Err(IoError::Io));
    bench.faults.heal();
    bench.world.advance(Duration::from_secs(30));
    bench.world.drain(&bench.engine).expect("drained");
    assert!(bench.written().1 > 2 * MIB, "what is on the origin is not known");
    assert_eq!(bench.read(0), 1);
}

/// Writeback has written the blocks to the origin, and its sync ends while half of them are being
/// discarded there.
#[test]
fn writeback_cleans_no_block_that_is_being_zeroed() {
    let mut bench = bench();
    // This shows that the origin can discard, so that it need not be tried later.
    bench.world.op(&bench.target, Op::Discard, 4 * MIB, MIB);
    bench.faults.hang(&[OpKind::Sync, OpKind::Discard]);
    let engine = bench.engine.clone();
    bench.world.lane.spawn(async move {
        let _ = engine.drain("data", |_| Ok(())).await;
    });
    bench.world.advance(Duration::from_secs(1));
    let tag = bench.world.submit(&bench.target, Op::Discard, 0, MIB, None);
    bench.world.advance(Duration::from_secs(1));
    assert_eq!(bench.written(), (2 * MIB, 2 * MIB, 512));
    bench.faults.heal();
    bench.faults.hang(&[OpKind::Discard]);
    bench.world.advance(Duration::from_secs(1));
    assert!(bench.world.done(tag).is_none());
    assert_eq!(bench.written().2, 256, "what the origin has of the first half is not known");
    bench.faults.heal();
    bench.crash();
    assert_eq!([0, 255, 256].map(|block| bench.read(block)), [1; 3]);
}
