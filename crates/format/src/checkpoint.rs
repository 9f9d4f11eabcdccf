//! Checkpoints: a snapshot of the segment table and the index, from which recovery starts.
//!
//! A checkpoint is a header page and, behind it, chunks of up to [`CHUNK_BYTES`], each with its
//! own checksum. It is written and read chunk by chunk, so that neither side needs memory for more
//! than one. The header is written last; a checkpoint takes effect only through the superblock.

use std::mem::{offset_of, size_of};

use forebay_core::{BlockSize, Generation, OriginBlock, RecordNumber, SectorMask, Slot, VolumeId};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::{Geometry, blocks_per_segment};
use crate::{MAX_COUNT, PAGE, crc32c, crc32c_append, generation};

mod items;
mod parity;
mod reader;
mod writer;

pub use parity::{ParityPlace, add_to_parity, parity_bytes};
pub use reader::{CheckpointReader, ChunkItems};
pub use writer::{CheckpointWriteError, CheckpointWriter, FinishedCheckpoint, SealedChunk};

/// First bytes of a checkpoint header.
pub const MAGIC: [u8; 8] = *b"FBCHKPT1";
/// Distance between the starts of two chunks, in bytes; also the maximum size of a chunk.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Bytes in a chunk before its items.
pub const CHUNK_HEADER_BYTES: usize = size_of::<OnDiskChunk>();
/// Bytes of one segment in the segment table.
pub const SEGMENT_BYTES: usize = 16;
/// Bytes for one index entry.
pub const INDEX_ENTRY_BYTES: usize = 16;
/// Maximum number of bits of a payload check that an index entry can keep.
pub const MAX_CHECK_BITS: u8 = 28;
/// Ranks are below this.
pub const MAX_RANK: u8 = 16;

const CHECKSUM_FROM: usize = 12;
const BOUNDED: u8 = 1;

/// The header page as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskHeader {
    magic: [u8; 8],
    checksum: U32,
    check_bits: u8,
    flags: u8,
    reserved_a: [u8; 2],
    cache: [u8; 16],
    number: U64,
    base: U64,
    highest_sequence: U64,
    entry_count: U64,
    mask_count: U64,
    segment_count: U32,
    chunk_bytes: U32,
    len: U64,
    next_generation: U32,
    next_generation_high: U32,
    dirty_count: U64,
    arrangement_shards: U32,
    arrangement_key_bits: U32,
    arrangement_spaces: U64,
    reserved_b: [u8; 3976],
}

/// The start of a chunk as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskChunk {
    checksum: U32,
    len: U32,
    number: U64,
}

const _: () = {
    assert!(size_of::<OnDiskHeader>() == PAGE);
    assert!(offset_of!(OnDiskHeader, checksum) == 8);
    assert!(offset_of!(OnDiskHeader, check_bits) == CHECKSUM_FROM);
    assert!(offset_of!(OnDiskHeader, flags) == 13);
    assert!(offset_of!(OnDiskHeader, cache) == 16);
    assert!(offset_of!(OnDiskHeader, number) == 32);
    assert!(offset_of!(OnDiskHeader, base) == 40);
    assert!(offset_of!(OnDiskHeader, highest_sequence) == 48);
    assert!(offset_of!(OnDiskHeader, entry_count) == 56);
    assert!(offset_of!(OnDiskHeader, mask_count) == 64);
    assert!(offset_of!(OnDiskHeader, segment_count) == 72);
    assert!(offset_of!(OnDiskHeader, chunk_bytes) == 76);
    assert!(offset_of!(OnDiskHeader, len) == 80);
    assert!(offset_of!(OnDiskHeader, next_generation) == 88);
    assert!(offset_of!(OnDiskHeader, next_generation_high) == 92);
    assert!(offset_of!(OnDiskHeader, dirty_count) == 96);
    assert!(offset_of!(OnDiskHeader, arrangement_shards) == 104);
    assert!(offset_of!(OnDiskHeader, arrangement_key_bits) == 108);
    assert!(offset_of!(OnDiskHeader, arrangement_spaces) == 112);
    assert!(size_of::<OnDiskChunk>() == 16);
    assert!(offset_of!(OnDiskChunk, len) == 4);
    assert!(offset_of!(OnDiskChunk, number) == 8);
};

/// Why a checkpoint is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CheckpointError {
    /// The page contains no checkpoint header.
    #[error("there is no checkpoint")]
    NotACheckpoint,
    /// Fewer bytes than needed.
    #[error("the checkpoint is cut off")]
    Truncated,
    /// Torn or damaged.
    #[error("the checkpoint is damaged: a checksum does not match")]
    Checksum,
    /// The header is intact, but of another cache.
    #[error("the checkpoint belongs to another cache")]
    OtherCache,
    /// The checkpoint is intact, but not the one that the superblock names.
    #[error("the checkpoint has number {found}; the superblock means number {expected}")]
    OtherNumber {
        /// The number that was expected.
        expected: u64,
        /// The number that was found.
        found: u64,
    },
    /// A field with an impossible value under a valid checksum.
    #[error("the checkpoint has an impossible value in its field '{0}'")]
    Absurd(&'static str),
}

/// The current checkpoint, as the superblock names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointRef {
    /// Number of the area: 0 or 1.
    pub area: u8,
    /// Bytes of the area that are in use, including the header.
    pub len: u64,
    /// The checksum of the header itself.
    pub header_crc: u32,
    /// The checkpoint's number; counts up for the life of the cache.
    pub number: u64,
}

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// The checkpoint's number.
    pub number: u64,
    /// Records with numbers up to this are fully contained.
    pub base: RecordNumber,
    /// The highest sequence that had been assigned.
    pub highest_sequence: u64,
    /// Number of the highest bits of payload checks that the entries keep: 0 to 28.
    pub check_bits: u8,
    /// Number of index entries.
    pub entry_count: u64,
    /// Number of masks: one for each partial entry.
    pub mask_count: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Bytes of the area that are in use, including the header.
    pub len: u64,
    /// Generation of the next segment to be opened. Stored apart from the segment table, so that a
    /// generation is not reused even if none of its records reached the device.
    pub next_generation: Generation,
    /// Whether every segment opened after the segment table was copied has `next_generation` or a
    /// higher one. The first releases read `next_generation` later.
    pub bounded: bool,
    /// The order of the entries, with the number of dirty ones. `None`: in no known order.
    pub arrangement: Option<Arrangement>,
}

/// The order of the entries of a checkpoint: sorted by the shard of the index that they were in.
/// Only an index that puts every block into the same shard can make use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// Number of shards, at least 1.
    pub shards: u32,
    /// Bits of an address in the index.
    pub key_bits: u32,
    /// Checksum of the volumes' address ranges in the index.
    pub spaces: u64,
    /// Number of dirty entries.
    pub dirty: u64,
}

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SegmentUse {
    /// Never used, or free again.
    #[default]
    Free,
    /// Records are being appended.
    Open,
    /// Full or abandoned. Nothing more is appended in this generation.
    Closed,
}

/// An entry of the segment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SegmentState {
    /// Generation of the segment's present or last opening.
    pub generation: Generation,
    /// State of the segment.
    pub usage: SegmentUse,
    /// Position of the next record, in granules from the start of the segment.
    pub write_position: u32,
}

/// A block in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexEntry {
    /// The block's number, below [`crate::MAX_BLOCKS`].
    pub block: OriginBlock,
    /// The slot of the block's payload.
    pub slot: Slot,
    /// The highest `check_bits` bits of the block's payload check, as a number.
    pub check: u32,
    /// The volume to which the block belongs.
    pub volume: VolumeId,
    /// Rank in the measure of the policy, 0 to 15. With 0, only its dirty state keeps the block.
    pub rank: u8,
    /// Whether the block is dirty.
    pub dirty: bool,
    /// Whether only some sectors of the block are valid, which are listed in a [`PartialMask`].
    pub partial: bool,
}

/// The valid sectors of a partial block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialMask {
    /// The volume to which the block belongs.
    pub volume: VolumeId,
    /// The block's number, below [`crate::MAX_BLOCKS`].
    pub block: OriginBlock,
    /// Valid sectors of the block.
    pub mask: SectorMask,
}

/// Returns the size of the mask of one partial block, in bytes.
pub const fn mask_bytes(sectors: u32) -> usize {
    8 + 8 * sectors.div_ceil(64) as usize
}

/// Returns the bytes that a checkpoint area needs for the largest checkpoint of such a cache: every
/// block that fits the segments is in the index, and partial.
pub fn area_bytes(block: BlockSize, segment_bytes: u64, segment_count: u64) -> u64 {
    let blocks = segment_count * blocks_per_segment(block, segment_bytes);
    let mask = mask_bytes(block.sectors()) as u64;
    let items = segment_count * SEGMENT_BYTES as u64 + blocks * (INDEX_ENTRY_BYTES as u64 + mask);
    let one_chunk = items + CHUNK_HEADER_BYTES as u64;
    if one_chunk <= CHUNK_BYTES as u64 {
        return PAGE as u64 + one_chunk.next_multiple_of(PAGE as u64);
    }
    // Items are not split, so up to one mask's bytes at the end of a chunk stay unused.
    let used = (CHUNK_BYTES - CHUNK_HEADER_BYTES) as u64 - (mask - 8);
    PAGE as u64 + items.div_ceil(used) * CHUNK_BYTES as u64
}

/// Returns the offset of a chunk from the start of the checkpoint area, in bytes.
fn chunk_offset(index: u32) -> u64 {
    PAGE as u64 + u64::from(index) * CHUNK_BYTES as u64
}

/// Returns the checksum of a chunk: over everything after the checksum field, then the cache's UUID
/// and the chunk's index, so that a chunk of another cache or position is rejected.
fn chunk_checksum(chunk: &[u8], cache: &Uuid, index: u32) -> u32 {
    let mut tail = [0; 20];
    tail[..16].copy_from_slice(cache.as_bytes());
    tail[16..].copy_from_slice(&index.to_le_bytes());
    crc32c_append(crc32c(chunk), &tail)
}

impl CheckpointHeader {
    /// Returns the header page, and its checksum for the superblock.
    fn encode(&self, cache: &Uuid) -> ([u8; PAGE], u32) {
        let (low, high) = generation::split(self.next_generation).unwrap_or_default();
        let raw = OnDiskHeader {
            magic: MAGIC,
            checksum: 0.into(),
            check_bits: self.check_bits,
            flags: if self.bounded { BOUNDED } else { 0 },
            reserved_a: [0; 2],
            cache: *cache.as_bytes(),
            number: self.number.into(),
            base: self.base.0.into(),
            highest_sequence: self.highest_sequence.into(),
            entry_count: self.entry_count.into(),
            mask_count: self.mask_count.into(),
            segment_count: self.segment_count.into(),
            chunk_bytes: (CHUNK_BYTES as u32).into(),
            len: self.len.into(),
            next_generation: low.into(),
            next_generation_high: high.into(),
            dirty_count: self.arrangement.map_or(0, |it| it.dirty).into(),
            arrangement_shards: self.arrangement.map_or(0, |it| it.shards).into(),
            arrangement_key_bits: self.arrangement.map_or(0, |it| it.key_bits).into(),
            arrangement_spaces: self.arrangement.map_or(0, |it| it.spaces).into(),
            reserved_b: [0; 3976],
        };
        let mut bytes = [0; PAGE];
        bytes.copy_from_slice(raw.as_bytes());
        let checksum = crc32c(&bytes[CHECKSUM_FROM..]);
        bytes[8..CHECKSUM_FROM].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Reads the header page that `reference` names.
    ///
    /// # Errors
    /// The page is not exactly that header, or contains values that are impossible on this device.
    fn decode(
        bytes: &[u8],
        reference: &CheckpointRef,
        geometry: &Geometry,
        cache: &Uuid,
    ) -> Result<CheckpointHeader, CheckpointError> {
        use CheckpointError::{Checksum, NotACheckpoint, OtherCache, OtherNumber, Truncated};
        let magic = &bytes[..bytes.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(NotACheckpoint);
        }
        let (raw, _) = OnDiskHeader::ref_from_prefix(bytes).map_err(|_| Truncated)?;
        if crc32c(&raw.as_bytes()[CHECKSUM_FROM..]) != raw.checksum.get() {
            return Err(Checksum);
        }
        if raw.cache != *cache.as_bytes() {
            return Err(OtherCache);
        }
        let (expected, found) = (reference.number, raw.number.get());
        if expected != found {
            return Err(OtherNumber { expected, found });
        }
        if raw.checksum.get() != reference.header_crc {
            return Err(Checksum);
        }
        let check = |good, field| if good { Ok(()) } else { Err(CheckpointError::Absurd(field)) };
        check(raw.check_bits <= MAX_CHECK_BITS, "check_bits")?;
        check(raw.number.get() < MAX_COUNT, "number")?;
        check(raw.base.get() < MAX_COUNT, "base")?;
        check(raw.highest_sequence.get() < MAX_COUNT, "highest_sequence")?;
        check(raw.segment_count.get() == geometry.segment_count, "segment_count")?;
        let next_generation =
            generation::join(raw.next_generation.get(), raw.next_generation_high.get())
                .ok_or(CheckpointError::Absurd("next_generation"))?;
        let blocks = u64::from(geometry.segment_count) * geometry.blocks_per_segment();
        check(raw.entry_count.get() <= blocks, "entry_count")?;
        check(raw.mask_count.get() <= raw.entry_count.get(), "mask_count")?;
        check(raw.chunk_bytes.get() as usize == CHUNK_BYTES, "chunk_bytes")?;
        let shards = raw.arrangement_shards.get();
        let arrangement = (shards > 0).then(|| Arrangement {
            shards,
            key_bits: raw.arrangement_key_bits.get(),
            spaces: raw.arrangement_spaces.get(),
            dirty: raw.dirty_count.get(),
        });
        check(raw.dirty_count.get() <= raw.entry_count.get(), "dirty_count")?;
        let len = raw.len.get();
        check(len == reference.len && len.is_multiple_of(PAGE as u64), "len")?;
        check((PAGE as u64..=geometry.checkpoint_area_bytes).contains(&len), "len")?;
        Ok(CheckpointHeader {
            number: raw.number.get(),
            base: RecordNumber(raw.base.get()),
            highest_sequence: raw.highest_sequence.get(),
            check_bits: raw.check_bits,
            entry_count: raw.entry_count.get(),
            mask_count: raw.mask_count.get(),
            segment_count: raw.segment_count.get(),
            len,
            next_generation,
            bounded: raw.flags & BOUNDED != 0,
            arrangement,
        })
    }
}

#[cfg(test)]
mod tests;
