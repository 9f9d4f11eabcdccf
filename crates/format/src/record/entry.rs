//! Data entries: one per block in the header of a data record.

use std::mem::{offset_of, size_of};

use forebay_core::{BlockSize, OriginBlock, SectorMask, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::RecordError;
use crate::{MAX_BLOCKS, MAX_COUNT};

/// Bytes in a data entry without its sector mask.
pub const ENTRY_BYTES: usize = size_of::<OnDiskEntry>();

const DIRTY: u8 = 1;
const VOID: u8 = 2;

/// A data entry, without the words of the sector mask that follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskEntry {
    block: U64,
    sequence: U64,
    check: U32,
    volume: U16,
    flags: u8,
    reserved: u8,
}

const _: () = {
    assert!(size_of::<OnDiskEntry>() == 24);
    assert!(offset_of!(OnDiskEntry, sequence) == 8);
    assert!(offset_of!(OnDiskEntry, check) == 16);
    assert!(offset_of!(OnDiskEntry, volume) == 20);
    assert!(offset_of!(OnDiskEntry, flags) == 22);
};

/// Bytes in a data entry with its sector mask: 32 for blocks of up to 32 KiB.
pub const fn entry_bytes(sectors: u32) -> usize {
    ENTRY_BYTES + 8 * sectors.div_ceil(64) as usize
}

/// A block in a data record. The payload of entry `i` is the cell `i` after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    /// The volume to which the block belongs.
    pub volume: VolumeId,
    /// The block's number, below [`MAX_BLOCKS`].
    pub block: OriginBlock,
    /// Position in the order of all versions of all blocks of the cache: the highest is the newest.
    pub sequence: u64,
    /// Whether the valid sectors are newer than the origin.
    pub dirty: bool,
    /// Whether the cell is unused; its content and all other fields are meaningless.
    pub void: bool,
    /// Valid sectors of the payload.
    pub mask: SectorMask,
    /// The payload's checksum, see [`crate::payload_check`].
    pub check: u32,
}

impl DataEntry {
    /// Returns an entry for an unused cell.
    pub fn void(block: BlockSize) -> Self {
        DataEntry {
            volume: VolumeId(0),
            block: OriginBlock(0),
            sequence: 0,
            dirty: false,
            void: true,
            mask: SectorMask::none(block.sectors()),
            check: 0,
        }
    }

    /// Encodes the entry into `place`, which must be zeroed and have the length of an entry. Fails
    /// with the name of the first field that does not fit.
    pub(super) fn encode(&self, block: BlockSize, place: &mut [u8]) -> Result<(), &'static str> {
        let (fixed, mask) = place.split_at_mut(ENTRY_BYTES);
        if self.void {
            fixed[offset_of!(OnDiskEntry, flags)] = VOID;
            return Ok(());
        }
        if self.block.0 >= MAX_BLOCKS {
            return Err("block");
        }
        if self.sequence >= MAX_COUNT {
            return Err("sequence");
        }
        if self.mask.sectors() != block.sectors() {
            return Err("mask");
        }
        let raw = OnDiskEntry {
            block: self.block.0.into(),
            sequence: self.sequence.into(),
            check: self.check.into(),
            volume: self.volume.0.into(),
            flags: if self.dirty { DIRTY } else { 0 },
            reserved: 0,
        };
        fixed.copy_from_slice(raw.as_bytes());
        for (word, place) in self.mask.words().zip(mask.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
}

/// `count` is known to fit `body`.
pub(super) fn decode_all(
    body: &[u8],
    block: BlockSize,
    count: usize,
) -> Result<Vec<DataEntry>, RecordError> {
    let sectors = block.sectors();
    let unused = if sectors >= 64 { 0 } else { u64::MAX << sectors };
    let mut entries = Vec::with_capacity(count);
    for place in body.chunks_exact(entry_bytes(sectors)).take(count) {
        let (raw, mask) =
            OnDiskEntry::ref_from_prefix(place).map_err(|_| RecordError::Truncated)?;
        if raw.flags & !(DIRTY | VOID) != 0 {
            return Err(RecordError::Absurd("entry.flags"));
        }
        if raw.flags & VOID != 0 {
            entries.push(DataEntry::void(block));
            continue;
        }
        if raw.block.get() >= MAX_BLOCKS {
            return Err(RecordError::Absurd("entry.block"));
        }
        if raw.sequence.get() >= MAX_COUNT {
            return Err(RecordError::Absurd("entry.sequence"));
        }
        let words = <[U64]>::ref_from_bytes(mask).map_err(|_| RecordError::Truncated)?;
        if words.iter().any(|word| word.get() & unused != 0) {
            return Err(RecordError::Absurd("entry.mask"));
        }
        entries.push(DataEntry {
            volume: VolumeId(raw.volume.get()),
            block: OriginBlock(raw.block.get()),
            sequence: raw.sequence.get(),
            dirty: raw.flags & DIRTY != 0,
            void: false,
            mask: SectorMask::from_words(sectors, words.iter().map(|word| word.get())),
            check: raw.check.get(),
        });
    }
    Ok(entries)
}
