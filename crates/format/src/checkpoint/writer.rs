//! Creates a checkpoint, one chunk at a time.

use forebay_core::{BlockSize, Generation, RecordNumber};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::items::{OnDiskEntry, OnDiskSegment, write_mask};
use super::{
    Arrangement, CHUNK_BYTES, CHUNK_HEADER_BYTES, CheckpointHeader, CheckpointRef,
    INDEX_ENTRY_BYTES, IndexEntry, MAX_CHECK_BITS, OnDiskChunk, PartialMask, SEGMENT_BYTES,
    SegmentState, add_to_parity, chunk_checksum, chunk_offset, mask_bytes,
};
use crate::geometry::Geometry;
use crate::{MAX_COUNT, PAGE};

/// Why a checkpoint cannot be made: a bug in the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CheckpointWriteError {
    /// More chunks than the area has room for.
    #[error("the checkpoint does not fit its area")]
    Full,
    /// Segments come first, then entries, then masks.
    #[error("the parts of a checkpoint are written in the wrong order")]
    Order,
    /// A value does not fit its field.
    #[error("the value for the field '{0}' does not fit a checkpoint")]
    Range(&'static str),
    /// The number of segments differs from the cache's, the number of masks from that of the
    /// partial entries, or the last chunk was not taken.
    #[error("the checkpoint is incomplete: {0}")]
    Incomplete(&'static str),
}

/// A chunk that is ready to be written.
#[derive(Debug)]
pub struct SealedChunk<'a> {
    /// Offset from the start of the checkpoint area, in bytes; a multiple of 4096.
    pub offset: u64,
    /// The bytes; their number is a multiple of 4096.
    pub bytes: &'a [u8],
}

/// The parts to be written once all chunks are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedCheckpoint {
    /// The header page, for the start of the checkpoint area.
    pub header: [u8; PAGE],
    /// The reference for the superblock once the header is durable.
    pub reference: CheckpointRef,
    /// The XOR of all chunks, followed by a copy of the header. Written at
    /// [`ParityPlace::of`](super::ParityPlace::of) the reference; a multiple of 4096 bytes.
    pub parity: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckpointSection {
    Segments,
    Entries,
    Masks,
}

/// Encodes segments, entries and masks into chunks:
///
/// 1. [`push_segments`](Self::push_segments), [`push_entries`](Self::push_entries) and
///    [`push_masks`](Self::push_masks), in this order, return how many items they took;
/// 2. while that is not all of them, [`take_chunk`](Self::take_chunk) returns a chunk to write;
/// 3. at the end call `take_chunk` until it returns `None`, make all chunks durable,
///    [`finish`](Self::finish), and write the header.
#[derive(Debug)]
pub struct CheckpointWriter {
    cache: Uuid,
    block: BlockSize,
    area: u8,
    area_bytes: u64,
    number: u64,
    check_bits: u8,
    arrangement: Option<Arrangement>,
    part: CheckpointSection,
    expected_segments: u32,
    segments: u32,
    entries: u64,
    partial: u64,
    masks: u64,
    chunk: Vec<u8>,
    parity: Vec<u8>,
    used: usize,
    chunks: u32,
    len: u64,
}

impl CheckpointWriter {
    /// Starts checkpoint `number` in `area` (0 or 1) of `cache`. Entries keep the highest
    /// `check_bits` bits of payload checks.
    ///
    /// # Errors
    /// `area` is above 1, `check_bits` above 28, or `number` not below 2^62.
    pub fn new(
        geometry: &Geometry,
        cache: Uuid,
        area: u8,
        number: u64,
        check_bits: u8,
    ) -> Result<Self, CheckpointWriteError> {
        if area > 1 {
            return Err(CheckpointWriteError::Range("area"));
        }
        if number >= MAX_COUNT {
            return Err(CheckpointWriteError::Range("number"));
        }
        if check_bits > MAX_CHECK_BITS {
            return Err(CheckpointWriteError::Range("check_bits"));
        }
        Ok(CheckpointWriter {
            cache,
            block: geometry.block,
            area,
            area_bytes: geometry.checkpoint_area_bytes,
            number,
            check_bits,
            arrangement: None,
            part: CheckpointSection::Segments,
            expected_segments: geometry.segment_count,
            segments: 0,
            entries: 0,
            partial: 0,
            masks: 0,
            chunk: vec![0; CHUNK_BYTES],
            parity: Vec::new(),
            used: CHUNK_HEADER_BYTES,
            chunks: 0,
            len: PAGE as u64,
        })
    }

    /// Announces that entries will be pushed in this order; the number of dirty ones is counted.
    pub fn arrange(&mut self, arrangement: Arrangement) {
        self.arrangement = Some(Arrangement { dirty: 0, ..arrangement });
    }

    /// Adds entries of the segment table, in the order of the segments. Returns the number of
    /// entries that were accepted.
    ///
    /// # Errors
    /// The order is wrong, or a generation is not below 2^62.
    pub fn push_segments(
        &mut self,
        segments: &[SegmentState],
    ) -> Result<usize, CheckpointWriteError> {
        self.enter(CheckpointSection::Segments)?;
        let room = &mut self.chunk[self.used..];
        let mut taken = 0;
        for (state, place) in segments.iter().zip(room.chunks_exact_mut(SEGMENT_BYTES)) {
            let raw = OnDiskSegment::new(state).ok_or(CheckpointWriteError::Range("generation"))?;
            place.copy_from_slice(raw.as_bytes());
            taken += 1;
        }
        self.used += taken * SEGMENT_BYTES;
        self.segments = self.segments.saturating_add(taken as u32);
        Ok(taken)
    }

    /// Adds index entries, in any order unless one was announced. Returns the number of entries
    /// that were accepted.
    ///
    /// # Errors
    /// The order is wrong, or a value does not fit.
    pub fn push_entries(&mut self, entries: &[IndexEntry]) -> Result<usize, CheckpointWriteError> {
        self.enter(CheckpointSection::Entries)?;
        let room = &mut self.chunk[self.used..];
        let taken = entries.len().min(room.len() / INDEX_ENTRY_BYTES);
        // Never fails: `taken` was computed from the room.
        let (places, _) = <[OnDiskEntry]>::mut_from_prefix_with_elems(room, taken)
            .map_err(|_| CheckpointWriteError::Full)?;
        let (mut fits, mut partial, mut dirty) = (true, 0, 0);
        for (entry, place) in entries.iter().zip(places) {
            fits &= OnDiskEntry::fits(entry, self.check_bits);
            dirty += u64::from(entry.dirty);
            partial += u64::from(entry.partial);
            *place = OnDiskEntry::new(entry);
        }
        if !fits {
            return Err(CheckpointWriteError::Range("entry"));
        }
        self.used += taken * INDEX_ENTRY_BYTES;
        self.entries += taken as u64;
        self.partial += partial;
        if let Some(arrangement) = &mut self.arrangement {
            arrangement.dirty += dirty;
        }
        Ok(taken)
    }

    /// Adds the masks of the partial entries, in any order. Returns the number of masks that were
    /// accepted.
    ///
    /// # Errors
    /// The order is wrong, or a mask is not for a block of this cache.
    pub fn push_masks(&mut self, masks: &[PartialMask]) -> Result<usize, CheckpointWriteError> {
        self.enter(CheckpointSection::Masks)?;
        let bytes = mask_bytes(self.block.sectors());
        let mut taken = 0;
        let mut fits = true;
        for (mask, place) in masks.iter().zip(self.chunk[self.used..].chunks_exact_mut(bytes)) {
            fits &= write_mask(mask, self.block, place);
            taken += 1;
        }
        if !fits {
            return Err(CheckpointWriteError::Range("mask"));
        }
        self.used += taken * bytes;
        self.masks += taken as u64;
        Ok(taken)
    }

    /// Seals the items added since the last chunk. Returns `None` if there are none. The bytes must
    /// be written or copied before more items are added.
    ///
    /// # Errors
    /// The chunk does not fit the area, because chunks were taken before they were full.
    pub fn take_chunk(&mut self) -> Result<Option<SealedChunk<'_>>, CheckpointWriteError> {
        if self.used == CHUNK_HEADER_BYTES {
            return Ok(None);
        }
        let offset = chunk_offset(self.chunks);
        let padded = self.used.next_multiple_of(PAGE);
        let len = offset + padded as u64;
        if len > self.area_bytes {
            return Err(CheckpointWriteError::Full);
        }
        let head = OnDiskChunk {
            checksum: 0.into(),
            len: ((self.used - CHUNK_HEADER_BYTES) as u32).into(),
            number: self.number.into(),
        };
        self.chunk[..CHUNK_HEADER_BYTES].copy_from_slice(head.as_bytes());
        self.chunk[self.used..padded].fill(0);
        let checksum = chunk_checksum(&self.chunk[4..self.used], &self.cache, self.chunks);
        self.chunk[..4].copy_from_slice(&checksum.to_le_bytes());
        if self.parity.len() < padded {
            self.parity.resize(padded, 0);
        }
        add_to_parity(&mut self.parity, &self.chunk[..padded]);
        self.chunks += 1;
        self.len = len;
        self.used = CHUNK_HEADER_BYTES;
        Ok(Some(SealedChunk { offset, bytes: &self.chunk[..padded] }))
    }

    /// Makes the header, once every chunk was taken. Records up to `base` are fully contained,
    /// `highest_sequence` is the last sequence that had been assigned, and `next_generation` was
    /// the next generation when the segment table was copied.
    ///
    /// # Errors
    /// Items are missing or too many, or a number is not below 2^62.
    pub fn finish(
        self,
        base: RecordNumber,
        highest_sequence: u64,
        next_generation: Generation,
    ) -> Result<FinishedCheckpoint, CheckpointWriteError> {
        let check = |good, what| {
            if good { Ok(()) } else { Err(CheckpointWriteError::Incomplete(what)) }
        };
        check(self.used == CHUNK_HEADER_BYTES, "the last chunk was not taken")?;
        check(self.segments == self.expected_segments, "segments are missing or too many")?;
        check(self.masks == self.partial, "there must be one mask for each partial entry")?;
        if base.0 >= MAX_COUNT || highest_sequence >= MAX_COUNT {
            return Err(CheckpointWriteError::Range("base or highest_sequence"));
        }
        if next_generation.0 >= MAX_COUNT {
            return Err(CheckpointWriteError::Range("next_generation"));
        }
        let header = CheckpointHeader {
            number: self.number,
            base,
            highest_sequence,
            check_bits: self.check_bits,
            entry_count: self.entries,
            mask_count: self.masks,
            segment_count: self.segments,
            len: self.len,
            next_generation,
            bounded: true,
            arrangement: self.arrangement,
        };
        let (bytes, header_crc) = header.encode(&self.cache);
        let reference =
            CheckpointRef { area: self.area, len: self.len, header_crc, number: self.number };
        let mut parity = self.parity;
        parity.extend_from_slice(&bytes);
        Ok(FinishedCheckpoint { header: bytes, reference, parity })
    }

    fn enter(&mut self, part: CheckpointSection) -> Result<(), CheckpointWriteError> {
        if part < self.part {
            return Err(CheckpointWriteError::Order);
        }
        self.part = part;
        Ok(())
    }
}
