//! Appending to the log: one open segment and one open record for each appender.
//!
//! Every lane has two appenders of its own, so lanes do not contend here: one for new blocks, and
//! one for hot blocks that are rewritten, whose segments empty one after the other as the blocks
//! are rewritten again. Any lane may close another lane's records, because a flush covers
//! everything that any lane has acknowledged (invariant 1). All lanes share one appender for writes
//! to ordered volumes: held versions cannot be moved, and should not keep segments with other
//! blocks from reclaim. One more appender belongs to background work and may use the reserved
//! segments.

use std::sync::Arc;

use forebay_core::{Generation, SegmentId};
use forebay_device::LogBuffer;
use forebay_format::Mark;
use parking_lot::{Mutex, MutexGuard};

use crate::layout::SegmentLayout;
use crate::log::{Log, Roles};
use crate::record::{Duty, Ready, Record, Reservation};
use crate::segments::Segments;

struct OpenRecord {
    record: Arc<Record>,
    reserved: usize,
    capacity: usize,
}

struct OpenSegment {
    id: SegmentId,
    generation: Generation,
    buffer: Arc<LogBuffer>,
    /// Bytes used, a multiple of the header size.
    byte: u64,
    record: Option<OpenRecord>,
}

/// Records and segments that were closed by a call.
#[derive(Default)]
pub(crate) struct Closed {
    pub(crate) ready: Vec<Ready>,
    /// Segments that their appenders have left and whose images the appenders no longer hold. There
    /// may be several, because a caller that finds no room at one appender tries another.
    pub(crate) left: Vec<SegmentId>,
}

/// All appenders of a store, each on its own cache lines, in the order of the log's [`Roles`].
pub(crate) struct Appenders(Box<[PaddedAppender]>);

#[repr(align(128))]
struct PaddedAppender(Mutex<Appender>);

impl Appenders {
    pub(crate) fn new(roles: &Roles) -> Self {
        let count = roles.count();
        let appender = |number| Appender::new(number, count, roles.is_on_probation(number));
        Appenders((0..count).map(|number| PaddedAppender(Mutex::new(appender(number)))).collect())
    }

    /// Locks the appender with this number.
    pub(crate) fn lock(&self, number: usize) -> MutexGuard<'_, Appender> {
        self.0[number].0.lock()
    }

    /// Returns the numbers of all appenders.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.0.len()
    }
}

/// The owner of one open segment and one open record.
pub(crate) struct Appender {
    /// The appender's number, and the number of all appenders.
    number: usize,
    of: usize,
    /// Whether it appends blocks that are new to the cache.
    on_probation: bool,
    open: Option<OpenSegment>,
}

impl Appender {
    /// Makes appender `number` of `of`, with nothing open. `on_probation`: for blocks that are new
    /// to the cache.
    fn new(number: usize, of: usize, on_probation: bool) -> Self {
        Appender { number, of, on_probation, open: None }
    }

    /// Reserves a cell in the open record, opening a record or a segment as needed. Records and
    /// segments that are closed for that are added to `closed`. Returns `None` if no segment may be
    /// opened now.
    pub(crate) fn reserve(
        &mut self,
        log: &Log,
        segments: &Segments,
        reserve: u32,
        closed: &mut Closed,
    ) -> Option<Reservation> {
        let layout = log.layout();
        loop {
            let Some(open) = &mut self.open else {
                self.open = Some(self.open_segment(log, segments, reserve)?);
                continue;
            };
            let Some(current) = &mut open.record else {
                let room = layout.segment_bytes.saturating_sub(open.byte + layout.header_bytes)
                    / layout.block;
                if room == 0 {
                    self.leave_segment(segments, closed);
                    continue;
                }
                let capacity = (room as usize).min(layout.max_cells);
                let position = (open.byte / layout.granule) as u32;
                let record =
                    Record::data(open.id, open.generation, position, open.buffer.clone(), capacity);
                log.holders(open.id).add();
                open.record = Some(OpenRecord { record: Arc::new(record), reserved: 0, capacity });
                continue;
            };
            if current.reserved == current.capacity {
                self.close_record(log, segments, false, closed);
                continue;
            }
            let index = current.reserved;
            let byte = open.byte + layout.header_bytes + index as u64 * layout.block;
            let cell = open.buffer.claim(byte as usize..(byte + layout.block) as usize)?;
            current.reserved += 1;
            let duty = Duty { record: current.record.clone(), index };
            let reservation = Reservation { slot: layout.slot(open.id, byte), cell, duty };
            if current.reserved == current.capacity {
                self.close_record(log, segments, false, closed);
            }
            return Some(reservation);
        }
    }

    /// Appends a record of marks. `durably`: the writes of the closed records make them durable.
    /// Returns `false` if no segment may be opened now.
    pub(crate) fn append_marks(
        &mut self,
        log: &Log,
        segments: &Segments,
        reserve: u32,
        durably: bool,
        marks: &[Mark],
        closed: &mut Closed,
    ) -> bool {
        self.close_record(log, segments, durably, closed);
        let layout = log.layout();
        loop {
            let Some(open) = &mut self.open else {
                match self.open_segment(log, segments, reserve) {
                    Some(open) => self.open = Some(open),
                    None => return false,
                }
                continue;
            };
            if open.byte + layout.header_bytes > layout.segment_bytes {
                self.leave_segment(segments, closed);
                continue;
            }
            let position = (open.byte / layout.granule) as u32;
            let record = Record::marks(
                open.id,
                open.generation,
                position,
                open.buffer.clone(),
                marks.to_vec(),
            );
            log.holders(open.id).add();
            open.byte += layout.header_bytes;
            let end = (open.byte / layout.granule) as u32;
            closed.ready.extend(log.close(segments, &Arc::new(record), 0, end, durably));
            return true;
        }
    }

    /// Closes the open record if it has any cells. `durably`: its write makes it durable.
    pub(crate) fn close_record(
        &mut self,
        log: &Log,
        segments: &Segments,
        durably: bool,
        closed: &mut Closed,
    ) {
        let Some(open) = &mut self.open else { return };
        let Some(current) = open.record.take() else { return };
        if current.reserved == 0 {
            open.record = Some(current);
            return;
        }
        let layout = log.layout();
        let end = open.byte + layout.header_bytes + current.reserved as u64 * layout.block;
        open.byte = layout.align(end);
        let end = (open.byte / layout.granule) as u32;
        let ready = log.close(segments, &current.record, current.reserved, end, durably);
        closed.ready.extend(ready);
    }

    /// Returns the cells that can be reserved without opening another segment, or another record if
    /// one is open.
    pub(crate) fn free_cells(&self, layout: &SegmentLayout) -> u64 {
        let Some(open) = &self.open else { return 0 };
        match &open.record {
            Some(record) => record.capacity.saturating_sub(record.reserved) as u64,
            None => {
                let room = layout.segment_bytes.saturating_sub(open.byte + layout.header_bytes);
                room / layout.block
            }
        }
    }

    /// Returns the number of cells reserved in the open record.
    pub(crate) fn open_cells(&self) -> usize {
        let record = self.open.as_ref().and_then(|open| open.record.as_ref());
        record.map_or(0, |record| record.reserved)
    }

    fn open_segment(&self, log: &Log, segments: &Segments, reserve: u32) -> Option<OpenSegment> {
        let buffer = log.take_buffer(self.number)?;
        let Some((id, generation)) =
            segments.open(reserve, (self.number, self.of), self.on_probation)
        else {
            log.return_buffer(self.number, buffer);
            return None;
        };
        log.holders(id).add();
        segments.attach_buffer(id, buffer.clone());
        // The opening occupies the first header of the segment.
        let byte = log.layout().header_bytes;
        Some(OpenSegment { id, generation, buffer, byte, record: None })
    }

    fn leave_segment(&mut self, segments: &Segments, closed: &mut Closed) {
        if let Some(open) = self.open.take() {
            segments.close(open.id);
            closed.left.push(open.id);
        }
    }
}
