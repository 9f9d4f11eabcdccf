//! Index, segments and hazard slots in every interleaving that the memory model allows. A cell
//! stands for the payload of a segment; loom fails when a reader and a writer access it
//! concurrently.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_core::sync::atomic::{AtomicU32, Ordering};
use forebay_core::sync::loom::{self, cell::UnsafeCell, thread};
use forebay_core::{Generation, RecordNumber, SegmentId, Slot};

use crate::hazard::{HazardId, HazardSlots};
use crate::index::{Address, Condition, Index, NewVersion, Put, Unlocked};
use crate::segments::{Live, Segments};
use crate::table::{Check, Entry, TableGeometry};

fn index() -> Index {
    Index::new(TableGeometry::new(16, 1, 8, 8).expect("it is possible"), 1)
}

fn version(slot: u32) -> NewVersion {
    let entry =
        Entry { slot: Slot(slot), dirty: false, partial: false, rank: 0, check: Check::new(0) };
    NewVersion { entry, mask: None }
}

/// One block in each of two segments.
struct World {
    index: Index,
    segments: Segments,
    hazards: HazardSlots,
    payloads: [UnsafeCell<()>; 2],
}

impl World {
    fn new() -> Arc<Self> {
        let world = World {
            index: index(),
            segments: Segments::new(2, 2, Generation(1)),
            hazards: HazardSlots::new(1),
            payloads: [UnsafeCell::new(()), UnsafeCell::new(())],
        };
        for number in 0..2 {
            let (segment, _) = world.segments.open(0, (0, 1), false).expect("it is free");
            assert_eq!(segment, SegmentId(number));
            let put = world.index.put(Address(number.into()), version(number), Condition::Absent);
            assert!(matches!(put, Put::Done { .. }));
            world.segments.add_live(segment, Live::one(false, 0));
            world.segments.close(segment);
        }
        Arc::new(world)
    }

    /// Reads block `number` if it is cached: with a hazard slot if one is given, else with a pin.
    fn read(&self, hazard: Option<HazardId>, number: u32) {
        let address = Address(number.into());
        let segment_of = |slot: Slot| SegmentId(slot.0);
        if let Some(id) = hazard {
            match self.index.look_up_in_hazard(address, &self.hazards, id, segment_of) {
                Unlocked::Found(entry) => {
                    assert_eq!(entry.slot, Slot(number), "the entry of the block asked for");
                    self.payloads[entry.slot.0 as usize].with(|_| ());
                    return self.hazards.end(id);
                }
                Unlocked::Absent => return,
                Unlocked::Undecided => (),
            }
        }
        let mut hazard = hazard;
        let found = self.index.look_up(Address(number.into()), |entry| {
            let segment = SegmentId(entry.slot.0);
            if !self.hazards.begin(hazard, segment) {
                hazard = None;
                self.segments.pin(segment);
            }
            None
        });
        let Some(found) = found else { return };
        self.payloads[found.entry.slot.0 as usize].with(|_| ());
        match hazard {
            Some(hazard) => self.hazards.end(hazard),
            None => self.segments.unpin(SegmentId(found.entry.slot.0)),
        }
    }

    /// Takes segment 0 out of use, and overwrites it if no reader uses it. Returns whether it was
    /// overwritten.
    fn reuse(&self) -> bool {
        let segment = SegmentId(0);
        assert!(self.segments.begin_reclaim(segment));
        let old = self.index.remove(Address(0), |_| true).expect("it is cached");
        self.segments.remove_live(segment, Live::one(old.dirty, old.rank));
        assert!(self.segments.end_reclaim(segment, || (0, 0)), "nothing is left in it");
        let (freed, _) = self.segments.free_drained(0, 0, |other| self.hazards.is_read(other));
        if freed == 0 {
            return false;
        }
        let opened = self.segments.open(0, (0, 1), false).map(|(segment, _)| segment);
        assert_eq!(opened, Some(segment));
        self.payloads[0].with_mut(|_| ());
        true
    }
}

/// Reuses a segment while a lane reads from it and then from another one. Returns how often reuse
/// was refused and allowed.
fn reuse_beside_a_reader(with_slot: bool) -> [usize; 2] {
    // The counters are outside of the model, so they count over all interleavings.
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let inner = counts.clone();
    loom::model(move || {
        let world = World::new();
        let reader = world.clone();
        let thread = thread::spawn(move || {
            let hazard = if with_slot { reader.hazards.claim() } else { None };
            reader.read(hazard, 0);
            reader.read(hazard, 1);
            reader.hazards.release(hazard);
        });
        inner[usize::from(world.reuse())].fetch_add(1, Ordering::Relaxed);
        thread.join().expect("no panic");
    });
    [0, 1].map(|at| counts[at].load(Ordering::Relaxed))
}

#[test]
fn a_segment_is_not_reused_while_somebody_looks_at_it() {
    assert!(reuse_beside_a_reader(true).iter().all(|count| *count > 0));
}

#[test]
fn a_segment_is_not_reused_while_it_is_pinned() {
    assert!(reuse_beside_a_reader(false).iter().all(|count| *count > 0));
}

#[test]
fn a_look_up_without_the_lock_sees_one_version_or_the_other() {
    loom::model(|| {
        let shared = Arc::new((index(), HazardSlots::new(1)));
        shared.0.put(Address(3), version(1), Condition::Always);
        let changing = shared.clone();
        let thread = thread::spawn(move || {
            changing.0.put(Address(3), version(2), Condition::Always);
            changing.0.remove(Address(3), |_| true);
            changing.0.put(Address(4), version(9), Condition::Always);
        });
        let (index, hazards) = &*shared;
        let hazard = hazards.claim().expect("the first");
        let found = index.look_up_in_hazard(Address(3), hazards, hazard, |slot| SegmentId(slot.0));
        let is_found = match found {
            Unlocked::Found(entry) => {
                assert!(entry.slot == Slot(1) || entry.slot == Slot(2));
                true
            }
            Unlocked::Absent | Unlocked::Undecided => false,
        };
        // No hazard is published for an entry that was not valid.
        let published = (0..10).filter(|number| hazards.is_read(SegmentId(*number))).count();
        assert_eq!(published, usize::from(is_found));
        thread.join().expect("no panic");
    });
}

#[test]
fn an_unlocked_look_up_sees_words_from_before_or_after_widening() {
    loom::model(|| {
        let shared = Arc::new((index(), HazardSlots::new(1)));
        let check = 0x9876_5432;
        let entry = Entry { check: Check::new(check), ..version(1).entry };
        shared.0.put(Address(3), NewVersion { entry, mask: None }, Condition::Always);
        let changing = shared.clone();
        let thread = thread::spawn(move || {
            let index = &changing.0;
            let wide = index.begin_widening(30).expect("there are bits");
            assert!(wide.check_bits() < index.geometry().check_bits());
            index.widen_shard(0, &wide);
            index.widened(&wide);
        });
        let (index, hazards) = &*shared;
        let hazard = hazards.claim().expect("the first");
        let found = index.look_up_in_hazard(Address(3), hazards, hazard, |slot| SegmentId(slot.0));
        assert_ne!(found, Unlocked::Absent, "the block stays");
        if let Unlocked::Found(found) = found {
            assert_eq!(Entry { check: entry.check, ..found }, entry);
            assert!(index.check_matches(&found, check), "it has the bits that are compared");
        }
        let found = index.peek(Address(3)).expect("it is there");
        assert!(index.check_matches(&found.entry, check));
        thread.join().expect("no panic");
    });
}

/// Fills a block from the origin while `change` runs; in the end the index must agree with the
/// origin.
fn fill_beside(change: impl Fn(&Index, &AtomicU32) + Send + Sync + Copy + 'static) {
    loom::model(move || {
        let shared = Arc::new((index(), AtomicU32::new(1)));
        let filling = shared.clone();
        let thread = thread::spawn(move || {
            let (index, origin) = &*filling;
            let ticket = index.begin_fill(Address(3));
            let content = origin.load(Ordering::Relaxed);
            index.put(Address(3), version(content), Condition::Fill(&ticket));
            drop(ticket);
        });
        change(&shared.0, &shared.1);
        thread.join().expect("no panic");
        let found = shared.0.look_up(Address(3), |_| None);
        let content = shared.1.load(Ordering::Relaxed);
        assert!(found.is_none_or(|found| found.entry.slot == Slot(content)));
    });
}

#[test]
fn a_fill_is_overtaken_by_a_write_that_is_gone_again() {
    fill_beside(|index, origin| {
        index.put(Address(3), version(2), Condition::Always);
        origin.store(2, Ordering::Relaxed);
        index.remove(Address(3), |_| true);
    });
}

#[test]
fn a_fill_is_overtaken_by_a_discard() {
    fill_beside(|index, origin| {
        origin.store(2, Ordering::Relaxed);
        index.remove(Address(3), |_| true);
    });
}

/// One lane makes a block dirty, and another one cleans it at once.
#[test]
fn a_dirty_block_is_counted_before_another_lane_cleans_it() {
    loom::model(|| {
        let shared = Arc::new((index(), AtomicU32::new(0)));
        let writing = shared.clone();
        let thread = thread::spawn(move || {
            let (index, dirty) = &*writing;
            let mut version = version(1);
            version.entry.dirty = true;
            index.put_counted(Address(3), version, Condition::Always, |old| {
                assert!(old.is_none());
                dirty.fetch_add(1, Ordering::Relaxed);
            });
        });
        let (index, dirty) = &*shared;
        let clean = |entry: &Entry| entry.dirty.then_some(Entry { dirty: false, ..*entry });
        if index.update(Address(3), clean).is_some_and(|old| old.dirty) {
            assert_eq!(dirty.fetch_sub(1, Ordering::Relaxed), 1, "it was not counted yet");
        }
        thread.join().expect("no panic");
    });
}

#[test]
fn two_lanes_never_open_the_same_segment() {
    loom::model(|| {
        let segments = Arc::new(Segments::new(2, 2, Generation(1)));
        let other = segments.clone();
        let thread = thread::spawn(move || other.open(0, (1, 2), false));
        let own = segments.open(0, (0, 2), false);
        let (own, other) = (own.expect("free"), thread.join().ok().flatten().expect("free"));
        assert!(own.0 != other.0 && own.1 != other.1, "{own:?} {other:?}");
        assert!(segments.open(0, (0, 2), false).is_none());
    });
}

#[test]
fn a_sync_of_an_earlier_life_makes_nothing_durable() {
    loom::model(|| {
        let segments = Arc::new(Segments::new(1, 2, Generation(1)));
        let (segment, _) = segments.open(0, (0, 1), false).expect("free");
        segments.record_closed(segment, RecordNumber(1), 0..5);
        segments.close(segment);
        let records = segments.take_undurable(RecordNumber(1));
        assert!(segments.begin_reclaim(segment) && segments.end_reclaim(segment, || (0, 0)));
        segments.checkpoint_durable(RecordNumber(1));
        let late = segments.clone();
        let thread = thread::spawn(move || late.set_durable(&records));
        assert_eq!(segments.free_drained(0, 0, |_| false).0, 1);
        assert!(segments.open(0, (0, 1), false).is_some());
        thread.join().expect("no panic");
        assert!(!segments.is_durable(segment, 0));
    });
}
