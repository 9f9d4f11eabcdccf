//! Appending to the log: one open segment and one open record for each appender.
//!
//! Every lane has two appenders of its own, so lanes do not meet here: one for what is new, and one for
//! blocks that are overwritten while they are worth keeping, which leave one segment after the other. Any
//! lane may close another lane's records, because a flush covers what all lanes have acknowledged
//! (invariant 1). All lanes share one appender for writes to ordered volumes: these versions cannot be
//! moved, and should hold no segments with the blocks of others. One more belongs to background work and
//! may use the reserved segments.

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

/// Closed and perhaps ready to be written.
#[derive(Default)]
pub(crate) struct Closed {
    pub(crate) ready: Vec<Ready>,
    /// Segments that were left: their appenders no longer hold the images. There may be several, as who
    /// finds no room at one appender asks another.
    pub(crate) left: Vec<SegmentId>,
}

/// All appenders of a store, on cache lines of their own, in the order of the log's [`Roles`].
pub(crate) struct Appenders(Box<[Padded]>);

#[repr(align(128))]
struct Padded(Mutex<Appender>);

impl Appenders {
    pub(crate) fn new(roles: &Roles) -> Self {
        let count = roles.count();
        let appender = |number| Appender::new(number, count, roles.is_on_probation(number));
        Appenders((0..count).map(|number| Padded(Mutex::new(appender(number)))).collect())
    }

    /// Locks an appender, by its number.
    pub(crate) fn lock(&self, number: usize) -> MutexGuard<'_, Appender> {
        self.0[number].0.lock()
    }

    /// The numbers of all of them.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.0.len()
    }
}

/// See the module.
pub(crate) struct Appender {
    /// Which one of how many.
    number: usize,
    of: usize,
    /// What it appends is new to the cache.
    on_probation: bool,
    open: Option<OpenSegment>,
}

impl Appender {
    /// Number `number` of `of`, with nothing open. `on_probation`: for what is new to the cache.
    fn new(number: usize, of: usize, on_probation: bool) -> Self {
        Appender { number, of, on_probation, open: None }
    }

    /// Reserves a cell in the open record, opening a record or a segment as needed. What was
    /// closed on the way is added to `closed`. `None`: no segment may be opened now.
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

    /// Appends a record of marks. `durably`: the writes of what is closed are to make it durable.
    /// `false`: no segment may be opened now.
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

    /// Closes the open record, if it has any cells. `durably`: its write is to make it durable.
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

    /// Cells that can be reserved before another record or segment has to be opened, if a record is open, or
    /// another segment.
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

    /// Cells that are reserved and that no closed record holds.
    pub(crate) fn open_cells(&self) -> usize {
        let record = self.open.as_ref().and_then(|open| open.record.as_ref());
        record.map_or(0, |record| record.reserved)
    }

    fn open_segment(&self, log: &Log, segments: &Segments, reserve: u32) -> Option<OpenSegment> {
        let buffer = log.take_buffer()?;
        let Some((id, generation)) =
            segments.open(reserve, (self.number, self.of), self.on_probation)
        else {
            log.return_buffer(buffer);
            return None;
        };
        log.holders(id).add();
        segments.attach_buffer(id, buffer.clone());
        // The opening comes first.
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
