//! Cache devices that reject everything, hang, or come back with old content; origins that hang
//! (invariants 5, 6, 9, 15 and 16).

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op};
use forebay_device::Device;
use forebay_engine::{
    EngineErrorKind, EngineLane, LaneVolume, Ledger, Note, Settings, TableChange,
};
use forebay_testkit::{Faults, OpKind, peek, ram};

use crate::world::{Book, World, settings};

const ALL: [OpKind; 3] = OpKind::ALL;
const REJECTS: [OpKind; 2] = [OpKind::Write, OpKind::Sync];
const BLOCK: usize = 4096;

struct Case {
    world: World,
    cache: Arc<dyn Device>,
    origin: Arc<dyn Device>,
    cache_faults: Arc<Faults>,
    origin_faults: Arc<Faults>,
    book: Arc<Book>,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

impl Case {
    fn new(mode: Mode) -> Self {
        Self::with(mode, |_| ())
    }

    fn with(mode: Mode, change: impl FnOnce(&mut Settings)) -> Self {
        let world = World::new();
        let ((cache, cache_faults), (origin, origin_faults)) =
            (world.faulty(ram(8)), world.faulty(ram(12)));
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let book: Arc<Book> = Arc::default();
        engine.cache.set_ledger(book.clone());
        let mut settings = settings(mode);
        settings.writeback_running = false;
        change(&mut settings);
        let target = world.create(&engine, &origin, settings, 0);
        Case { world, cache, origin, cache_faults, origin_faults, book, engine, target }
    }

    /// Attaches the volume to the devices' content after a crash.
    fn reopen(&mut self, force: bool) -> Result<(), EngineErrorKind> {
        let (engine, _) = self.world.open(&self.cache);
        engine.cache.set_ledger(self.book.clone());
        self.target =
            self.world.try_attach(&engine, &self.origin, force).map_err(|error| error.kind)?;
        self.engine = engine;
        Ok(())
    }

    fn crash(&mut self) {
        // A new world on the same devices; the lanes of the old world never run again.
        let world = World::new();
        self.world = world;
    }

    fn outcome(&self, op: Op, block: u64, byte: Option<u8>) -> Result<(), IoError> {
        let data = byte.map(|byte| [byte; BLOCK]);
        let data = data.as_ref().map(|data| &data[..]);
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (block * BLOCK as u64, BLOCK as u64),
        };
        self.world.outcome(&self.target, op, offset, len, data)
    }

    fn write(&self, block: u64, byte: u8) -> Result<(), IoError> {
        self.outcome(Op::Write, block, Some(byte))
    }

    fn flush(&self) -> Result<(), IoError> {
        self.outcome(Op::Flush, 0, None)
    }

    fn read(&self, block: u64) -> Result<u8, IoError> {
        let data = self.world.try_read(&self.target, block * BLOCK as u64, BLOCK)?;
        assert!(data.iter().all(|byte| *byte == data[0]), "a mixture");
        Ok(data[0])
    }

    fn set(&self, mode: Mode) -> Result<(), EngineErrorKind> {
        self.world.set(&self.engine, settings(mode)).map_err(|error| error.kind)
    }

    fn stop(&self) -> Result<(), EngineErrorKind> {
        self.world.stop(&self.engine, "data").map_err(|error| error.kind)
    }

    fn delete(&self, discard: bool) -> Result<TableChange, EngineErrorKind> {
        let engine = self.engine.clone();
        let result = self
            .world
            .block_on(async move { engine.delete("data", discard, |_| Ok(()), || Ok(())).await });
        result.map_err(|error| error.kind)
    }

    fn noted(&self) -> Vec<Range<u64>> {
        self.book.note_of("data").expect("a note").dirty
    }
}

#[test]
fn service_without_the_cache_device_brings_no_old_data_back() {
    for mode in [Mode::Writearound, Mode::Passthrough, Mode::Writethrough] {
        for faults in [&REJECTS[..], &ALL[..]] {
            let mut case = Case::new(mode);
            for block in 0..16 {
                case.write(block, 1).expect("all is well");
            }
            case.flush().expect("all is well");
            for block in 0..16 {
                assert_eq!(case.read(block), Ok(1));
            }
            case.flush().expect("all is well");
            case.world.advance(Duration::from_secs(3));
            case.cache_faults.fail(faults);
            for round in 2..4 {
                for block in 0..8 {
                    assert_eq!(case.write(block, round), Ok(()), "{mode} {faults:?}");
                    assert_eq!(case.read(block), Ok(round), "{mode} {faults:?}");
                }
                assert_eq!(case.flush(), Ok(()), "{mode} {faults:?}");
            }
            for block in 8..16 {
                assert_eq!(case.read(block), Ok(1), "{mode} {faults:?}");
            }
            assert_eq!(case.outcome(Op::Discard, 7, None), Ok(()));
            assert_eq!(case.outcome(Op::WriteZeroes, 6, None), Ok(()));
            assert_eq!(case.flush(), Ok(()));
            case.crash();
            case.cache_faults.heal();
            case.reopen(false).expect("nothing was dirty");
            for block in 0..16u64 {
                let expected = [3, 3, 3, 3, 3, 3, 0, 0].get(block as usize).copied().unwrap_or(1);
                assert_eq!(case.read(block), Ok(expected), "{mode} {faults:?} block {block}");
            }
        }
    }
}

#[test]
fn dirty_blocks_leave_a_read_only_device_and_stay_away() {
    let mut case = Case::new(Mode::Writeback);
    for block in 0..16 {
        case.write(block, 1).expect("all is well");
    }
    case.flush().expect("all is well");
    case.write(0, 2).expect("all is well");
    case.cache_faults.fail(&REJECTS);
    assert_eq!(case.flush(), Err(IoError::Io), "block 0 is nowhere");
    case.world.advance(Duration::from_secs(20));
    assert_eq!(case.target.volume().dirty_blocks(), 0);
    assert_eq!(case.flush(), Ok(()));
    assert_eq!(peek(&case.origin, 0, 2 * BLOCK), [[2; BLOCK], [1; BLOCK]].concat());
    for block in [0, 3, 20] {
        assert_eq!(case.write(block, 5), Ok(()));
        assert_eq!(case.read(block), Ok(5));
    }
    assert_eq!(case.flush(), Ok(()));
    assert_eq!(case.noted(), []);
    case.crash();
    case.cache_faults.heal();
    case.reopen(false).expect("nothing was dirty");
    assert_eq!(case.target.volume().dirty_blocks(), 0, "dirty blocks have come back");
    for (block, byte) in [(0, 5), (1, 1), (3, 5), (15, 1), (20, 5)] {
        assert_eq!(case.read(block), Ok(byte), "block {block}");
    }
    // The device is trusted again from now on.
    case.write(1, 7).expect("all is well");
    case.flush().expect("all is well");
    case.crash();
    case.reopen(false).expect("it is as it was left");
    assert_eq!(case.read(1), Ok(7));
}

#[test]
fn a_dead_device_costs_exactly_what_only_it_had() {
    let mut case = Case::new(Mode::Writeback);
    for block in 0..64 {
        case.write(block, 1).expect("all is well");
    }
    case.world.drain(&case.engine).expect("drained");
    for block in [3, 4, 9] {
        case.write(block, 2).expect("all is well");
    }
    case.flush().expect("all is well");
    case.crash();
    case.reopen(false).expect("all is well");
    case.cache_faults.fail(&ALL);
    // This write shows that the device is dead.
    assert_eq!(case.write(20, 5).and(case.flush()), Err(IoError::Io));
    let began = case.world.lane.now();
    for block in 0..64 {
        let expected = match block {
            3 | 4 | 9 => Err(IoError::Io),
            20 => continue,
            _ => Ok(1),
        };
        assert_eq!(case.read(block), expected, "block {block}");
    }
    assert!(case.world.lane.now().since(began) < Duration::from_secs(5), "invariant 15");
    case.world.advance(Duration::from_secs(15));
    assert_eq!(case.noted(), [3 * 4096..5 * 4096, 9 * 4096..10 * 4096]);
    assert_eq!(case.target.volume().noted_ranges(), Some(case.noted()));
    assert_eq!(case.write(30, 6), Ok(()));
    assert_eq!(case.flush(), Err(IoError::Io), "block 3 is not durable anywhere");
    assert_eq!(case.set(Mode::Passthrough), Ok(()));
    assert_eq!(case.target.volume().mode(), Mode::Passthrough);
    assert_eq!(case.delete(false), Err(EngineErrorKind::Failed));
    assert_eq!(case.read(30), Ok(6), "a command that failed has changed something");
    assert_eq!(case.stop(), Err(EngineErrorKind::DataAtRisk));
    // The device returns with its old content.
    case.crash();
    case.cache_faults.heal();
    case.reopen(false).expect("all that was dirty is there");
    for (block, byte) in [(3, 2), (4, 2), (9, 2), (20, 5), (30, 6), (40, 1)] {
        assert_eq!(case.read(block), Ok(byte), "block {block}");
    }
    case.cache_faults.fail(&ALL);
    assert_eq!(case.write(21, 5).and(case.flush()), Err(IoError::Io));
    assert_eq!(case.delete(true), Ok(TableChange::ByDaemon));
    assert!(case.engine.cache.volumes().is_empty());
}

#[test]
fn only_the_daemon_deletes_a_stopped_volume_on_a_failed_device() {
    let mut case = Case::new(Mode::Writeback);
    case.write(0, 1).and(case.flush()).expect("all is well");
    case.stop().expect("all is well");
    case.cache_faults.fail(&ALL);
    let engine = case.engine.clone();
    let deleted = case.world.block_on(async move { engine.delete_stopped("data", true).await });
    assert_eq!(deleted.map_err(|error| error.kind), Ok(TableChange::ByDaemon));
    case.crash();
    case.cache_faults.heal();
    assert!(case.reopen(false).is_ok(), "the device still has it");
}

#[test]
fn an_unreadable_note_needs_force_and_drops_clean_blocks() {
    let mut case = Case::new(Mode::Writeback);
    case.write(0, 1).and(case.flush()).expect("all is well");
    assert_eq!(case.read(9), Ok(0), "a clean block");
    case.stop().expect("all is well");
    case.book.1.store(true, Ordering::SeqCst);
    case.crash();
    assert_eq!(case.reopen(false), Err(EngineErrorKind::DataAtRisk));
    case.reopen(true).expect("forced");
    let counts = case.target.volume().dirty_blocks();
    assert_eq!((case.read(0), counts), (Ok(1), 1), "dirty blocks are kept");
    assert_eq!(case.engine.cache.store.index.len(), 1, "clean blocks are dropped");
}

#[test]
fn a_device_that_lost_what_was_dirty_needs_force() {
    let mut case = Case::new(Mode::Writeback);
    case.write(0, 1).expect("all is well");
    case.flush().expect("all is well");
    let note = Note {
        cache: case.engine.cache.store.uuid(),
        distrusted: true,
        exact: true,
        dirty: std::iter::once(0..2 * 4096).collect(),
    };
    case.book.0.lock().insert("data".into(), note);
    case.crash();
    assert_eq!(case.reopen(false), Err(EngineErrorKind::DataAtRisk));
    case.crash();
    assert_eq!(case.reopen(true), Ok(()));
    assert_eq!(case.read(0), Ok(1));
    assert_eq!(case.read(1), Ok(0));
}

#[test]
fn a_change_of_settings_that_fails_changes_nothing() {
    let case = Case::new(Mode::Writeback);
    let (engine, _) = {
        // Reopen without a ledger: only the cache device can record changes.
        case.stop().expect("all is well");
        case.world.open(&case.cache)
    };
    let target = case.world.attach(&engine, &case.origin);
    case.cache_faults.fail(&REJECTS);
    let before = target.volume().settings();
    let mut wanted = settings(Mode::Passthrough);
    wanted.cache_dirty_high = 33;
    let failed = case.world.set(&engine, wanted);
    assert_eq!(failed.map_err(|error| error.kind), Err(EngineErrorKind::Failed));
    assert_eq!(target.volume().settings(), before);
    assert_eq!(target.volume().mode(), Mode::Writeback);
}

#[test]
fn a_hung_cache_device_holds_up_no_request_that_can_avoid_it() {
    for mode in [Mode::Writearound, Mode::Writethrough, Mode::Passthrough] {
        let mut case = Case::new(mode);
        for block in 0..16 {
            case.write(block, 1).expect("all is well");
            case.read(block).expect("all is well");
        }
        case.flush().expect("all is well");
        case.world.advance(Duration::from_secs(3));
        case.crash();
        case.reopen(false).expect("all is well");
        for block in 8..16 {
            case.read(block).expect("all is well");
        }
        case.cache_faults.hang(&ALL);
        let began = case.world.lane.now();
        // The first request starts an operation that hangs; it and the following requests still
        // end.
        assert_eq!(case.write(0, 2), Ok(()), "{mode}");
        assert_eq!(case.read(0), Ok(2), "{mode}");
        assert_eq!(case.read(9), Ok(1), "{mode}");
        assert_eq!(case.flush(), Ok(()), "{mode}");
        let took = case.world.lane.now().since(began);
        assert!(took < Duration::from_secs(20), "{mode}: {took:?}");
        for block in 0..16 {
            assert_eq!(case.write(block, 3), Ok(()), "{mode}");
            assert_eq!(case.read(block), Ok(3), "{mode}");
        }
        assert_eq!(case.flush(), Ok(()), "{mode}");
        let healed = case.world.lane.now();
        if mode != Mode::Passthrough {
            assert!(case.engine.cache.health().is_hung(), "{mode}");
            assert!(case.engine.cache.health().hung_for() > Some(Duration::from_secs(4)));
        }
        case.cache_faults.heal();
        case.world.run(|| (!case.engine.cache.health().is_hung()).then_some(()));
        assert!(case.world.lane.now().since(healed) < Duration::from_secs(5));
        for block in 0..16 {
            assert_eq!(case.read(block), Ok(3), "{mode}");
        }
        case.crash();
        case.reopen(false).expect("nothing was dirty");
        for block in 0..16 {
            assert_eq!(case.read(block), Ok(3), "{mode} after a crash");
        }
    }
}

#[test]
fn a_crash_while_the_cache_device_hangs_brings_nothing_old_back() {
    let mut case = Case::new(Mode::Writeback);
    for block in 0..16 {
        case.write(block, 1).expect("all is well");
    }
    case.flush().expect("all is well");
    assert_eq!(case.set(Mode::Writethrough), Ok(()));
    case.world.advance(Duration::from_secs(5));
    case.flush().expect("all is well");
    case.cache_faults.hang(&REJECTS);
    for block in 0..16 {
        assert_eq!(case.write(block, 2), Ok(()));
    }
    assert_eq!(case.flush(), Ok(()));
    case.crash();
    case.cache_faults.heal();
    case.reopen(false).expect("nothing was dirty");
    for block in 0..16 {
        assert_eq!(case.read(block), Ok(2), "block {block}");
    }
}

#[test]
fn an_origin_is_recognised_after_the_cache_device_has_hung() {
    let mut case = Case::new(Mode::Writethrough);
    case.cache_faults.hang(&ALL);
    assert_eq!(case.write(0, 1), Ok(()));
    case.cache_faults.heal();
    let taken_back = || !case.book.note_of("data").is_some_and(|note| note.distrusted);
    case.world.run(|| (!case.engine.cache.health().is_hung() && taken_back()).then_some(()));
    // The samples are given up, so these writes to the origin do not update the cache device first.
    for block in (0..3072).step_by(8) {
        assert_eq!(case.write(block, 2), Ok(()));
    }
    assert_eq!(case.flush(), Ok(()));
    assert_eq!(case.set(Mode::Writeback), Ok(()));
    assert_eq!(case.write(1, 3), Ok(()));
    assert_eq!(case.flush(), Ok(()));
    case.crash();
    case.reopen(false).expect("nobody else has written there");
    assert_eq!([case.read(8), case.read(1)], [Ok(2), Ok(3)]);
}

#[test]
fn cached_blocks_are_served_while_the_origin_reportedly_hangs() {
    let case = Case::new(Mode::Writeback);
    for block in 0..16 {
        case.write(block, 1).expect("all is well");
    }
    case.flush().expect("all is well");
    case.origin_faults.hang(&ALL);
    let missing = case.world.submit(&case.target, Op::Read, 1 << 20, 4096, None);
    case.world.advance(Duration::from_secs(8));
    let waits = || case.target.volume().origin_waits();
    assert!(waits() >= Some(Duration::from_secs(5)), "{:?}", waits());
    for block in 0..16 {
        assert_eq!(case.read(block), Ok(1));
        assert_eq!(case.write(block, 2), Ok(()));
    }
    assert_eq!(case.flush(), Ok(()));
    let drained = case.world.drain(&case.engine);
    let error = drained.expect_err("it hangs");
    assert!(error.message.contains("origin") && error.message.contains(" s"), "{error}");
    case.origin_faults.heal();
    assert_eq!(case.world.wait(missing).result, Ok(()));
    case.world.advance(Duration::from_secs(3));
    assert_eq!(waits(), None);
}

#[test]
fn dirty_regions_are_noted_before_a_flush_is_answered() {
    let mut case = Case::new(Mode::Writeback);
    let covers = |note: &Note, block: u64| {
        let byte = block * BLOCK as u64;
        note.dirty.iter().any(|range| range.contains(&byte))
    };
    for block in [3, 700, 2000] {
        case.write(block, 1).expect("all is well");
        case.flush().expect("all is well");
        let note = case.book.note_of("data").expect("a note");
        assert!(covers(&note, block) && !note.exact && !note.distrusted, "{note:?}");
    }
    assert!(!covers(&case.book.note_of("data").expect("a note"), 1000));
    case.crash();
    case.reopen(false).expect("all is well");
    case.stop().expect("all is well");
    let note = case.book.note_of("data").expect("a note");
    let exactly: Vec<Range<u64>> =
        [3, 700, 2000].iter().map(|block| block * 4096..(block + 1) * 4096).collect();
    assert_eq!((note.exact, note.distrusted, note.dirty), (true, false, exactly));
    // Regions that have been clean for a while leave the note.
    let target = case.world.attach(&case.engine, &case.origin);
    case.target = target;
    for block in (0..3000).step_by(10) {
        case.write(block, 2).expect("all is well");
    }
    case.flush().expect("all is well");
    assert!(covers(&case.book.note_of("data").expect("a note"), 1000));
    case.world.drain(&case.engine).expect("drained");
    case.world.advance(Duration::from_secs(5));
    assert_eq!(case.noted(), []);
    case.write(1000, 3).expect("all is well");
    case.flush().expect("all is well");
    assert!(covers(&case.book.note_of("data").expect("a note"), 1000));
}

#[test]
fn writes_to_a_full_log_still_reach_log_and_origin() {
    let case = Case::new(Mode::Writethrough);
    case.cache_faults.hang(&[OpKind::Write]);
    let write = |block: u64| {
        let data = [block as u8; BLOCK];
        let offset = block * BLOCK as u64;
        case.world.submit(&case.target, Op::Write, offset, BLOCK as u64, Some(&data))
    };
    let tags: Vec<u64> = (0..3072).rev().map(write).collect();
    case.world.advance(Duration::from_millis(1));
    assert!(case.world.done(tags[3071]).is_none(), "there is room for all");
    case.cache_faults.heal();
    for (tag, block) in tags.into_iter().zip((0..3072).rev()) {
        assert_eq!(case.world.wait(tag).result, Ok(()), "block {block}");
    }
    assert!(!case.engine.cache.health().is_hung());
    let origin = peek(&case.origin, 0, 3072 * BLOCK);
    for block in 0..3072 {
        assert_eq!(case.read(block), Ok(block as u8));
        assert_eq!(origin[block as usize * BLOCK], block as u8);
    }
}

/// The age of groups from an earlier run is unknown, so it counts from the start.
#[test]
fn groups_of_an_earlier_run_do_not_make_later_ones_old() {
    let mut case = Case::with(Mode::Writeback, |settings| {
        settings.ordered = true;
        settings.writeback_running = true;
        settings.dirty_age = Duration::from_secs(1000);
        settings.idle = Duration::ZERO;
    });
    for blocks in [0..1, 0..2] {
        blocks.for_each(|block| case.write(block, 1).expect("all is well"));
        case.flush().expect("all is well");
    }
    case.crash();
    case.world.clock.pass(Duration::from_secs(3600));
    case.reopen(false).expect("all is well");
    let second = BLOCK as u64..2 * BLOCK as u64;
    case.origin_faults.fail_in(OpKind::Write, second);
    case.world.drain(&case.engine).expect_err("the second group cannot be written");
    case.origin_faults.heal();
    case.world.advance(Duration::from_secs(900));
    assert_eq!(case.target.volume().dirty_blocks(), 2);
    case.world.advance(Duration::from_secs(100));
    assert_eq!(case.target.volume().dirty_blocks(), 0);
}

#[test]
fn a_note_is_shortened_once_most_of_it_is_clean() {
    let case = Case::new(Mode::Writeback);
    let write_every_second_of = |blocks: Range<u64>| {
        for block in blocks.step_by(2) {
            case.write(block, 1).expect("all is well");
        }
        case.flush().expect("all is well");
    };
    write_every_second_of(0..60);
    case.world.drain(&case.engine).expect("drained");
    write_every_second_of(100..180);
    case.world.advance(Duration::from_secs(5));
    assert_eq!(case.noted().len(), 30 + 40);
    case.world.drain(&case.engine).expect("drained");
    write_every_second_of(100..120);
    case.world.advance(Duration::from_secs(5));
    assert_eq!(case.noted().len(), 10);
}

#[test]
fn an_ordered_volume_does_not_go_round_its_log() {
    let case = Case::with(Mode::Writeback, |settings| settings.ordered = true);
    case.write(0, 1).expect("all is well");
    case.flush().expect("all is well");
    case.cache_faults.fail(&ALL);
    assert_eq!(case.write(1, 2).and(case.flush()), Err(IoError::Io));
    assert_eq!(case.write(2, 2), Err(IoError::Io));
    assert_eq!(peek(&case.origin, 2 * 4096, BLOCK), [0; BLOCK]);
}

/// Versions that were held when the cache device failed are older than the data that the origin
/// received without the cache.
#[test]
fn held_versions_never_replace_writes_around_a_failed_device() {
    let mut case = Case::with(Mode::Writeback, |settings| {
        settings.ordered = true;
        settings.writeback_running = true;
        settings.idle = Duration::from_secs(1000);
    });
    case.world.advance(Duration::from_secs(2));
    for byte in [1, 2] {
        case.write(0, byte).expect("all is well");
        case.flush().expect("all is well");
    }
    case.cache_faults.fail(&REJECTS);
    let _ = case.write(1, 9).and(case.flush());
    let plain = Settings { idle: Duration::ZERO, ..settings(Mode::Writeback) };
    let _ = case.world.set(&case.engine, plain);
    case.world.advance(Duration::from_secs(30));
    assert_eq!(case.write(0, 3).and(case.flush()), Ok(()), "the write goes around the cache");
    assert_eq!(peek(&case.origin, 0, BLOCK), [3; BLOCK]);
    case.cache_faults.heal();
    case.crash();
    case.world.clock.pass(Duration::from_secs(3600));
    case.reopen(false).expect("the device is repaired");
    assert!(case.target.volume().settings().ordered, "the device does not know of the change");
    case.world.drain(&case.engine).expect("drained");
    assert_eq!(case.read(0), Ok(3));
    assert_eq!(peek(&case.origin, 0, BLOCK), [3; BLOCK], "on the origin");
}
