//! Plans the layout of a cache on a device, and checks existing layouts.
//!
//! ```text
//! 0       64K     128K           256K           384K
//! | A |...| B |...| volumes 0    | volumes 1    | checkpoint 0 | checkpoint 1 |..| segments ...
//! ```

use forebay_core::BlockSize;
use forebay_core::units::format_size;

use crate::PAGE;
use crate::checkpoint::{area_bytes, parity_bytes};
use crate::geometry::{COPY_A, COPY_B, Geometry};

/// Offset of the first volume-table area, in bytes.
pub const VOLUME_AREAS_OFFSET: u64 = 128 << 10;
/// Size of one volume-table area, in bytes.
pub const VOLUME_AREA_BYTES: u64 = 128 << 10;
/// Segments start at a multiple of this, or of the segment size if that is smaller.
pub const SEGMENTS_ALIGNMENT: u64 = 1 << 20;
/// Segment size on devices that have room for [`WANTED_SEGMENTS`] such segments, in bytes.
pub const DEFAULT_SEGMENT_BYTES: u64 = 4 << 20;
/// No segment is smaller than this, in bytes.
pub const MIN_SEGMENT_BYTES: u64 = 256 << 10;
/// No segment is larger than this, in bytes.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// The default segment size is halved, down to the minimum, until the device has this many
/// segments.
pub const WANTED_SEGMENTS: u64 = 64;
/// Minimum number of segments in a cache: the open ones, one to reclaim into, and some to fill.
pub const MIN_SEGMENTS: u64 = 16;
/// Maximum number of segments in a cache.
pub const MAX_SEGMENTS: u64 = 1 << 31;
/// Maximum number of slots in a cache, so that a slot's number fits 32 bits.
pub const MAX_SLOTS: u64 = 1 << 32;

const PAGE_BYTES: u64 = PAGE as u64;

/// Why a cache cannot be laid out as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The device is smaller than the smallest cache.
    #[error(
        "the cache device has {} ({device_bytes} bytes); a cache with these settings needs at least {} ({needed} bytes)",
        format_size(*device_bytes), format_size(*needed)
    )]
    TooSmall {
        /// Size of the device in bytes.
        device_bytes: u64,
        /// Smallest usable size in bytes.
        needed: u64,
    },
    /// The block is smaller than the device's logical block, so it cannot be read or written alone.
    #[error(
        "blocks of {block} bytes are smaller than the device's logical blocks of {logical_block} bytes; choose a block size of at least {logical_block}"
    )]
    BlockTooSmall {
        /// The requested block size, in bytes.
        block: u64,
        /// The device's logical block, in bytes.
        logical_block: u64,
    },
    /// The device's logical block is not a power of two from 512 to 4096.
    #[error(
        "the device has logical blocks of {logical_block} bytes; only powers of two from 512 to 4096 are supported"
    )]
    LogicalBlock {
        /// The device's logical block, in bytes.
        logical_block: u64,
    },
    /// The segment size is not possible.
    #[error("a segment size of {segment_bytes} bytes is not possible; choose a power of two from {} to {}", format_size(*smallest), format_size(MAX_SEGMENT_BYTES))]
    SegmentSize {
        /// The requested segment size, in bytes.
        segment_bytes: u64,
        /// The smallest segment size for this block size, in bytes.
        smallest: u64,
    },
}

/// Returns the smallest segment size for blocks of this size, in bytes: a header and four blocks
/// fit.
pub fn smallest_segment(block: BlockSize) -> u64 {
    (4 * block.bytes() + PAGE_BYTES).next_power_of_two().max(MIN_SEGMENT_BYTES)
}

impl Geometry {
    /// Lays out a cache on a device of `device_bytes` bytes whose logical block has `logical_block`
    /// bytes. Without `segment_bytes` the segment size follows from the device's size. Space beyond
    /// 2^32 slots is not used.
    ///
    /// # Errors
    /// The device is too small, or a size is impossible or does not match the others.
    pub fn plan(
        device_bytes: u64,
        block: BlockSize,
        logical_block: u64,
        segment_bytes: Option<u64>,
    ) -> Result<Geometry, FormatError> {
        if !logical_block.is_power_of_two() || !(512..=PAGE_BYTES).contains(&logical_block) {
            return Err(FormatError::LogicalBlock { logical_block });
        }
        if logical_block > block.granule() {
            return Err(FormatError::BlockTooSmall { block: block.bytes(), logical_block });
        }
        let smallest = smallest_segment(block);
        let segment = match segment_bytes {
            Some(segment) if valid_segment_size(segment, block) => segment,
            Some(segment_bytes) => {
                return Err(FormatError::SegmentSize { segment_bytes, smallest });
            }
            None => {
                let mut segment = DEFAULT_SEGMENT_BYTES.max(smallest);
                while segment > smallest
                    && largest_count(device_bytes, block, segment) < WANTED_SEGMENTS
                {
                    segment /= 2;
                }
                segment
            }
        };
        let count = largest_count(device_bytes, block, segment);
        if count < MIN_SEGMENTS {
            let needed = Self::lay_out(0, block, segment, MIN_SEGMENTS).end();
            return Err(FormatError::TooSmall { device_bytes, needed });
        }
        Ok(Self::lay_out(device_bytes, block, segment, count))
    }

    fn lay_out(device_bytes: u64, block: BlockSize, segment_bytes: u64, count: u64) -> Geometry {
        let checkpoints = VOLUME_AREAS_OFFSET + 2 * VOLUME_AREA_BYTES;
        let area = area_bytes(block, segment_bytes, count);
        let area = area + parity_bytes(area);
        Geometry {
            device_bytes,
            block,
            segment_bytes,
            segment_count: count as u32,
            segments_offset: (checkpoints + 2 * area)
                .next_multiple_of(SEGMENTS_ALIGNMENT.min(segment_bytes)),
            volume_areas: [VOLUME_AREAS_OFFSET, VOLUME_AREAS_OFFSET + VOLUME_AREA_BYTES],
            volume_area_bytes: VOLUME_AREA_BYTES,
            checkpoint_areas: [checkpoints, checkpoints + area],
            checkpoint_area_bytes: area,
        }
    }

    /// Checks that every field is possible and consistent with the others.
    ///
    /// # Errors
    /// The name of the first invalid field, as in `docs/format.md`.
    pub fn validate(&self) -> Result<(), &'static str> {
        let check = |good: bool, field| if good { Ok(()) } else { Err(field) };
        check(valid_segment_size(self.segment_bytes, self.block), "segment_bytes")?;
        let count = u64::from(self.segment_count);
        check((MIN_SEGMENTS..=MAX_SEGMENTS).contains(&count), "segment_count")?;
        check(count <= MAX_SLOTS / self.granules_per_segment(), "segment_count")?;
        let alignment = SEGMENTS_ALIGNMENT.min(self.segment_bytes);
        check(self.segments_offset.is_multiple_of(alignment), "segments_offset")?;
        let whole_pages = |bytes: u64| bytes > 0 && bytes.is_multiple_of(PAGE_BYTES);
        check(whole_pages(self.volume_area_bytes), "volume_area_bytes")?;
        check(self.volume_area_bytes <= 16 << 20, "volume_area_bytes")?;
        check(whole_pages(self.checkpoint_area_bytes), "checkpoint_area_bytes")?;
        check(self.volume_areas.iter().all(|at| whole_pages(*at)), "volume_area_offsets")?;
        check(self.checkpoint_areas.iter().all(|at| whole_pages(*at)), "checkpoint_area_offsets")?;
        let segments = count * self.segment_bytes;
        let areas = [
            (COPY_A, PAGE_BYTES, "superblock"),
            (COPY_B, PAGE_BYTES, "superblock"),
            (self.volume_areas[0], self.volume_area_bytes, "volume_area_offsets"),
            (self.volume_areas[1], self.volume_area_bytes, "volume_area_offsets"),
            (self.checkpoint_areas[0], self.checkpoint_area_bytes, "checkpoint_area_offsets"),
            (self.checkpoint_areas[1], self.checkpoint_area_bytes, "checkpoint_area_offsets"),
            (self.segments_offset, segments, "segments_offset"),
        ];
        for (index, &(start, bytes, field)) in areas.iter().enumerate() {
            let end = start.checked_add(bytes).ok_or(field)?;
            check(end <= self.device_bytes, field)?;
            // The sums of the earlier areas were checked for overflow.
            let apart = areas[..index].iter().all(|&(s, b, _)| s + b <= start || end <= s);
            check(apart, field)?;
        }
        let needed = area_bytes(self.block, self.segment_bytes, count);
        check(self.checkpoint_area_bytes >= needed, "checkpoint_area_bytes")
    }
}

fn valid_segment_size(segment: u64, block: BlockSize) -> bool {
    segment.is_power_of_two() && (smallest_segment(block)..=MAX_SEGMENT_BYTES).contains(&segment)
}

/// Returns the maximum number of segments that fit. The checkpoint areas grow with the number of
/// segments, so this is a binary search; it is valid because the end of the layout grows with the
/// number.
fn largest_count(device_bytes: u64, block: BlockSize, segment: u64) -> u64 {
    let most = MAX_SEGMENTS.min(MAX_SLOTS / (segment / block.granule()));
    let (mut fits, mut beyond) = (0, most.min(device_bytes / segment) + 1);
    while beyond - fits > 1 {
        let middle = fits + (beyond - fits) / 2;
        if Geometry::lay_out(device_bytes, block, segment, middle).end() <= device_bytes {
            fits = middle;
        } else {
            beyond = middle;
        }
    }
    fits
}

#[cfg(test)]
mod tests;
