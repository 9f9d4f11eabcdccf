//! Offsets and sizes on a cache device.

use std::ops::Range;

use forebay_core::{BlockSize, SegmentId, Slot};

use crate::PAGE;

/// Offset of copy A of the superblock, in bytes.
pub const COPY_A: u64 = 0;
/// Offset of copy B of the superblock, in bytes.
pub const COPY_B: u64 = 64 << 10;

const PAGE_BYTES: u64 = PAGE as u64;

/// The layout of one cache device. All offsets and sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the device when it was formatted.
    pub device_bytes: u64,
    /// The unit of caching.
    pub block: BlockSize,
    /// Size of one segment, a power of two.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Offset of the first segment.
    pub segments_offset: u64,
    /// Offsets of the two volume-table areas.
    pub volume_areas: [u64; 2],
    /// Size of one volume-table area.
    pub volume_area_bytes: u64,
    /// Offsets of the two checkpoint areas.
    pub checkpoint_areas: [u64; 2],
    /// Size of one checkpoint area.
    pub checkpoint_area_bytes: u64,
}

impl Geometry {
    /// Returns the offset behind the last segment.
    pub fn end(&self) -> u64 {
        self.segments_offset + u64::from(self.segment_count) * self.segment_bytes
    }

    /// Returns the bytes in a granule, the unit of [`Slot`].
    pub fn granule(&self) -> u64 {
        self.block.granule()
    }

    /// Returns the granules in a segment, a power of two.
    pub fn granules_per_segment(&self) -> u64 {
        self.segment_bytes / self.granule()
    }

    /// Returns the granules in a block.
    pub fn granules_per_block(&self) -> u64 {
        self.block.bytes() / self.granule()
    }

    /// Returns the number of granules in a record header: 1, or 2 with blocks of 2 KiB.
    pub fn granules_per_header(&self) -> u64 {
        PAGE_BYTES / self.granule()
    }

    /// Returns the number of slots: all granules of all segments.
    pub fn slot_count(&self) -> u64 {
        u64::from(self.segment_count) * self.granules_per_segment()
    }

    /// Returns the offset of `segment` on the device.
    pub fn segment_offset(&self, segment: SegmentId) -> u64 {
        self.segments_offset + u64::from(segment.0) * self.segment_bytes
    }

    /// Returns the offset of `slot` on the device.
    pub fn slot_offset(&self, slot: Slot) -> u64 {
        self.segments_offset + u64::from(slot.0) * self.granule()
    }

    /// Returns the slot at `position` granules from the start of `segment`. The segment must be
    /// below `segment_count` and the position inside the segment.
    pub fn slot_at(&self, segment: SegmentId, position: u32) -> Slot {
        Slot((u64::from(segment.0) * self.granules_per_segment() + u64::from(position)) as u32)
    }

    /// Returns the segment that contains `slot`, and the slot's position in it in granules.
    pub fn place_of(&self, slot: Slot) -> (SegmentId, u32) {
        let shift = self.granules_per_segment().trailing_zeros();
        let position = u64::from(slot.0) & (self.granules_per_segment() - 1);
        (SegmentId((u64::from(slot.0) >> shift) as u32), position as u32)
    }

    /// Returns whether a block can be stored at `slot`: after a header and wholly within one
    /// segment.
    #[inline]
    pub fn holds_block(&self, slot: Slot) -> bool {
        self.cells().contains(slot)
    }

    /// [`Geometry::holds_block`] with all constants precomputed.
    pub(crate) fn cells(&self) -> Cells {
        Cells {
            slots: self.slot_count(),
            position_mask: (self.granules_per_segment() - 1) as u32,
            positions: self.granules_per_header() as u32
                ..(self.granules_per_segment() - self.granules_per_block() + 1) as u32,
        }
    }

    /// Returns the maximum number of blocks in one segment.
    pub fn blocks_per_segment(&self) -> u64 {
        blocks_per_segment(self.block, self.segment_bytes)
    }
}

/// The slots at which a block can be stored.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    slots: u64,
    position_mask: u32,
    positions: Range<u32>,
}

impl Cells {
    #[inline]
    pub(crate) fn contains(&self, slot: Slot) -> bool {
        u64::from(slot.0) < self.slots && self.positions.contains(&(slot.0 & self.position_mask))
    }
}

pub(crate) fn blocks_per_segment(block: BlockSize, segment_bytes: u64) -> u64 {
    (segment_bytes - PAGE_BYTES) / block.bytes()
}
