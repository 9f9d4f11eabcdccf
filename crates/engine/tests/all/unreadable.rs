//! Cached copies that cannot be read back, temporarily or permanently (invariants 11 and 16).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op};
use forebay_device::Device;
use forebay_engine::{EngineErrorKind, EngineLane, LaneVolume, Settings};
use forebay_testkit::{ANYWHERE, Faults, OpKind, peek, ram};

use crate::world::{World, settings};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

fn bytes_of(block: u64) -> std::ops::Range<u64> {
    block * BLOCK as u64..(block + 1) * BLOCK as u64
}

/// A volume whose first blocks are dirty and exist only on the cache device.
struct Dirty {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    cache: Arc<dyn Device>,
    faults: Arc<Faults>,
    origin: Arc<dyn Device>,
}

fn content() -> Vec<u8> {
    (0..BLOCKS * BLOCK).map(|at| (at / BLOCK + 1) as u8).collect()
}

fn dirty(ordered: bool) -> Dirty {
    let world = World::new();
    let ((cache, faults), origin) = (world.faulty(ram(8)), ram(12));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let mut quiet = Settings { ordered, ..settings(Mode::Writeback) };
    quiet.writeback_running = false;
    let target = world.create(&engine, &origin, quiet, 0);
    world.write(&target, 0, &content());
    world.op(&target, Op::Flush, 0, 0);
    let dirty = Dirty { world, engine, target, cache, faults, origin }.reopened();
    assert_eq!(dirty.target.volume().dirty_blocks(), BLOCKS as u64);
    dirty
}

impl Dirty {
    /// Opens the cache again, so that no data is left in buffers.
    fn reopened(mut self) -> Self {
        self.world.close(&self.engine).expect("closed");
        self.engine = self.world.open(&self.cache).0;
        self.target = self.world.attach(&self.engine, &self.origin);
        self
    }

    fn drain(&self) -> Result<(), EngineErrorKind> {
        self.world.drain(&self.engine).map_err(|error| error.kind)
    }

    fn read(&self, block: usize) -> Result<Vec<u8>, IoError> {
        self.world.try_read(&self.target, (block * BLOCK) as u64, BLOCK)
    }

    /// Returns the byte range of a block on the cache device.
    fn place(&self, block: usize) -> std::ops::Range<u64> {
        let store = &self.engine.cache.store;
        let space = store.space_of(self.target.volume().id).expect("a volume");
        let found = store.peek(&space, forebay_core::OriginBlock(block as u64)).expect("cached");
        let offset = store.geometry().slot_offset(found.entry.slot);
        offset..offset + BLOCK as u64
    }

    fn on_origin(&self) -> Vec<u8> {
        peek(&self.origin, 0, BLOCKS * BLOCK)
    }
}

#[test]
fn an_error_that_passes_loses_nothing() {
    for ordered in [false, true] {
        let dirty = dirty(ordered);
        dirty.faults.fail_next(OpKind::Read, ANYWHERE, 2);
        assert_eq!(dirty.read(3), Ok(vec![4; BLOCK]), "a client need not know");
        dirty.faults.fail_next(OpKind::Read, ANYWHERE, 2);
        assert_eq!(dirty.drain(), Ok(()), "ordered: {ordered}");
        assert_eq!(dirty.target.volume().bad_ranges(), []);
        assert!(dirty.on_origin() == content());
    }
}

#[test]
fn lasting_errors_concern_only_the_unreadable_blocks() {
    for ordered in [false, true] {
        let dirty = dirty(ordered);
        let bad = dirty.place(7);
        dirty.faults.fail_in(OpKind::Read, bad);
        assert_eq!(dirty.drain(), Err(EngineErrorKind::Failed));
        let volume = dirty.target.volume();
        assert_eq!(volume.bad_ranges(), vec![bytes_of(7)], "ordered: {ordered}");
        for block in 0..BLOCKS {
            let expected =
                if block == 7 { Err(IoError::Io) } else { Ok(vec![block as u8 + 1; BLOCK]) };
            assert_eq!(dirty.read(block), expected, "block {block}");
        }
        let mut rest = content();
        rest[7 * BLOCK..8 * BLOCK].fill(0);
        assert!(dirty.on_origin() == rest, "the others have to be there");
        dirty.faults.heal();
        assert_eq!(dirty.drain(), Ok(()), "ordered: {ordered}");
        assert_eq!(volume.bad_ranges(), []);
        assert!(dirty.on_origin() == content());
    }
}

#[test]
fn a_block_that_a_client_reads_again_is_not_lost() {
    let dirty = dirty(false);
    dirty.faults.fail_in(OpKind::Read, dirty.place(7));
    assert_eq!(dirty.read(7), Err(IoError::Io));
    let before = dirty.world.lane.now();
    assert_eq!(dirty.read(7), Err(IoError::Io));
    let waited = dirty.world.lane.now().since(before);
    assert!(waited < Duration::from_millis(100), "it waits each time: {waited:?}");
    dirty.faults.heal();
    assert_eq!(dirty.read(7), Ok(vec![8; BLOCK]));
    assert_eq!(dirty.target.volume().bad_ranges(), []);
}

/// One bad sector fails the read of the whole run around it, which includes blocks that were bad
/// earlier and are readable again.
#[test]
fn readable_blocks_are_not_lost_beside_unreadable_ones() {
    let dirty = dirty(false);
    let read_all = || dirty.world.try_read(&dirty.target, 0, BLOCKS * BLOCK);
    dirty.faults.fail(&[OpKind::Read]);
    assert_eq!(read_all(), Err(IoError::Io));
    assert_eq!(dirty.target.volume().bad_ranges().len(), BLOCKS);
    dirty.faults.heal();
    dirty.faults.fail_in(OpKind::Read, dirty.place(7));
    assert_eq!(read_all(), Err(IoError::Io));
    assert_eq!(dirty.target.volume().bad_ranges(), vec![bytes_of(7)]);
}

/// Only some sectors of a block were written; the origin has the others.
#[test]
fn sectors_that_a_lost_copy_does_not_hold_come_from_the_origin() {
    for mode in [Mode::Writeback, Mode::Writeonly] {
        let (dirty, last) = (dirty(false), (BLOCKS * BLOCK) as u64);
        let settings = Settings { mode, ..dirty.target.volume().settings() };
        dirty.world.set(&dirty.engine, settings).expect("set");
        dirty.world.write(&dirty.target, last + 512, &[9; 1024]);
        dirty.world.op(&dirty.target, Op::Flush, 0, 0);
        let dirty = dirty.reopened();
        let (world, target) = (&dirty.world, &dirty.target);
        dirty.faults.fail_in(OpKind::Read, dirty.place(BLOCKS));
        let read = |sector: u64, sectors: usize| {
            let read = world.try_read(target, last + sector * 512, sectors * 512);
            read.map(|data| data[0])
        };
        assert_eq!(read(3, 5), Ok(0), "{mode}");
        assert_eq!(read(0, 1), Ok(0), "{mode}");
        assert_eq!(read(2, 2), Err(IoError::Io), "{mode}");
        assert_eq!(target.volume().dirty_blocks(), BLOCKS as u64 + 1);
    }
}

/// A group was written without a block that cannot be read at present.
#[test]
fn a_block_missing_from_its_group_is_written_once_readable() {
    for (read, stopped) in [(true, false), (false, false), (false, true)] {
        let mut dirty = dirty(true);
        dirty.faults.fail_in(OpKind::Read, dirty.place(7));
        assert_eq!(dirty.drain(), Err(EngineErrorKind::Failed));
        assert_eq!(dirty.target.volume().dirty_blocks(), 1);
        dirty.faults.heal();
        if stopped {
            // The cache stays open, as if for another volume.
            dirty.world.stop(&dirty.engine, "data").expect("stopped");
            dirty.target = dirty.world.attach(&dirty.engine, &dirty.origin);
        }
        if read {
            assert_eq!(dirty.read(7), Ok(vec![8; BLOCK]));
        }
        assert_eq!(dirty.drain(), Ok(()), "{read} {stopped}");
        assert_eq!(dirty.target.volume().dirty_blocks(), 0, "{read} {stopped}");
        assert!(dirty.on_origin() == content(), "{read} {stopped}");
    }
}

/// Later groups may still be in RAM.
#[test]
fn no_group_is_written_past_one_on_a_device_that_is_gone() {
    for comes_back in [false, true] {
        let dirty = dirty(true);
        dirty.drain().expect("in order");
        let write = |block: usize| {
            dirty.world.write(&dirty.target, (block * BLOCK) as u64, &[0xaa; BLOCK]);
            dirty.world.op(&dirty.target, Op::Flush, 0, 0);
        };
        write(3);
        write(5);
        let dirty = dirty.reopened();
        dirty.world.write(&dirty.target, (9 * BLOCK) as u64, &[0xaa; BLOCK]);
        dirty.world.op(&dirty.target, Op::Flush, 0, 0);
        let eager = Settings { writeback_running: true, ..dirty.target.volume().settings() };
        let eager = Settings { dirty_age: Duration::from_millis(1), idle: Duration::ZERO, ..eager };
        let engine = dirty.engine.clone();
        let faults = dirty.faults.clone();
        dirty.world.lane.spawn(async move {
            engine.set("data", eager).await.expect("set");
            faults.fail(if comes_back { &[OpKind::Read] } else { &OpKind::ALL });
        });
        for step in 0..30 {
            if comes_back && step == 4 {
                dirty.faults.heal();
            }
            dirty.world.advance(Duration::from_millis(100));
            let has = |block: usize| dirty.on_origin()[block * BLOCK] == 0xaa;
            assert!(has(3) || !has(5), "{comes_back}");
            assert!(has(5) || !has(9), "{comes_back}");
        }
        let written = dirty.on_origin()[9 * BLOCK] == 0xaa;
        assert_eq!(written, comes_back, "a device that is gone, or that is there again");
    }
}
