//! Reads a checkpoint, one chunk at a time.

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

/// Decodes a header and chunks into segments, entries and masks.
///
/// Read the chunk at [`place`](Self::place), [`feed`](Self::feed) it and use the items, until
/// `place` returns `None`; then call [`finish`](Self::finish).
#[derive(Clone, Debug)]
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
    /// Whether only this chunk is read, see [`CheckpointReader::at`].
    alone: bool,
}

/// The items of one chunk, which have been checked.
#[derive(Clone, Copy, Debug)]
pub struct ChunkItems<'a> {
    block: BlockSize,
    segments: &'a [OnDiskSegment],
    entries: &'a [OnDiskEntry],
    masks: &'a [U64],
}

impl<'a> ChunkItems<'a> {
    /// Returns the next entries of the segment table, in the order of the segments.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = SegmentState> + use<'a> {
        self.segments.iter().map(OnDiskSegment::get)
    }

    /// Returns index entries, in no particular order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = IndexEntry> + use<'a> {
        self.entries.iter().map(OnDiskEntry::get)
    }

    /// Returns masks of partial entries of this and earlier chunks, in no particular order.
    pub fn masks(&self) -> impl ExactSizeIterator<Item = PartialMask> + use<'a> {
        let block = self.block;
        let words = mask_bytes(block.sectors()) / 8;
        self.masks.chunks_exact(words).map(move |item| read_mask(item, block))
    }
}

impl CheckpointReader {
    /// Starts with the header page, which must be the one that `reference` names.
    ///
    /// # Errors
    /// The page is not exactly that header, or contains values that are impossible on this device.
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
            alone: false,
            header,
        })
    }

    /// Returns the checkpoint's header.
    pub fn header(&self) -> &CheckpointHeader {
        &self.header
    }

    /// Returns the place of the next chunk: its offset from the start of the checkpoint area and
    /// its length, both in bytes and multiples of 4096. `None` after the last.
    pub fn place(&self) -> Option<(u64, usize)> {
        let offset = chunk_offset(self.chunk);
        let left = self.header.len.checked_sub(offset).filter(|left| *left > 0)?;
        Some((offset, left.min(CHUNK_BYTES as u64) as usize))
    }

    /// Returns the number of the chunk that contains this entry, or would contain it if it followed
    /// the last one, provided that all chunks before it are full.
    pub fn chunk_of_entry(&self, entry: u64) -> u32 {
        let item = u64::from(self.header.segment_count) + entry;
        u32::try_from(item / ITEMS_IN_CHUNK).unwrap_or(u32::MAX)
    }

    /// Returns a reader for one chunk at any position, which need not exist: it then has no
    /// [`place`](Self::place). The reader must not be finished.
    pub fn at(&self, chunk: u32) -> Self {
        let before = u64::from(chunk) * ITEMS_IN_CHUNK;
        let segments = u64::from(self.header.segment_count);
        let entries_before = before.saturating_sub(segments);
        CheckpointReader {
            cache: self.cache,
            block: self.block,
            granules_per_segment: self.granules_per_segment,
            cells: self.cells.clone(),
            header: self.header,
            chunk,
            segments_left: segments.saturating_sub(before),
            entries_left: self.header.entry_count.saturating_sub(entries_before),
            masks_left: self.header.mask_count,
            partial: 0,
            alone: true,
        }
    }

    /// Checks the chunk that was read at [`place`](Self::place) and returns its items.
    ///
    /// # Errors
    /// The chunk is damaged, belongs elsewhere, or has impossible items. The reader must not be
    /// used after that.
    pub fn feed<'a>(&mut self, bytes: &'a [u8]) -> Result<ChunkItems<'a>, CheckpointError> {
        let items = self.intact(bytes)?;
        let items = self.split(items)?;
        self.chunk += 1;
        Ok(items)
    }

    /// Checks that the chunk is intact, without its items.
    ///
    /// # Errors
    /// The chunk is damaged, or belongs elsewhere.
    pub fn verify(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.intact(bytes).map(drop)
    }

    /// Returns the bytes of an intact chunk's items.
    fn intact<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], CheckpointError> {
        use CheckpointError::{Absurd, Checksum, OtherNumber, Truncated};
        let (_, most) = self.place().ok_or(Absurd("chunk"))?;
        let bytes = bytes.get(..most).ok_or(Truncated)?;
        let (head, items) = OnDiskChunk::ref_from_prefix(bytes).map_err(|_| Truncated)?;
        let len = head.len.get() as usize;
        // An impossible length means damage, like any other checksum mismatch.
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

    /// Splits the items by kind according to the header's counts, and checks each.
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
        let full = (segments.len() + entries.len()) as u64 == ITEMS_IN_CHUNK;
        if self.alone && self.entries_left > 0 && !full {
            // The numbers of the chunk's items would differ from those that its position implies.
            return Err(Absurd("chunk.len"));
        }
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

    /// Checks that everything that the header announces was fed. Returns the header.
    ///
    /// # Errors
    /// Something is missing, or the number of masks differs from that of the partial entries.
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

/// Segments and entries in a full chunk.
const ITEMS_IN_CHUNK: u64 = ((CHUNK_BYTES - CHUNK_HEADER_BYTES) / INDEX_ENTRY_BYTES) as u64;
const _: () = assert!(INDEX_ENTRY_BYTES == SEGMENT_BYTES);

fn clamp(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
