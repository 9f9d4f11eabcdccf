//! The layout of records and cells within a segment.

use forebay_core::{SegmentId, Slot};
use forebay_format::max_entries;

/// Sizes and positions within a segment, in bytes unless a field says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLayout {
    pub(crate) granule: u64,
    pub(crate) block: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) header_bytes: u64,
    pub(crate) max_cells: usize,
    pub(crate) max_marks: usize,
}

impl SegmentLayout {
    pub(crate) fn new(geometry: &forebay_format::Geometry) -> Self {
        SegmentLayout {
            granule: geometry.block.granule(),
            block: geometry.block.bytes(),
            segment_bytes: geometry.segment_bytes,
            header_bytes: forebay_format::record::HEADER_BYTES as u64,
            max_cells: max_entries(geometry.block),
            max_marks: forebay_format::record::MAX_MARKS,
        }
    }

    pub(crate) fn granules_per_segment(&self) -> u32 {
        (self.segment_bytes / self.granule) as u32
    }

    pub(crate) fn slot(&self, segment: SegmentId, byte: u64) -> Slot {
        Slot(segment.0 * self.granules_per_segment() + (byte / self.granule) as u32)
    }

    pub(crate) fn segment_of(&self, slot: Slot) -> SegmentId {
        SegmentId(slot.0 / self.granules_per_segment())
    }

    /// Returns the offset of a slot from the start of its segment, in bytes.
    pub(crate) fn byte_of(&self, slot: Slot) -> u64 {
        u64::from(slot.0 % self.granules_per_segment()) * self.granule
    }

    /// Returns the position of a slot in its segment, in granules.
    pub(crate) fn granule_of(&self, slot: Slot) -> u32 {
        slot.0 % self.granules_per_segment()
    }

    /// Returns the position at which the next record may start: headers are aligned to their size.
    pub(crate) fn align(&self, byte: u64) -> u64 {
        byte.next_multiple_of(self.header_bytes)
    }

    /// Returns the number of blocks in a segment whose records are all full.
    pub(crate) fn cells_per_segment(&self) -> u64 {
        self.cells_behind(self.header_bytes)
    }

    /// Returns the number of blocks in a segment like [`SegmentLayout::cells_per_segment`], if it
    /// has two records more than necessary.
    pub(crate) fn cells_if_split(&self) -> u64 {
        self.cells_behind(3 * self.header_bytes)
    }

    fn cells_behind(&self, mut byte: u64) -> u64 {
        let mut cells = 0;
        while byte + self.header_bytes + self.block <= self.segment_bytes {
            let room = (self.segment_bytes - byte - self.header_bytes) / self.block;
            let taken = room.min(self.max_cells as u64);
            cells += taken;
            byte = self.align(byte + self.header_bytes + taken * self.block);
        }
        cells
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// With blocks of 8 KiB, the headers of two additional records took the place of a block, so
    /// reclaim moved 30 blocks of a segment of 31 repeatedly without gaining space.
    #[test]
    fn more_records_leave_less_space_in_a_small_segment() {
        let layout = |block, segment_bytes, max_cells| {
            let (header_bytes, max_marks) = (4096, 0);
            SegmentLayout {
                granule: 4096,
                block,
                segment_bytes,
                header_bytes,
                max_cells,
                max_marks,
            }
        };
        for (block, segment_bytes, max_cells, whole, split) in [
            (8 << 10, 256 << 10, 126, 31, 30),
            (4 << 10, 256 << 10, 126, 62, 60),
            (4 << 10, 4 << 20, 126, 1014, 1012),
            (1 << 20, 8 << 20, 14, 7, 7),
        ] {
            let layout = layout(block, segment_bytes, max_cells);
            assert_eq!((layout.cells_per_segment(), layout.cells_if_split()), (whole, split));
        }
    }
}
