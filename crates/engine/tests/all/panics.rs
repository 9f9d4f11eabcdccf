//! Tasks that panic while others wait for their results: the cache fails as if its device had, and
//! every request and every command ends (invariants 15 and 25).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op};
use forebay_device::Device;
use forebay_engine::{EngineErrorKind, EngineLane, LaneVolume};
use forebay_store::StoreOptions;
use forebay_testkit::{ANYWHERE, Faults, OpKind, peek, ram, with_evidence};

use crate::world::{Book, World, settings};

const BLOCK: u64 = 4096;
/// More blocks than fit into the cache.
const MANY: u64 = 4096;

struct Case {
    world: World,
    origin: Arc<dyn Device>,
    cache_faults: Arc<Faults>,
    origin_faults: Arc<Faults>,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

impl Case {
    fn new(mode: Mode, checkpoint_bytes: Option<u64>) -> Self {
        let world = World::new();
        let ((cache, cache_faults), (origin, origin_faults)) =
            (world.faulty(ram(8)), world.faulty(ram(32)));
        world.format(&cache, BlockSize::DEFAULT);
        let options = StoreOptions { checkpoint_bytes, ..StoreOptions::default() };
        let (engine, _) = world.open_with(&cache, options);
        engine.cache.set_ledger(Arc::new(Book::default()));
        let target = world.create(&engine, &origin, settings(mode), 0);
        Case { world, origin, cache_faults, origin_faults, engine, target }
    }

    fn write(&self, block: u64, byte: u8) -> Result<(), IoError> {
        let data = [byte; BLOCK as usize];
        self.world.outcome(&self.target, Op::Write, block * BLOCK, BLOCK, Some(&data))
    }

    fn flush(&self) -> Result<(), IoError> {
        self.world.outcome(&self.target, Op::Flush, 0, 0, None)
    }

    fn read(&self, block: u64) -> u8 {
        self.world.read(&self.target, block * BLOCK, BLOCK as usize)[0]
    }

    /// Checks that the named task has panicked, that clients continue without the cache, and that
    /// the cache can be closed.
    fn goes_on_without(&self, task: &str) {
        self.world.drain(&self.engine).expect("what is dirty is in RAM or on the cache device");
        let cause = self.engine.cache.store.health.cause().expect("it has failed");
        assert!(cause.contains(task), "{cause}");
        assert_eq!(self.target.volume().dirty_blocks(), 0);
        for block in [0, 1, MANY + 1] {
            assert_eq!(self.write(block, 9), Ok(()));
            assert_eq!(self.read(block), 9);
        }
        assert_eq!(self.flush(), Ok(()));
        let block = peek(&self.origin, BLOCK, BLOCK as usize);
        assert!(block.iter().all(|byte| *byte == 9));
        let closed = self.world.close(&self.engine);
        assert_eq!(closed.map_err(|error| error.kind), Err(EngineErrorKind::Failed));
    }
}

#[test]
fn a_record_whose_write_panics_keeps_nobody_waiting() {
    let case = Case::new(Mode::Writeback, None);
    case.cache_faults.panic_in(OpKind::Write, ANYWHERE, 1);
    assert_eq!(case.write(0, 1), Ok(()));
    assert_eq!(case.flush(), Err(IoError::Io), "it is nowhere");
    case.goes_on_without("record");
    assert_eq!(case.world.lane.panics(), 1);
}

#[test]
fn a_commit_that_panics_keeps_nobody_waiting() {
    let case = Case::new(Mode::Writeback, None);
    case.cache_faults.panic_in(OpKind::Sync, ANYWHERE, 1);
    for block in 0..MANY {
        assert_eq!(case.write(block, 1), Ok(()), "block {block}");
    }
    case.goes_on_without("commit");
}

#[test]
fn checkpoints_that_panic_keep_nobody_waiting() {
    let case = Case::new(Mode::Writeback, Some(1 << 20));
    for area in case.engine.cache.store.geometry().checkpoint_areas {
        case.cache_faults.panic_in(OpKind::Write, area..area + BLOCK, u64::MAX);
    }
    for block in 0..MANY / 8 {
        assert_eq!(case.write(block, 1), Ok(()), "block {block}");
    }
    case.world.advance(Duration::from_secs(3));
    for block in 0..MANY {
        assert_eq!(case.write(block, 2), Ok(()), "block {block}");
    }
    case.goes_on_without("checkpoints");
}

#[test]
fn reclaim_that_panics_keeps_nobody_waiting() {
    let case = Case::new(Mode::Writethrough, None);
    case.cache_faults.panic_in(OpKind::Read, ANYWHERE, 1);
    for block in 0..MANY {
        assert_eq!(case.write(block, 1), Ok(()), "block {block}");
    }
    case.goes_on_without("reclaim");
}

#[test]
fn writeback_that_panics_begins_again() {
    for (what, task) in
        [(OpKind::Sync, "sync of the origin"), (OpKind::Write, "write to the origin")]
    {
        let case = Case::new(Mode::Writeback, None);
        case.origin_faults.panic_in(what, ANYWHERE, 1);
        assert_eq!(case.write(0, 1), Ok(()));
        assert_eq!(case.flush(), Ok(()));
        case.goes_on_without(task);
    }
}

#[test]
fn writeback_that_always_panics_ends_requests_and_commands() {
    for what in [OpKind::Sync, OpKind::Write] {
        let case = Case::new(Mode::Writeback, None);
        assert_eq!(case.write(0, 1), Ok(()));
        assert_eq!(case.flush(), Ok(()));
        case.origin_faults.panic_in(what, ANYWHERE, u64::MAX);
        let drained = case.world.drain(&case.engine);
        assert_eq!(drained.map_err(|error| error.kind), Err(EngineErrorKind::Failed));
        assert_eq!(case.write(0, 2), Err(IoError::Io));
        assert_eq!(case.read(0), 1);
        assert!(case.world.close(&case.engine).is_err());
    }
}

#[test]
fn a_request_that_panics_gives_back_what_it_held() {
    let case = Case::new(Mode::Writearound, None);
    case.origin_faults.panic_in(OpKind::Write, ANYWHERE, 1);
    assert_eq!(case.write(0, 1), Err(IoError::Io));
    assert_eq!(case.write(0, 2), Ok(()), "its range is free again");
    assert_eq!(case.read(0), 2);
    assert!(!case.engine.cache.store.health.failed(), "it concerns nobody else");
    case.world.close(&case.engine).expect("nothing is under way");
}

#[test]
fn a_panic_over_a_part_of_the_index_keeps_nobody_waiting() {
    let world = World::new();
    let (cache, faults) = world.faulty(ram(8));
    // The evidence excludes other writers, so no block is looked up when the volume starts.
    let origin = with_evidence(&ram(32), None, "file 1 7 33554432 1 1");
    world.format(&cache, BlockSize::DEFAULT);
    let options = StoreOptions { shards: Some(8), load_later_from: 1, ..StoreOptions::default() };
    let (engine, _) = world.open_with(&cache, options.clone());
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    (0..64).for_each(|block| world.write(&target, block * BLOCK, &[1; BLOCK as usize]));
    world.close(&engine).expect("closed");
    let (engine, _) = world.open_with(&cache, options);
    world.attach(&engine, &origin);
    assert!(!engine.cache.store.is_loaded(), "it is loaded in the background");
    faults.panic_in(OpKind::Read, ANYWHERE, 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(world.lane.panics(), 1);
    let ended = world.drain(&engine);
    let ended = ended.map_err(|error| error.to_string());
    assert!(ended.as_ref().is_err_and(|error| error.contains("index")), "{ended:?}");
    let cause = engine.cache.store.health.cause().expect("it has failed");
    assert!(cause.contains("index"), "{cause}");
    assert!(world.close(&engine).is_err());
}
