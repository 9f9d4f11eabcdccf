//! Marks: state changes of blocks in earlier records.

use forebay_core::{Generation, Slot};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{FIXED, HEADER_BYTES, RecordError};
use crate::generation;
use crate::geometry::Geometry;

/// Size of a mark in bytes: the slot, then the generation in the upper 31 bits and the kind in the
/// lowest bit.
pub(super) const MARK_BYTES: usize = 8;
/// Maximum number of marks in one record.
pub const MAX_MARKS: usize = (HEADER_BYTES - FIXED) / MARK_BYTES;

const GONE: u32 = 1;

/// The new state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// The block was written back: the origin has it durably.
    Clean,
    /// The block was invalidated: it must never be served or written back again.
    Gone,
}

/// A change of state of the block at one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The slot of the block's payload.
    pub slot: Slot,
    /// The generation of the slot's segment, so that a late mark cannot affect a block of the
    /// segment's next life. Only the lower half is stored: compare with [`Mark::means`].
    pub generation: Generation,
    /// The new state.
    pub kind: MarkKind,
}

impl Mark {
    /// Returns whether the mark is for a block in a segment of this generation. Comparing the lower
    /// halves suffices: no segment is opened 2^31 times between two checkpoints.
    pub fn means(&self, generation: Generation) -> bool {
        generation::low(self.generation) == generation::low(generation)
    }

    pub(super) fn encode(&self) -> [u8; MARK_BYTES] {
        let kind = match self.kind {
            MarkKind::Clean => 0,
            MarkKind::Gone => GONE,
        };
        let mut bytes = [0; MARK_BYTES];
        bytes[..4].copy_from_slice(&self.slot.0.to_le_bytes());
        let word = generation::low(self.generation) << 1 | kind;
        bytes[4..].copy_from_slice(&word.to_le_bytes());
        bytes
    }
}

/// `count` is known to fit `body`.
pub(super) fn decode_all(
    body: &[u8],
    geometry: &Geometry,
    count: usize,
) -> Result<Vec<Mark>, RecordError> {
    let cells = geometry.cells();
    let (pairs, _) = <[[U32; 2]]>::ref_from_prefix_with_elems(body, count)
        .map_err(|_| RecordError::Truncated)?;
    let mut marks = Vec::with_capacity(count);
    for [slot, word] in pairs {
        let slot = Slot(slot.get());
        if !cells.contains(slot) {
            return Err(RecordError::Absurd("mark.slot"));
        }
        let kind = if word.get() & GONE != 0 { MarkKind::Gone } else { MarkKind::Clean };
        marks.push(Mark { slot, generation: Generation(u64::from(word.get() >> 1)), kind });
    }
    Ok(marks)
}
