//! Origins that accept no writes: found out while a volume is served (invariants 18 and 36), or
//! opened read-only (invariant 37).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op, Survives};
use forebay_device::{Device, IoBuf};
use forebay_engine::{
    BlockService, CompletionSink, EngineErrorKind, EngineLane, LaneVolume, LimitedVolume, Request,
    Settings,
};
use forebay_testkit::{Faults, faulty, for_reading, peek, ram};

use crate::world::{World, settings};

const BLOCK: usize = 4096;
/// A time within which every change is noticed.
const NOTICED: Duration = Duration::from_secs(2);
/// Longer than writeback waits between two attempts.
const RETRIED: Duration = Duration::from_secs(15);
const CHANGES: [Op; 3] = [Op::Write, Op::WriteZeroes, Op::Discard];

struct Case {
    world: World,
    origin: Arc<dyn Device>,
    faults: Arc<Faults>,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    top: Rc<LimitedVolume>,
}

impl Case {
    fn new(settings: Settings) -> Self {
        let (world, cache) = (World::new(), ram(16));
        let (origin, faults) = faulty(ram(12));
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let target = world.create(&engine, &origin, settings, 0);
        let top = LimitedVolume::new(target.clone(), target.clone());
        Case { world, origin, faults, engine, target, top }
    }

    /// Submits a client's request.
    fn ask(&self, op: Op, offset: u64, data: Option<&[u8]>) -> Result<(), IoError> {
        let len = if op == Op::Flush { 0 } else { BLOCK as u64 };
        let (survives, fast, no_hole) = (Survives::Nothing, false, false);
        let tag = 1 << 40 | offset << 4 | op as u64;
        let data = data.map(IoBuf::copy_from);
        let sink: Rc<dyn CompletionSink> = self.world.sink.clone();
        self.top.submit(Request { tag, op, offset, len, survives, fast, no_hole, data }, &sink);
        self.world.wait(tag).result
    }

    fn write(&self, offset: u64, byte: u8) -> Result<(), IoError> {
        let data = [byte; BLOCK];
        match self.top.write_now(offset, &data) {
            Some(result) => result,
            None => self.ask(Op::Write, offset, Some(&data)),
        }
    }

    fn pass(&self, time: Duration) {
        let lane = self.world.lane.clone();
        self.world.block_on(async move { lane.sleep(time).await });
    }

    fn is_refused(&self) -> bool {
        let data = |op| (op == Op::Write).then_some(&[1; BLOCK][..]);
        let refused = |op| self.ask(op, 1 << 20, data(op)) == Err(IoError::ReadOnly);
        self.top.write_now(1 << 20, &[1; BLOCK]) == Some(Err(IoError::ReadOnly))
            && CHANGES.into_iter().all(refused)
    }
}

fn quiet(mode: Mode) -> Settings {
    Settings { writeback_running: false, ..settings(mode) }
}

#[test]
fn a_protected_origin_refuses_writes_and_gets_dirty_data_later() {
    for ordered in [false, true] {
        let case = Case::new(Settings { ordered, ..quiet(Mode::Writeback) });
        case.write(0, 7).expect("written");
        case.faults.protect(true);
        case.pass(NOTICED);
        assert!(case.is_refused());
        assert_eq!(case.ask(Op::Flush, 0, None), Ok(()), "what was acknowledged is in the cache");
        assert_eq!(case.world.read(&case.target, 0, BLOCK), [7; BLOCK]);
        let protected = case.target.volume().origin_protected().expect("it says so");
        assert!(protected.contains("write-protected"), "{protected}");
        let error = case.world.drain(&case.engine).expect_err("it cannot arrive");
        assert_eq!(error.kind, EngineErrorKind::Failed);
        assert!(error.message.contains("write-protected"), "{error}");
        assert_eq!(case.target.volume().dirty_blocks(), 1);
        case.faults.heal();
        case.pass(NOTICED);
        case.write(1 << 20, 9).expect("it takes writes again");
        case.world.drain(&case.engine).expect("drained");
        assert_eq!(peek(&case.origin, 0, BLOCK), [7; BLOCK]);
        assert_eq!(peek(&case.origin, 1 << 20, BLOCK), [9; BLOCK]);
        assert_eq!(case.target.volume().origin_protected(), None);
        assert!(case.target.volume().writeback_error().is_none());
    }
}

#[test]
fn a_refused_write_tells_it_where_the_device_does_not() {
    for ordered in [false, true] {
        let case = Case::new(Settings { ordered, ..settings(Mode::Writeback) });
        case.faults.protect(false);
        case.write(0, 7).expect("nobody knows yet");
        assert!(case.world.drain(&case.engine).is_err());
        assert!(case.is_refused());
        case.pass(NOTICED);
        assert!(case.is_refused(), "until a write succeeds");
        assert_eq!(case.target.volume().dirty_blocks(), 1);
        case.faults.heal();
        case.pass(RETRIED);
        case.write(1 << 20, 9).expect("it takes writes again");
        case.world.drain(&case.engine).expect("drained");
        assert_eq!(peek(&case.origin, 0, BLOCK), [7; BLOCK]);
    }
}

#[test]
fn a_start_with_a_protected_origin_refuses_writes_at_once() {
    for ordered in [false, true] {
        let mut case = Case::new(Settings { ordered, ..quiet(Mode::Writeback) });
        case.write(0, 7).expect("written");
        case.world.stop(&case.engine, "data").expect("stopped");
        // As during a start that compares blocks: the origin accepted writes when it was opened.
        case.faults.protect(true);
        case.target = case.world.attach(&case.engine, &case.origin);
        case.top = LimitedVolume::new(case.target.clone(), case.target.clone());
        assert!(case.is_refused());
        assert!(case.target.volume().origin_protected().is_some());
        assert_eq!(case.world.read(&case.target, 0, BLOCK), [7; BLOCK]);
        case.faults.heal();
        case.pass(NOTICED);
        case.write(1 << 20, 9).expect("it takes writes again");
        case.world.drain(&case.engine).expect("drained");
        assert_eq!(peek(&case.origin, 0, BLOCK), [7; BLOCK]);
    }
}

#[test]
fn modes_that_write_to_the_origin_report_its_answer() {
    for mode in [Mode::Writethrough, Mode::Writearound, Mode::Passthrough] {
        let case = Case::new(settings(mode));
        case.faults.protect(false);
        assert_eq!(case.write(0, 7), Err(IoError::ReadOnly), "{mode}");
        case.faults.heal();
        case.pass(RETRIED);
        case.write(0, 8).expect("it takes writes again");
        case.world.drain(&case.engine).expect("drained");
        assert_eq!(peek(&case.origin, 0, BLOCK), [8; BLOCK], "{mode}");
    }
}

#[test]
fn a_read_only_volume_caches_reads_and_changes_nothing() {
    let (world, cache) = (World::new(), ram(16));
    let (disk, faults) = faulty(ram(12));
    forebay_testkit::poke(&disk, 0, &[5; BLOCK]);
    let written = faults.writes();
    let origin = for_reading(&disk);
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    assert!(target.read_only());
    assert_eq!(world.read(&target, 0, BLOCK), [5; BLOCK]);
    let read = faults.bytes_read();
    assert_eq!(world.read(&target, 0, BLOCK), [5; BLOCK]);
    assert_eq!(faults.bytes_read(), read, "the second time from the cache");
    let top = LimitedVolume::new(target.clone(), target.clone());
    let case = Case { world, origin: origin.clone(), faults, engine, target, top };
    assert!(case.is_refused());
    case.world.drain(&case.engine).expect("nothing is dirty");
    case.world.stop(&case.engine, "data").expect("stopped");
    case.world.attach(&case.engine, &origin);
    assert_eq!(case.faults.writes(), written);
}

#[test]
fn dirty_blocks_of_a_now_read_only_volume_are_served_and_kept() {
    for ordered in [false, true] {
        let case = Case::new(Settings { ordered, ..quiet(Mode::Writeback) });
        case.write(0, 7).expect("written");
        case.world.stop(&case.engine, "data").expect("stopped");
        let (origin, written) = (for_reading(&case.origin), case.faults.writes());
        let settings =
            Settings { ordered, dirty_age: Duration::from_secs(1), ..settings(Mode::Writeback) };
        let target = case.world.attach(&case.engine, &origin);
        case.world.set(&case.engine, settings).expect("set");
        case.pass(RETRIED);
        assert_eq!(case.world.read(&target, 0, BLOCK), [7; BLOCK]);
        let kept = target.volume().origin_protected().expect("it says so");
        assert!(kept.contains("read_only=off"), "{kept}");
        let error = case.world.drain(&case.engine).expect_err("it cannot arrive");
        assert!(error.message.contains("read_only=off"), "{error}");
        case.world.stop(&case.engine, "data").expect("stopped");
        assert_eq!(case.faults.writes(), written);
        case.world.attach(&case.engine, &case.origin);
        case.world.drain(&case.engine).expect("drained");
        assert_eq!(peek(&case.origin, 0, BLOCK), [7; BLOCK]);
    }
}

#[test]
fn a_cache_full_of_bound_dirty_blocks_serves_hits_and_misses() {
    let case = Case::new(quiet(Mode::Writeback));
    forebay_testkit::poke(&case.origin, 11 << 20, &[4; BLOCK]);
    let offsets = || (0..8 << 20).step_by(BLOCK);
    offsets().for_each(|offset| case.write(offset, 3).expect("there is room"));
    case.faults.protect(true);
    case.pass(NOTICED);
    assert!(case.is_refused());
    offsets()
        .for_each(|offset| assert_eq!(case.world.read(&case.target, offset, BLOCK), [3; BLOCK]));
    assert_eq!(case.world.read(&case.target, 11 << 20, BLOCK), [4; BLOCK]);
    assert_eq!(case.target.volume().dirty_blocks(), offsets().count() as u64);
}
