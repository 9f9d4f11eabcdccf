//! The segments of a cache device: free, open, closed, or about to become free.
//!
//! A segment may be opened again only when all of this holds (invariant 8):
//! - no index entry points into it, no reader that found one earlier is still reading, and no
//!   version in it is held for an ordered volume;
//! - everything that superseded its content is durable: a commit that began after its last entry
//!   was removed has succeeded;
//! - the durable checkpoint is not older than its newest record, because recovery replays every
//!   record that the checkpoint does not contain.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::sync::Mutex;
use forebay_core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_core::{Generation, RecordNumber, SegmentId};
use forebay_device::LogBuffer;

use crate::planted::{self, PlantedBug};
pub use live::Live;
use live::LiveCounts;
pub(crate) use live::counts_as;
use starts::RecordStarts;

mod live;
mod restore;
mod starts;

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Contains nothing that is needed; it may be opened.
    Free,
    /// Records are being appended.
    Open,
    /// Full, or cut off by a crash; holds records.
    Closed,
    /// Being emptied by reclaim.
    Reclaiming,
    /// Empty, but not yet allowed to be opened again.
    Draining,
}

/// Number of segments that are visited under one lock.
const LIVES_AT_ONCE: usize = 1024;

/// The state of one segment that is read without a lock.
#[derive(Default)]
struct Counters {
    /// Readers that found an entry and have not finished reading.
    pins: AtomicU32,
    /// 1 while the segment's RAM image exists.
    buffered: AtomicU32,
    /// Granules from the segment's start that are durable.
    durable: AtomicU32,
    /// Versions held for the origin of an ordered volume, newest or not.
    held: AtomicU32,
}

/// The life of a segment: from one opening to the next. Each has a generation of its own.
#[derive(Clone, Copy, Debug)]
struct SegmentLife {
    state: SegmentState,
    generation: Generation,
    /// Position in the order in which segments were opened, for replacement by age.
    opened: u64,
    /// See [`SegmentUse::on_probation`].
    on_probation: bool,
    /// Number of the last record of this life.
    last_record: RecordNumber,
    /// Granules used, for the checkpoint.
    position: u32,
}

impl SegmentLife {
    /// The life of a segment that was never opened.
    const FREE: SegmentLife = SegmentLife {
        state: SegmentState::Free,
        generation: Generation(0),
        opened: 0,
        on_probation: false,
        last_record: RecordNumber(0),
        position: 0,
    };
}

/// State of each segment, by number.
struct Tables {
    counters: Box<[Counters]>,
    generations: Box<[AtomicU64]>,
    live: LiveCounts,
    buffers: Box<[Mutex<Option<Arc<LogBuffer>>>]>,
    lives: Vec<SegmentLife>,
    starts: RecordStarts,
}

struct Draining {
    segment: SegmentId,
    /// The commit round that must have succeeded.
    round: u64,
    /// The number of marks that must be durable.
    marks: u64,
}

/// A closed record that is not known to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undurable {
    segment: SegmentId,
    generation: Generation,
    number: RecordNumber,
    end: u32,
}

struct State {
    lives: Vec<SegmentLife>,
    free: VecDeque<SegmentId>,
    draining: Vec<Draining>,
    undurable: Vec<Undurable>,
    starts: RecordStarts,
    opened: u64,
    next_generation: u64,
}

/// A segment as replacement policies see it.
#[derive(Clone, Copy, Debug)]
pub struct SegmentUse {
    /// Number of the segment.
    pub id: SegmentId,
    /// Position in the order in which segments were opened.
    pub opened: u64,
    /// Index entries that point into it.
    pub live: Live,
    /// Whether new blocks were appended to it and the replacement policy has not passed it since.
    pub on_probation: bool,
    /// Whether a version in it is held for an ordered volume, so that it cannot be reclaimed.
    pub held: bool,
}

/// The life of a segment as a checkpoint records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSnapshot {
    /// Generation of this life.
    pub generation: Generation,
    /// State of the segment.
    pub state: SegmentState,
    /// Granules used.
    pub position: u32,
}

/// All segments of one cache device.
pub struct Segments {
    counters: Box<[Counters]>,
    /// Copies of the lives' generations, to be read without the lock.
    generations: Box<[AtomicU64]>,
    live: LiveCounts,
    buffers: Box<[Mutex<Option<Arc<LogBuffer>>>]>,
    state: Mutex<State>,
    checkpoint_base: AtomicU64,
    /// Number of free segments that must not be opened for now.
    withheld: AtomicU32,
    /// Segments with at least one held version.
    with_held: AtomicU32,
}

impl Segments {
    /// Makes `count` free segments for `lanes` lanes; the first life gets `next_generation`.
    pub fn new(count: u32, lanes: usize, next_generation: Generation) -> Self {
        let tables = Tables {
            counters: (0..count).map(|_| Counters::default()).collect(),
            generations: (0..count).map(|_| AtomicU64::new(0)).collect(),
            live: LiveCounts::new(count, lanes),
            buffers: (0..count).map(|_| Mutex::new(None)).collect(),
            lives: vec![SegmentLife::FREE; count as usize],
            starts: RecordStarts::new(count),
        };
        let segments = Self::of(tables, next_generation);
        segments.state.lock().free = (0..count).map(SegmentId).collect();
        segments
    }

    /// Creates a table without free segments.
    fn of(tables: Tables, next_generation: Generation) -> Self {
        let Tables { counters, generations, live, buffers, lives, starts } = tables;
        Segments {
            counters,
            generations,
            live,
            buffers,
            state: Mutex::new(State {
                lives,
                free: VecDeque::new(),
                draining: Vec::new(),
                undurable: Vec::new(),
                starts,
                opened: 0,
                next_generation: next_generation.0,
            }),
            checkpoint_base: AtomicU64::new(0),
            withheld: AtomicU32::new(0),
            with_held: AtomicU32::new(0),
        }
    }

    /// Returns the number of segments.
    pub fn count(&self) -> u32 {
        self.counters.len() as u32
    }

    /// Returns the number of segments that may be opened immediately.
    pub fn free_count(&self) -> u32 {
        self.state.lock().free.len() as u32
    }

    /// Returns up to `most` free segments, in the order in which they became free.
    pub(crate) fn free(&self, most: usize) -> Vec<SegmentId> {
        self.state.lock().free.iter().take(most).copied().collect()
    }

    /// Keeps this many free segments from being opened, from now on.
    pub(crate) fn withhold(&self, segments: u32) {
        self.withheld.store(segments, Ordering::SeqCst);
    }

    /// Keeps all but `most` free segments from being opened.
    pub(crate) fn withhold_beyond(&self, most: u32) {
        self.withhold(self.free_count().saturating_sub(most));
    }

    /// Returns the number of segments that are empty but not yet free.
    pub fn draining_count(&self) -> u32 {
        self.state.lock().draining.len() as u32
    }

    /// Opens a free segment if at least `reserve` others stay free, or returns `None`. The caller
    /// fills it.
    ///
    /// `appender` of `appenders` takes it from its own part of the free ones: the states of
    /// neighbouring segments share cache lines. `on_probation`: see [`SegmentUse::on_probation`].
    pub fn open(
        &self,
        reserve: u32,
        (appender, appenders): (usize, usize),
        on_probation: bool,
    ) -> Option<(SegmentId, Generation)> {
        let mut state = self.state.lock();
        // Background work, with no reserve, may open withheld segments: marks must not wait.
        let withheld = if reserve > 0 { self.withheld.load(Ordering::Relaxed) } else { 0 };
        if state.free.len() as u64 <= u64::from(reserve) + u64::from(withheld) {
            return None;
        }
        let at = state.free.len() * appender / appenders.max(1);
        let segment = state.free.swap_remove_front(at)?;
        let mut generation = Generation(state.next_generation);
        if planted::has(PlantedBug::GenerationsWrap) {
            generation.0 %= forebay_format::MAX_NARROW_GENERATION;
        }
        if !planted::has(PlantedBug::GenerationStays) {
            state.next_generation += 1;
        }
        state.opened += 1;
        let opened = state.opened;
        let life = &mut state.lives[segment.0 as usize];
        *life = SegmentLife {
            state: SegmentState::Open,
            generation,
            opened,
            on_probation,
            last_record: RecordNumber(0),
            position: 0,
        };
        state.starts.clear(segment);
        self.generations[segment.0 as usize].store(generation.0, Ordering::Release);
        self.counters[segment.0 as usize].durable.store(0, Ordering::SeqCst);
        Some((segment, generation))
    }

    /// Records that a record was closed in an open segment, with the granules that it takes.
    pub fn record_closed(&self, segment: SegmentId, number: RecordNumber, granules: Range<u32>) {
        let mut state = self.state.lock();
        let life = &mut state.lives[segment.0 as usize];
        life.last_record = life.last_record.max(number);
        life.position = granules.end;
        let generation = life.generation;
        state.starts.add(segment, granules.start);
        state.undurable.push(Undurable { segment, generation, number, end: granules.end });
    }

    /// Returns the starts of some records of a segment, in granules and ascending, if known.
    pub fn record_starts(&self, segment: SegmentId) -> Vec<u32> {
        self.state.lock().starts.of(segment)
    }

    /// Takes the records up to `through`, which a commit is about to make durable.
    pub(crate) fn take_undurable(&self, through: RecordNumber) -> Vec<Undurable> {
        let mut state = self.state.lock();
        let all = std::mem::take(&mut state.undurable);
        let (taken, left) = all.into_iter().partition(|record| record.number <= through);
        state.undurable = left;
        taken
    }

    /// Records that records have become durable.
    pub(crate) fn set_durable(&self, records: &[Undurable]) {
        let state = self.state.lock();
        for record in records {
            let index = record.segment.0 as usize;
            if state.lives[index].generation == record.generation {
                self.counters[index].durable.fetch_max(record.end, Ordering::SeqCst);
            }
        }
    }

    /// Returns whether a position in a segment, in granules, is durable.
    pub(crate) fn is_durable(&self, segment: SegmentId, position: u32) -> bool {
        position < self.counters[segment.0 as usize].durable.load(Ordering::SeqCst)
    }

    /// Closes the segment: nothing more will be appended.
    pub fn close(&self, segment: SegmentId) {
        self.state.lock().lives[segment.0 as usize].state = SegmentState::Closed;
    }

    /// Returns the segment's current generation. It cannot change while an index entry points into
    /// the segment or a pin is held, because both keep the segment from being opened again.
    pub fn generation(&self, segment: SegmentId) -> Generation {
        Generation(self.generations[segment.0 as usize].load(Ordering::Acquire))
    }

    /// Returns the granules used in the segment's current life.
    pub fn position(&self, segment: SegmentId) -> u32 {
        self.state.lock().lives[segment.0 as usize].position
    }

    /// Returns the generation of the next segment to be opened.
    pub fn next_generation(&self) -> Generation {
        Generation(self.state.lock().next_generation)
    }

    /// Skips some generations, for tests near limits.
    pub fn skip_generations(&self, count: u64) {
        self.state.lock().next_generation += count;
    }

    /// Stores the closed segments that have no RAM image in `into`. They are not as of one instant:
    /// other lanes get the lock meanwhile.
    pub fn closed(&self, into: &mut Vec<SegmentUse>) {
        into.clear();
        self.closed_among(0..self.count(), into);
    }

    /// Like [`Segments::closed`], but appends only segments with these numbers to `into`.
    pub fn closed_among(&self, among: Range<u32>, into: &mut Vec<SegmentUse>) {
        let end = among.end.min(self.count()) as usize;
        for first in (among.start as usize..end).step_by(LIVES_AT_ONCE) {
            let state = self.state.lock();
            let last = (first + LIVES_AT_ONCE).min(end);
            for (index, life) in state.lives.iter().enumerate().take(last).skip(first) {
                let counters = &self.counters[index];
                // Acquire: the counts include everything that was added while the segment had an
                // image.
                let buffered = counters.buffered.load(Ordering::Acquire) != 0;
                if life.state == SegmentState::Closed && !buffered {
                    into.push(SegmentUse {
                        id: SegmentId(index as u32),
                        opened: life.opened,
                        live: self.live.of(index, Ordering::Relaxed),
                        on_probation: life.on_probation,
                        held: counters.held.load(Ordering::SeqCst) != 0,
                    });
                }
            }
        }
    }

    /// Returns the number of segments with held versions, whose space cannot be reused.
    pub fn with_held(&self) -> u32 {
        self.with_held.load(Ordering::Relaxed)
    }

    /// Records that the replacement policy has passed a segment on probation.
    pub fn end_probation(&self, segment: SegmentId) {
        self.state.lock().lives[segment.0 as usize].on_probation = false;
    }

    /// Returns the index entries that point into all segments, and how many of them are kept.
    pub fn all_live(&self) -> (u64, u64) {
        self.live_among(0..self.count())
    }

    /// Like [`Segments::all_live`], of some segments.
    pub fn live_among(&self, among: Range<u32>) -> (u64, u64) {
        let indices = among.start as usize..among.end.min(self.count()) as usize;
        let live = indices.map(|index| self.live.of(index, Ordering::Relaxed));
        live.fold((0, 0), |(blocks, kept), one| {
            (blocks + u64::from(one.blocks), kept + u64::from(one.kept))
        })
    }

    /// Reserves a closed segment for reclaim; `false` if it is not closed.
    pub fn begin_reclaim(&self, segment: SegmentId) -> bool {
        let mut state = self.state.lock();
        let life = &mut state.lives[segment.0 as usize];
        let closed = life.state == SegmentState::Closed;
        // With a RAM image, an entry could still be added after the segment was found empty.
        debug_assert!(
            !closed || self.counters[segment.0 as usize].buffered.load(Ordering::Acquire) == 0
        );
        if closed {
            life.state = SegmentState::Reclaiming;
        }
        closed
    }

    /// Ends a reclaim; returns whether the segment is empty. If so, it starts draining: it becomes
    /// free when the commit round of `wait_for` has succeeded, its number of marks is durable, and
    /// the other conditions hold. If not, it stays closed. `wait_for` is called after the check.
    pub fn end_reclaim(&self, segment: SegmentId, wait_for: impl FnOnce() -> (u64, u64)) -> bool {
        let empty = self.live(segment) == 0;
        let (round, marks) = wait_for();
        let mut state = self.state.lock();
        let life = &mut state.lives[segment.0 as usize];
        life.state = if empty { SegmentState::Draining } else { SegmentState::Closed };
        if empty {
            state.draining.push(Draining { segment, round, marks });
        }
        empty
    }

    /// Frees every draining segment whose conditions hold, given the last successful commit round
    /// and the number of durable marks. Returns how many became free, and whether some wait only
    /// for a checkpoint. `is_read`: whether a lane is reading from a segment without a pin.
    pub fn free_drained(
        &self,
        round: u64,
        marks: u64,
        is_read: impl Fn(SegmentId) -> bool,
    ) -> (u32, bool) {
        let base = self.checkpoint_base.load(Ordering::SeqCst);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (mut freed, mut need_checkpoint) = (0, false);
        state.draining.retain(|draining| {
            let index = draining.segment.0 as usize;
            let counters = &self.counters[index];
            let used = || {
                counters.pins.load(Ordering::SeqCst) != 0
                    || counters.held.load(Ordering::SeqCst) != 0
                    || is_read(draining.segment)
            };
            if draining.round > round || used() {
                return true;
            }
            // A checkpoint also replaces marks that found no room in the log.
            let ahead = state.lives[index].last_record.0 > base || draining.marks > marks;
            if ahead && !planted::has(PlantedBug::FreedBeforeCheckpoint) {
                need_checkpoint = true;
                return true;
            }
            state.lives[index].state = SegmentState::Free;
            state.free.push_back(draining.segment);
            freed += 1;
            false
        });
        (freed, need_checkpoint)
    }

    /// Records that a checkpoint with every record up to `base` is durable.
    pub fn checkpoint_durable(&self, base: RecordNumber) {
        self.checkpoint_base.fetch_max(base.0, Ordering::SeqCst);
    }

    /// Returns the lives of some segments at this moment, for a checkpoint that contains every
    /// record up to `base`. A segment with a later record is reported as open, so that recovery
    /// walks through it; one in reclaim or draining as closed: recovery finds that nothing points
    /// into it.
    ///
    /// The caller asks for [`Segments::next_generation`] before the first of them: recovery looks
    /// for segments that were opened with that generation or a higher one, whether or not their
    /// lives were copied before.
    pub fn snapshot(&self, base: RecordNumber, among: Range<u32>) -> Vec<SegmentSnapshot> {
        let state = self.state.lock();
        let lives = state.lives.iter().take(among.end as usize).skip(among.start as usize);
        lives
            .map(|life| SegmentSnapshot {
                generation: life.generation,
                state: match life.state {
                    SegmentState::Free => SegmentState::Free,
                    _ if life.last_record > base => SegmentState::Open,
                    SegmentState::Reclaiming | SegmentState::Draining => SegmentState::Closed,
                    other => other,
                },
                position: life.position,
            })
            .collect()
    }

    /// Counts an index entry that points into the segment from now on.
    pub fn add_live(&self, segment: SegmentId, one: Live) {
        self.live.add(segment.0 as usize, one.packed(), Ordering::Relaxed);
    }

    /// Uncounts an index entry that no longer points into the segment.
    pub fn remove_live(&self, segment: SegmentId, one: Live) {
        self.live.sub(segment.0 as usize, one.packed(), Ordering::SeqCst);
    }

    /// Records that the rank of a live entry of the segment has changed.
    #[inline]
    pub fn ranked(&self, segment: SegmentId, before: u8, after: u8) {
        let index = segment.0 as usize;
        match (before > 0, after > 0) {
            (false, true) => self.live.add(index, Live::KEPT, Ordering::Relaxed),
            (true, false) => self.live.sub(index, Live::KEPT, Ordering::Relaxed),
            _ => (),
        }
    }

    /// Records that a live entry of the segment became clean.
    pub fn turned_clean(&self, segment: SegmentId) {
        self.live.sub(segment.0 as usize, Live::DIRTY, Ordering::Relaxed);
    }

    /// Returns the number of index entries that point into the segment.
    pub fn live(&self, segment: SegmentId) -> u32 {
        self.live.of(segment.0 as usize, Ordering::SeqCst).blocks
    }

    /// Keeps the segment from being reused while a version in it is read. Must be called under the
    /// lock of the index shard in which the version was found, or of the queue that holds it.
    pub fn pin(&self, segment: SegmentId) {
        self.counters[segment.0 as usize].pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a [`Segments::pin`].
    pub fn unpin(&self, segment: SegmentId) {
        self.counters[segment.0 as usize].pins.fetch_sub(1, Ordering::Release);
    }

    /// Holds a version in the segment, which is then neither reclaimed nor opened again. Must be
    /// called before the version's record is written.
    pub(crate) fn hold(&self, segment: SegmentId) {
        if self.counters[segment.0 as usize].held.fetch_add(1, Ordering::SeqCst) == 0 {
            self.with_held.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends a [`Segments::hold`].
    pub(crate) fn release(&self, segment: SegmentId) {
        if self.counters[segment.0 as usize].held.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.with_held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Attaches the RAM image of an open segment.
    pub fn attach_buffer(&self, segment: SegmentId, buffer: Arc<LogBuffer>) {
        let mut image = self.buffers[segment.0 as usize].lock();
        *image = Some(buffer);
        self.counters[segment.0 as usize].buffered.store(1, Ordering::Release);
    }

    /// Returns whether the RAM image exists.
    pub fn is_buffered(&self, segment: SegmentId) -> bool {
        self.counters[segment.0 as usize].buffered.load(Ordering::Acquire) != 0
    }

    /// Returns the RAM image, if it exists.
    pub fn buffer(&self, segment: SegmentId) -> Option<Arc<LogBuffer>> {
        if !self.is_buffered(segment) {
            return None;
        }
        self.buffers[segment.0 as usize].lock().clone()
    }

    /// Detaches the RAM image; all of its records must be on the device.
    pub fn detach_buffer(&self, segment: SegmentId) -> Option<Arc<LogBuffer>> {
        let mut image = self.buffers[segment.0 as usize].lock();
        let detached = image.take();
        // Store this last: from here on the segment may be reclaimed, reopened and get a new image.
        self.counters[segment.0 as usize].buffered.store(0, Ordering::Release);
        detached
    }

    /// Returns the bytes of memory for the segment tables.
    pub fn bytes(&self) -> u64 {
        Self::bytes_for(self.count(), self.live.lanes())
    }

    /// Returns the bytes of memory for the tables of `count` segments.
    pub(crate) fn bytes_for(count: u32, lanes: usize) -> u64 {
        let each = size_of::<(Counters, AtomicU64)>()
            + size_of::<Mutex<Option<Arc<LogBuffer>>>>()
            + size_of::<SegmentLife>();
        let shared = u64::from(count) * each as u64 + RecordStarts::bytes_for(count);
        shared + LiveCounts::bytes_for(count, lanes)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
