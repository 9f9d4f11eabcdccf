//! Reading a checkpoint, one chunk at a time.

use forebay_core::BlockSize;
use uuid::Uuid;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::items::{OnDiskEntry, OnDiskSegment, mask_is_possible, read_mask};
use super::{
    CHUNK_BYTES, CHUNK_HEADER_BYTES, CheckpointError, CheckpointHeader, CheckpointRef,
    INDEX_ENTRY_BYTES, IndexEntry, OnDiskChunk, PartialMask, SEGMENT_BYTES, SegmentState,
    chunk_checksum, chunk_offset, mask_bytes,
};
use crate::geometry::{Cells, Geometry};

/// Turns a header and chunks back into segments, entries and masks.
///
/// Read [`place`](Self::place), [`feed`](Self::feed) it, use the items, until there is no further
/// place; then [`finish`](Self::finish).
#[derive(Debug)]
pub struct CheckpointReader {
    cache: Uuid,
    block: BlockSize,
    granules_per_segment: u64,
    cells: Cells,
    header: CheckpointHeader,
    chunk: u32,
    segments_left: u64,
    entries_left: u64,
    masks_left: u64,
    partial: u64,
}

/// What a chunk holds. Everything was checked before this was made.
#[derive(Clone, Copy, Debug)]
pub struct ChunkItems<'a> {
    block: BlockSize,
    segments: &'a [OnDiskSegment],
    entries: &'a [OnDiskEntry],
    masks: &'a [U64],
}

impl<'a> ChunkItems<'a> {
    /// The next lines of the segment table, in the order of the segments.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = SegmentState> + use<'a> {
        self.segments.iter().map(OnDiskSegment::get)
    }

    /// Index entries, in no order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = IndexEntry> + use<'a> {
        self.entries.iter().map(OnDiskEntry::get)
    }

    /// Masks of partial entries of this and earlier chunks, in no order.
    pub fn masks(&self) -> impl ExactSizeIterator<Item = PartialMask> + use<'a> {
        let block = self.block;
        let words = mask_bytes(block.sectors()) / 8;
        self.masks.chunks_exact(words).map(move |item| read_mask(item, block))
    }
}

impl CheckpointReader {
    /// Starts with the header page, which must be the one that `reference` means.
    ///
    /// # Errors
    /// Everything that is not exactly that header, or that cannot be on this device.
    pub fn open(
        header: &[u8],
        reference: &CheckpointRef,
        geometry: &Geometry,
        cache: Uuid,
    ) -> Result<Self, CheckpointError> {
        let header = CheckpointHeader::decode(header, reference, geometry, &cache)?;
        Ok(CheckpointReader {
            cache,
            block: geometry.block,
            granules_per_segment: geometry.granules_per_segment(),
            cells: geometry.cells(),
            chunk: 0,
            segments_left: u64::from(header.segment_count),
            entries_left: header.entry_count,
            masks_left: header.mask_count,
            partial: 0,
            header,
        })
    }

    /// What the checkpoint says about itself.
    pub fn header(&self) -> &CheckpointHeader {
        &self.header
    }

    /// Where the next chunk is: its offset from the start of the checkpoint area and its length,
    /// both in bytes and multiples of 4096. `None` after the last.
    pub fn place(&self) -> Option<(u64, usize)> {
        let offset = chunk_offset(self.chunk);
        let left = self.header.len.checked_sub(offset).filter(|left| *left > 0)?;
        Some((offset, left.min(CHUNK_BYTES as u64) as usize))
    }

    /// Checks the chunk that was read at [`place`](Self::place) and gives its items.
    ///
    /// # Errors
    /// The chunk is damaged, not the one that belongs there, or has impossible items. The reader
    /// cannot be used after that.
    pub fn feed<'a>(&mut self, bytes: &'a [u8]) -> Result<ChunkItems<'a>, CheckpointError> {
        let items = self.intact(bytes)?;
        let items = self.split(items)?;
        self.chunk += 1;
        Ok(items)
    }

    /// Checks whether [`feed`](Self::feed) will find the chunk intact.
    ///
    /// # Errors
    /// The chunk is damaged, or not the one that belongs there.
    pub fn verify(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.intact(bytes).map(drop)
    }

    /// The items of an intact chunk, as bytes.
    fn intact<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], CheckpointError> {
        use CheckpointError::{Absurd, Checksum, OtherNumber, Truncated};
        let (_, most) = self.place().ok_or(Absurd("chunk"))?;
        let bytes = bytes.get(..most).ok_or(Truncated)?;
        let (head, items) = OnDiskChunk::ref_from_prefix(bytes).map_err(|_| Truncated)?;
        let len = head.len.get() as usize;
        // A length that is not possible is damage, like every other that the checksum shows.
        let items = items.get(..len).ok_or(Checksum)?;
        let checked = &bytes[4..CHUNK_HEADER_BYTES + len];
        if chunk_checksum(checked, &self.cache, self.chunk) != head.checksum.get() {
            return Err(Checksum);
        }
        let (expected, found) = (self.header.number, head.number.get());
        if expected != found {
            return Err(OtherNumber { expected, found });
        }
        Ok(items)
    }

    /// Divides the items by kind, as the header's counts say, and checks each.
    fn split<'a>(&mut self, items: &'a [u8]) -> Result<ChunkItems<'a>, CheckpointError> {
        use CheckpointError::Absurd;
        let count = (items.len() / SEGMENT_BYTES).min(clamp(self.segments_left));
        let (segments, items) = <[OnDiskSegment]>::ref_from_prefix_with_elems(items, count)
            .map_err(|_| Absurd("chunk.len"))?;
        self.segments_left -= count as u64;
        let count = (items.len() / INDEX_ENTRY_BYTES).min(clamp(self.entries_left));
        let (entries, items) = <[OnDiskEntry]>::ref_from_prefix_with_elems(items, count)
            .map_err(|_| Absurd("chunk.len"))?;
        self.entries_left -= count as u64;
        let masks = <[U64]>::ref_from_bytes(items).map_err(|_| Absurd("chunk.len"))?;
        let words = mask_bytes(self.block.sectors()) / 8;
        let count = (masks.len() / words) as u64;
        let others_left = self.segments_left + self.entries_left > 0;
        if !masks.len().is_multiple_of(words)
            || count > self.masks_left
            || (others_left && count > 0)
        {
            return Err(Absurd("chunk.len"));
        }
        self.masks_left -= count;

        let granules = self.granules_per_segment;
        if !segments.iter().all(|segment| segment.is_possible(granules)) {
            return Err(Absurd("segment"));
        }
        let (mut possible, mut partial) = (true, 0);
        for entry in entries {
            possible &= entry.is_possible(&self.cells, self.header.check_bits);
            partial += u64::from(entry.is_partial());
        }
        if !possible {
            return Err(Absurd("entry"));
        }
        self.partial += partial;
        if !masks.chunks_exact(words).all(|item| mask_is_possible(item, self.block)) {
            return Err(Absurd("mask"));
        }
        Ok(ChunkItems { block: self.block, segments, entries, masks })
    }

    /// Whether everything that the header promises has come.
    ///
    /// # Errors
    /// Something is missing, or the number of masks is not that of the partial entries.
    pub fn finish(self) -> Result<CheckpointHeader, CheckpointError> {
        if self.place().is_some() {
            return Err(CheckpointError::Truncated);
        }
        let check = |good, field| if good { Ok(()) } else { Err(CheckpointError::Absurd(field)) };
        check(self.segments_left == 0, "segment_count")?;
        check(self.entries_left == 0, "entry_count")?;
        check(self.masks_left == 0 && self.partial == self.header.mask_count, "mask_count")?;
        Ok(self.header)
    }
}

fn clamp(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
