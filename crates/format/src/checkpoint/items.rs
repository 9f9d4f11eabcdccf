//! The items in a checkpoint's chunks: segments, index entries, masks.

use forebay_core::{BlockSize, Generation, OriginBlock, SectorMask, Slot, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    INDEX_ENTRY_BYTES, IndexEntry, MAX_RANK, PartialMask, SEGMENT_BYTES, SegmentState, SegmentUse,
};
use crate::geometry::Cells;
use crate::{MAX_BLOCKS, generation};

const DIRTY: u64 = 1;
const PARTIAL: u64 = 2;
const FLAGS: u64 = 15;
const FLAG_BITS: u32 = 4;
const VOLUME_SHIFT: u32 = 48;
const RANK_BITS: u32 = 4;

/// An entry of the segment table as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct OnDiskSegment {
    generation: U32,
    usage: U32,
    write_position: U32,
    generation_high: U32,
}

/// An index entry as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct OnDiskEntry {
    address: U64,
    slot: U32,
    check_and_rank: U32,
}

const _: () = {
    assert!(size_of::<OnDiskSegment>() == SEGMENT_BYTES);
    assert!(size_of::<OnDiskEntry>() == INDEX_ENTRY_BYTES);
    assert!(MAX_BLOCKS << FLAG_BITS == 1 << VOLUME_SHIFT);
};

impl OnDiskSegment {
    /// Encodes a segment's state. Returns `None` if the generation does not fit.
    pub(super) fn new(state: &SegmentState) -> Option<Self> {
        let (low, high) = generation::split(state.generation)?;
        let usage = match state.usage {
            SegmentUse::Free => 0,
            SegmentUse::Open => 1,
            SegmentUse::Closed => 2,
        };
        Some(OnDiskSegment {
            generation: low.into(),
            usage: usage.into(),
            write_position: state.write_position.into(),
            generation_high: high.into(),
        })
    }

    fn usage(&self) -> Option<SegmentUse> {
        match self.usage.get() {
            0 => Some(SegmentUse::Free),
            1 => Some(SegmentUse::Open),
            2 => Some(SegmentUse::Closed),
            _ => None,
        }
    }

    fn generation(&self) -> Option<Generation> {
        generation::join(self.generation.get(), self.generation_high.get())
    }

    pub(super) fn is_possible(&self, granules: u64) -> bool {
        self.usage().is_some()
            && self.generation().is_some()
            && u64::from(self.write_position.get()) <= granules
    }

    pub(super) fn get(&self) -> SegmentState {
        SegmentState {
            generation: self.generation().unwrap_or_default(),
            usage: self.usage().unwrap_or_default(),
            write_position: self.write_position.get(),
        }
    }
}

#[inline]
fn address(volume: VolumeId, block: OriginBlock) -> u64 {
    u64::from(volume.0) << VOLUME_SHIFT | block.0 << FLAG_BITS
}

#[inline]
fn volume_and_block(address: u64) -> (VolumeId, OriginBlock) {
    let block = address >> FLAG_BITS & (MAX_BLOCKS - 1);
    (VolumeId((address >> VOLUME_SHIFT) as u16), OriginBlock(block))
}

impl OnDiskEntry {
    /// Whether the entry's values fit their fields.
    #[inline]
    pub(super) fn fits(entry: &IndexEntry, check_bits: u8) -> bool {
        (entry.block.0 < MAX_BLOCKS) & (entry.rank < MAX_RANK) & (entry.check >> check_bits == 0)
    }

    #[inline]
    pub(super) fn new(entry: &IndexEntry) -> Self {
        let dirty = if entry.dirty { DIRTY } else { 0 };
        let partial = if entry.partial { PARTIAL } else { 0 };
        OnDiskEntry {
            address: (address(entry.volume, entry.block) | dirty | partial).into(),
            slot: entry.slot.0.into(),
            check_and_rank: (entry.check << RANK_BITS | u32::from(entry.rank)).into(),
        }
    }

    #[inline]
    pub(super) fn is_partial(&self) -> bool {
        self.address.get() & PARTIAL != 0
    }

    #[inline]
    pub(super) fn is_possible(&self, cells: &Cells, check_bits: u8) -> bool {
        (self.address.get() & FLAGS & !(DIRTY | PARTIAL) == 0)
            & cells.contains(Slot(self.slot.get()))
            & (self.check_and_rank.get() >> RANK_BITS >> check_bits == 0)
    }

    #[inline]
    pub(super) fn get(&self) -> IndexEntry {
        let (volume, block) = volume_and_block(self.address.get());
        let check_and_rank = self.check_and_rank.get();
        IndexEntry {
            block,
            slot: Slot(self.slot.get()),
            check: check_and_rank >> RANK_BITS,
            volume,
            rank: check_and_rank as u8 & (MAX_RANK - 1),
            dirty: self.address.get() & DIRTY != 0,
            partial: self.is_partial(),
        }
    }
}

/// Encodes a mask into `place`, which must have the length for the block size. Returns false if a
/// value does not fit.
pub(super) fn write_mask(mask: &PartialMask, block: BlockSize, place: &mut [u8]) -> bool {
    let (head, words) = place.split_at_mut(8);
    head.copy_from_slice(&address(mask.volume, mask.block).to_le_bytes());
    for (word, place) in mask.mask.words().zip(words.chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    mask.block.0 < MAX_BLOCKS && mask.mask.sectors() == block.sectors()
}

/// Returns whether a mask has no bits beyond the sectors of a block. `item` consists of the mask's
/// address and its words.
pub(super) fn mask_is_possible(item: &[U64], block: BlockSize) -> bool {
    let unused = if block.sectors() >= 64 { 0 } else { u64::MAX << block.sectors() };
    item.split_first().is_some_and(|(address, words)| {
        address.get() & FLAGS == 0 && words.iter().all(|word| word.get() & unused == 0)
    })
}

/// Decodes a mask that [`mask_is_possible`] has accepted.
pub(super) fn read_mask(item: &[U64], block: BlockSize) -> PartialMask {
    let mut words = item.iter().map(|word| word.get());
    let (volume, origin_block) = volume_and_block(words.next().unwrap_or_default());
    let mask = SectorMask::from_words(block.sectors(), words);
    PartialMask { volume, block: origin_block, mask }
}
