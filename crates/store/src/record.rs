//! One record on its way to the cache device.
//!
//! A record's cells are *reserved* one by one, each cell is *filled* with its entry, and the record
//! is *closed*. The caller that completes the last of these steps writes the record. Lanes fill
//! cells of one record concurrently without holding a lock while they copy payload.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{BlockSize, Generation, RecordNumber, SegmentId, Slot};
use forebay_device::{Claim, LogBuffer};
use forebay_format::{DataEntry, Head, Mark, record as format};
use parking_lot::Mutex;

use crate::layout::SegmentLayout;

/// The content of a record.
pub(crate) enum RecordContent {
    /// Blocks: one entry for each cell, in order. `None` until the cell is filled.
    Data(Vec<Option<DataEntry>>),
    /// State changes without payload.
    Marks(Vec<Mark>),
}

struct State {
    content: RecordContent,
    filled: usize,
    closed: Option<Closing>,
}

/// The parameters with which a record was closed.
#[derive(Clone, Copy)]
pub(crate) struct Closing {
    pub(crate) number: RecordNumber,
    /// Cells that were reserved.
    pub(crate) reserved: usize,
    /// Whether the write makes the record durable.
    pub(crate) durably: bool,
}

/// A record in the RAM image of its segment.
pub(crate) struct Record {
    pub(crate) segment: SegmentId,
    pub(crate) generation: Generation,
    /// First granule of the header, from the start of the segment.
    pub(crate) position: u32,
    pub(crate) buffer: Arc<LogBuffer>,
    state: Mutex<State>,
}

/// A closed record whose cells are all filled, so that it can be written.
pub(crate) struct Ready {
    pub(crate) record: Arc<Record>,
    pub(crate) number: RecordNumber,
    pub(crate) durably: bool,
    pub(crate) content: RecordContent,
}

/// An encoded record.
pub(crate) struct Encoded {
    /// Range to write, in bytes of the segment.
    pub(crate) bytes: Range<usize>,
    /// Bytes of payload among these bytes.
    pub(crate) payload: u64,
}

impl Record {
    /// Encodes the header in front of the payload; the first record of a segment's life includes
    /// the opening, which names the `free` segments.
    pub(crate) fn encode(
        &self,
        head: &Head,
        layout: &SegmentLayout,
        block: BlockSize,
        content: RecordContent,
        free: impl FnOnce() -> Vec<SegmentId>,
    ) -> Result<Encoded, String> {
        let start = u64::from(self.position) * layout.granule;
        let place = |range| {
            self.buffer.claim(range).ok_or("its place in the log buffer is already claimed")
        };
        let opens = start == layout.header_bytes;
        let from = if opens { 0 } else { start };
        if opens {
            let head = Head { position: 0, ..*head };
            let mut place = place(0..layout.header_bytes as usize)?;
            let encoded = format::encode_opening(&mut place, &head, &free());
            encoded.map_err(|error| error.to_string())?;
            place.publish();
        }
        let mut place = place(start as usize..(start + layout.header_bytes) as usize)?;
        let payload = match content {
            RecordContent::Data(entries) => {
                let void = || DataEntry::void(block);
                let entries: Vec<_> =
                    entries.into_iter().map(|entry| entry.unwrap_or_else(void)).collect();
                format::encode_data(&mut place, head, block, &entries)
                    .map(|()| entries.len() as u64 * layout.block)
            }
            RecordContent::Marks(marks) => {
                format::encode_marks(&mut place, head, &marks).map(|()| 0)
            }
        };
        let payload = payload.map_err(|error| error.to_string())?;
        place.publish();
        let end = start + layout.header_bytes + payload;
        Ok(Encoded { bytes: from as usize..end as usize, payload })
    }

    pub(crate) fn data(
        segment: SegmentId,
        generation: Generation,
        position: u32,
        buffer: Arc<LogBuffer>,
        capacity: usize,
    ) -> Self {
        let content = RecordContent::Data(Vec::with_capacity(capacity));
        let state = Mutex::new(State { content, filled: 0, closed: None });
        Record { segment, generation, position, buffer, state }
    }

    pub(crate) fn marks(
        segment: SegmentId,
        generation: Generation,
        position: u32,
        buffer: Arc<LogBuffer>,
        marks: Vec<Mark>,
    ) -> Self {
        let state =
            Mutex::new(State { content: RecordContent::Marks(marks), filled: 0, closed: None });
        Record { segment, generation, position, buffer, state }
    }

    fn ready(self: &Arc<Self>, state: &mut State) -> Option<Ready> {
        let Closing { number, reserved, durably } = state.closed?;
        if state.filled < reserved {
            return None;
        }
        let content = std::mem::replace(&mut state.content, RecordContent::Marks(Vec::new()));
        Some(Ready { record: self.clone(), number, durably, content })
    }

    /// Sets the entry of cell `index`; returns the record if it is now ready to be written.
    pub(crate) fn fill(self: &Arc<Self>, index: usize, entry: DataEntry) -> Option<Ready> {
        let mut state = self.state.lock();
        if let RecordContent::Data(entries) = &mut state.content {
            if entries.len() <= index {
                entries.resize_with(index + 1, || None);
            }
            entries[index] = Some(entry);
        }
        state.filled += 1;
        self.ready(&mut state)
    }

    /// Closes the record; returns it if all of its reserved cells are filled.
    pub(crate) fn close(self: &Arc<Self>, closing: Closing) -> Option<Ready> {
        let mut state = self.state.lock();
        state.closed = Some(closing);
        self.ready(&mut state)
    }
}

/// The exclusive right to one cell of a record, and the duty to fill it.
#[must_use = "the record cannot be written before every reserved cell is filled"]
pub(crate) struct Reservation {
    pub(crate) slot: Slot,
    pub(crate) cell: Claim,
    pub(crate) duty: Duty,
}

/// The duty to fill a cell, see [`Reservation`].
#[must_use = "the record cannot be written before every reserved cell is filled"]
pub(crate) struct Duty {
    pub(crate) record: Arc<Record>,
    pub(crate) index: usize,
}
