//! The log: numbers records, tracks which are written and durable, and manages commit rounds.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_core::{RecordNumber, SegmentId};
use forebay_device::LogBuffer;
use forebay_format::{Mark, MarkKind};
use forebay_lane::Notify;
use parking_lot::Mutex;

use crate::layout::SegmentLayout;
use crate::record::{Closing, Ready, Record};
use crate::segments::Segments;

mod buffers;
mod rounds;

use buffers::Buffers;
pub(crate) use rounds::{AMPLE, Gathering, Round, RoundEnding, Rounds};
use rounds::{COMMITS_WITHOUT_SYNC, WRITES};

/// Segments needed for each additional appender, because open segments are not reclaimed.
const SEGMENTS_FOR_EACH: usize = 5;

struct Numbers {
    next: u64,
    /// The last record whose write does not make it durable.
    last_plain: u64,
    /// Closed records that are not yet written.
    in_flight: BTreeSet<u64>,
}

struct MarkQueue {
    /// Oldest first.
    pending: VecDeque<Mark>,
    pushed: u64,
}

/// Counts the holders of a segment's RAM image: its appender and its unwritten records.
pub(crate) struct Holders(AtomicU32);

impl Holders {
    fn none() -> Self {
        Holders(AtomicU32::new(0))
    }

    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `true` for the last holder.
    pub(crate) fn remove(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The log of one cache.
pub(crate) struct Log {
    layout: SegmentLayout,
    roles: Roles,
    holders: Box<[Holders]>,
    numbers: Mutex<Numbers>,
    /// Notified when a record was written.
    pub(crate) written: Notify,
    durable_through: AtomicU64,
    marks: Mutex<MarkQueue>,
    marks_pushed: AtomicU64,
    /// The number of the last mark that a block is gone.
    gone_pushed: AtomicU64,
    marks_durable: AtomicU64,
    /// Commit rounds: make everything appended before them durable.
    pub(crate) commits: Rounds,
    /// Write rounds: write everything appended before them to the device.
    pub(crate) writes: Rounds,
    /// Held by a round while it takes marks and closes records, so that every mark it sees as taken
    /// is in a record it sees as closed.
    pub(crate) closing: Mutex<()>,
    buffers: Mutex<Buffers>,
}

/// The assignment of appenders: one per lane for new blocks; one per lane for rewritten blocks and
/// one for ordered volumes, if there are enough segments; and the last for background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roles {
    lanes: usize,
    parted: bool,
    ordered: bool,
}

impl Roles {
    fn new(lanes: usize, segments: u32) -> Self {
        let lanes = lanes.max(1);
        let enough_for = |appenders| segments as usize >= SEGMENTS_FOR_EACH * appenders;
        Roles { lanes, parted: enough_for(2 * lanes + 1), ordered: enough_for(2 * lanes + 2) }
    }

    /// Returns the number of appenders.
    pub(crate) fn count(&self) -> usize {
        self.background() + 1
    }

    /// Returns the appender for background work.
    pub(crate) fn background(&self) -> usize {
        self.lanes * (1 + usize::from(self.parted)) + usize::from(self.ordered)
    }

    /// Returns a lane's own appenders: for new blocks, and for rewritten ones if they have a
    /// separate one.
    pub(crate) fn of_lane(&self, lane: u16) -> (usize, Option<usize>) {
        let own = usize::from(lane) % self.lanes;
        (own, self.parted.then_some(self.lanes + own))
    }

    /// Returns the lane whose appender this is; for shared appenders the first lane, which does
    /// most of the background work.
    fn lane_of(&self, appender: usize) -> usize {
        let shared = Some(appender) == self.ordered() || appender == self.background();
        if shared { 0 } else { appender % self.lanes }
    }

    /// Returns the appender that all lanes share for ordered volumes, if there is one.
    pub(crate) fn ordered(&self) -> Option<usize> {
        self.ordered.then(|| self.background() - 1)
    }

    /// Returns whether an appender takes blocks that are new to the cache.
    pub(crate) fn is_on_probation(&self, number: usize) -> bool {
        number < self.lanes || Some(number) == self.ordered()
    }
}

impl Log {
    pub(crate) fn new(
        layout: SegmentLayout,
        lanes: usize,
        segments: u32,
        next: RecordNumber,
    ) -> Self {
        let roles = Roles::new(lanes, segments);
        Log {
            layout,
            roles,
            holders: (0..segments).map(|_| Holders::none()).collect(),
            numbers: Mutex::new(Numbers {
                next: next.0,
                last_plain: 0,
                in_flight: BTreeSet::new(),
            }),
            written: Notify::default(),
            durable_through: AtomicU64::new(next.0 - 1),
            marks: Mutex::new(MarkQueue { pending: VecDeque::new(), pushed: 0 }),
            marks_pushed: AtomicU64::new(0),
            gone_pushed: AtomicU64::new(0),
            marks_durable: AtomicU64::new(0),
            commits: Rounds::new("a commit", COMMITS_WITHOUT_SYNC),
            writes: Rounds::new("a write of what has to survive", WRITES),
            closing: Mutex::new(()),
            buffers: Mutex::new(Buffers::new(Self::most_buffers(lanes, segments))),
        }
    }

    /// Returns the most buffers in existence: three per lane, or one in use and one being written
    /// per appender. The appender for ordered volumes shares the buffers of the others, as few
    /// caches use it.
    pub(crate) fn most_buffers(lanes: usize, segments: u32) -> usize {
        let roles = Roles::new(lanes, segments);
        ((lanes + 1) * 3).max((roles.count() - usize::from(roles.ordered)) * 2)
    }

    pub(crate) fn layout(&self) -> &SegmentLayout {
        &self.layout
    }

    /// Returns the assignment of appenders.
    pub(crate) fn roles(&self) -> &Roles {
        &self.roles
    }

    pub(crate) fn holders(&self, segment: SegmentId) -> &Holders {
        &self.holders[segment.0 as usize]
    }

    /// Closes a record and assigns its number. The caller holds the appender's lock, so that the
    /// records of a segment are numbered in the order of their positions. Returns the record if it
    /// can be written.
    pub(crate) fn close(
        &self,
        segments: &Segments,
        record: &Arc<Record>,
        reserved: usize,
        end: u32,
        durably: bool,
    ) -> Option<Ready> {
        let number = {
            let mut numbers = self.numbers.lock();
            let number = numbers.next;
            numbers.next += 1;
            if !durably {
                numbers.last_plain = number;
            }
            numbers.in_flight.insert(number);
            // Under the same lock: a checkpoint that takes its base must see this record in its
            // segment.
            let granules = record.position..end;
            segments.record_closed(record.segment, RecordNumber(number), granules);
            RecordNumber(number)
        };
        record.close(Closing { number, reserved, durably })
    }

    /// Returns whether any closed record needs a sync to become durable.
    pub(crate) fn needs_sync(&self) -> bool {
        self.numbers.lock().last_plain > self.durable_through().0
    }

    /// Records that a record is on the device, though not necessarily durable.
    pub(crate) fn wrote(&self, number: RecordNumber) {
        self.numbers.lock().in_flight.remove(&number.0);
        self.written.notify_all();
    }

    /// Returns the number of the last closed record.
    pub(crate) fn last_closed(&self) -> RecordNumber {
        RecordNumber(self.numbers.lock().next - 1)
    }

    /// Returns whether every record up to `number` has been written.
    pub(crate) fn written_through(&self, number: RecordNumber) -> bool {
        self.numbers.lock().in_flight.first().is_none_or(|first| *first > number.0)
    }

    /// Returns the number up to which all records are durable.
    pub(crate) fn durable_through(&self) -> RecordNumber {
        RecordNumber(self.durable_through.load(Ordering::SeqCst))
    }

    pub(crate) fn set_durable(&self, number: RecordNumber) {
        self.durable_through.fetch_max(number.0, Ordering::SeqCst);
    }

    pub(crate) fn push_marks(&self, new: impl IntoIterator<Item = Mark>) {
        let mut marks = self.marks.lock();
        for mark in new {
            marks.pushed += 1;
            marks.pending.push_back(mark);
            if mark.kind == MarkKind::Gone {
                self.gone_pushed.store(marks.pushed, Ordering::SeqCst);
            }
        }
        self.marks_pushed.store(marks.pushed, Ordering::SeqCst);
    }

    /// Takes at most `most` pending marks for a record, oldest first.
    pub(crate) fn take_marks(&self, most: usize) -> Vec<Mark> {
        let mut marks = self.marks.lock();
        let count = marks.pending.len().min(most);
        marks.pending.drain(..count).collect()
    }

    /// Puts back marks that could not be appended.
    pub(crate) fn return_marks(&self, returned: Vec<Mark>) {
        let mut marks = self.marks.lock();
        for mark in returned.into_iter().rev() {
            marks.pending.push_front(mark);
        }
    }

    /// Returns the number of marks that are in no record yet.
    pub(crate) fn marks_pending(&self) -> usize {
        self.marks.lock().pending.len()
    }

    /// Returns the number of marks ever pushed.
    pub(crate) fn marks_pushed(&self) -> u64 {
        self.marks_pushed.load(Ordering::SeqCst)
    }

    /// Returns the number of marks that must be durable for every removed block to stay removed:
    /// marks become durable in order.
    pub(crate) fn gone_pushed(&self) -> u64 {
        self.gone_pushed.load(Ordering::SeqCst)
    }

    /// Returns how many of the pushed marks are in closed records.
    pub(crate) fn marks_taken(&self) -> u64 {
        let marks = self.marks.lock();
        marks.pushed - marks.pending.len() as u64
    }

    /// Returns how many of the pushed marks are durable or contained in a durable checkpoint.
    pub(crate) fn marks_durable(&self) -> u64 {
        self.marks_durable.load(Ordering::SeqCst)
    }

    pub(crate) fn set_marks_durable(&self, count: u64) {
        self.marks_durable.fetch_max(count, Ordering::SeqCst);
    }

    /// Drops pending marks that a durable checkpoint made superfluous: those among the first
    /// `count` pushed.
    pub(crate) fn forget_marks(&self, count: u64) {
        let mut marks = self.marks.lock();
        let taken = marks.pushed - marks.pending.len() as u64;
        let superfluous = count.saturating_sub(taken).min(marks.pending.len() as u64);
        marks.pending.drain(..superfluous as usize);
        drop(marks);
        self.set_marks_durable(count);
    }

    /// Takes a RAM image for a segment that this appender opens. Returns `None` if all are in use.
    pub(crate) fn take_buffer(&self, appender: usize) -> Option<Arc<LogBuffer>> {
        let lane = self.roles.lane_of(appender);
        self.buffers.lock().take(lane, self.layout.segment_bytes)
    }

    /// Returns an image that the lane of this appender was the last to use.
    pub(crate) fn return_buffer(&self, appender: usize, buffer: Arc<LogBuffer>) {
        self.buffers.lock().give_back(self.roles.lane_of(appender), buffer);
    }

    /// Returns the bytes of RAM images of segments.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.buffers.lock().existing() as u64 * self.layout.segment_bytes
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
