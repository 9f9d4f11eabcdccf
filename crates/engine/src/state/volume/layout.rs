//! The layout of blocks: in the volume, on the origin, and within a request.

use std::ops::Range;

use forebay_core::{IoError, OriginBlock, SECTOR_SIZE, SectorMask};
use forebay_store::planted::{self, PlantedBug};

use crate::state::pins::BlockSet;
use crate::state::volume::Volume;

/// The part of a request that lies in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockPiece {
    pub(crate) block: OriginBlock,
    /// Sectors of the block.
    pub(crate) sectors: Range<u32>,
    /// Bytes of the request.
    pub(crate) bytes: Range<usize>,
    /// Whether the piece covers all of the block that lies within the volume.
    pub(crate) whole: bool,
}

/// Returns the byte range of these sectors within a block.
pub(crate) fn bytes_of(sectors: &Range<u32>) -> Range<usize> {
    let sector = SECTOR_SIZE as usize;
    sectors.start as usize * sector..sectors.end as usize * sector
}

impl Volume {
    /// Checks that a request's range consists of whole sectors within the volume.
    pub(crate) fn check_range(&self, offset: u64, len: u64, write: bool) -> Result<(), IoError> {
        if !offset.is_multiple_of(SECTOR_SIZE) || !len.is_multiple_of(SECTOR_SIZE) {
            return Err(IoError::Invalid);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ if write => Err(IoError::NoSpace),
            _ => Err(IoError::Invalid),
        }
    }

    /// Returns the sectors of a block that lie within the volume.
    pub(crate) fn sectors_inside(&self, block: OriginBlock) -> Range<u32> {
        if planted::has(PlantedBug::EdgeIgnored) {
            return 0..self.block.sectors();
        }
        let start = self.block.offset_of(block);
        let first = self.alignment.saturating_sub(start) / SECTOR_SIZE;
        let end = (self.size + self.alignment).saturating_sub(start) / SECTOR_SIZE;
        let sectors = self.block.sectors();
        (first as u32).min(sectors)..(end.min(u64::from(sectors)) as u32)
    }

    /// Returns the origin offset of a sector that lies within the volume.
    pub(crate) fn origin_offset(&self, block: OriginBlock, sector: u32) -> u64 {
        let byte = self.block.offset_of(block) + u64::from(sector) * SECTOR_SIZE;
        byte.saturating_sub(self.alignment)
    }

    /// Returns the blocks of the volume that a byte range touches. The range may extend beyond the
    /// end of the volume, because of the origin's logical blocks or because the origin has grown.
    pub(crate) fn blocks(&self, range: Range<u64>) -> Range<u64> {
        let first = self.block.block_of(range.start + self.alignment).0;
        let end = range.end.min(self.size);
        if range.start >= end {
            return first..first;
        }
        first..self.block.block_of(end - 1 + self.alignment).0 + 1
    }

    /// Returns the blocks within the volume that ranges of bytes touch, in any order.
    pub fn blocks_of(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> BlockSet {
        BlockSet::of(ranges.into_iter().map(|range| self.blocks(range)))
    }

    /// Returns the byte ranges of the volume that blocks occupy, in ascending order.
    pub fn bytes_of(&self, blocks: &BlockSet) -> Vec<Range<u64>> {
        let range = |run: &Range<u64>| {
            let last = OriginBlock(run.end - 1);
            self.block_range(OriginBlock(run.start)).start..self.block_range(last).end
        };
        blocks.ranges().iter().map(range).collect()
    }

    /// Returns the part of a block that lies within the volume, in bytes of the origin.
    pub(crate) fn block_range(&self, block: OriginBlock) -> Range<u64> {
        let inside = self.sectors_inside(block);
        self.origin_offset(block, inside.start)..self.origin_offset(block, inside.end)
    }

    /// Widens a byte range to whole blocks within the volume, and to whole logical blocks of the
    /// origin, because a write of a part of a logical block reads and writes all of it.
    pub(crate) fn widen(&self, range: Range<u64>) -> Range<u64> {
        let blocks = self.blocks(range.clone());
        if blocks.is_empty() {
            return range;
        }
        let logical = self.origin.logical_block();
        let start = self.block_range(OriginBlock(blocks.start)).start / logical * logical;
        let end = self.block_range(OriginBlock(blocks.end - 1)).end;
        start..end.next_multiple_of(logical)
    }

    /// Cuts a checked range into blocks.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = BlockPiece> + use<'_> {
        let range = offset..offset + len;
        self.blocks(range.clone()).map(move |number| {
            let block = OriginBlock(number);
            let inside = self.block_range(block);
            let part = inside.start.max(range.start)..inside.end.min(range.end);
            let origin = self.block.offset_of(block);
            let sector = |byte: u64| ((byte + self.alignment - origin) / SECTOR_SIZE) as u32;
            BlockPiece {
                block,
                sectors: sector(part.start)..sector(part.end),
                bytes: (part.start - range.start) as usize..(part.end - range.start) as usize,
                whole: part == inside,
            }
        })
    }

    /// Returns the mask to store for a version with these valid sectors. Sectors outside the volume
    /// count as valid, and `None` means that all are.
    pub(crate) fn mask(&self, block: OriginBlock, mut valid: SectorMask) -> Option<SectorMask> {
        let inside = self.sectors_inside(block);
        valid.insert(0..inside.start);
        valid.insert(inside.end..self.block.sectors());
        (!valid.is_all()).then_some(valid)
    }

    /// Returns the sectors of a block that are valid by its mask (`None` for all) and lie within
    /// the volume.
    pub(crate) fn valid_sectors(
        &self,
        block: OriginBlock,
        mask: Option<&SectorMask>,
    ) -> SectorMask {
        let sectors = self.block.sectors();
        let mut mask = mask.cloned().unwrap_or_else(|| SectorMask::all(sectors));
        let inside = self.sectors_inside(block);
        mask.remove(0..inside.start);
        mask.remove(inside.end..sectors);
        mask
    }
}
