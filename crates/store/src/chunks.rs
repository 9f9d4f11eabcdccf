//! The chunks of a checkpoint, read in any order; a damaged one is rebuilt from the parity.

use std::ops::Range;

use forebay_device::{IoBuf, Queue};
use forebay_format::checkpoint::{CHUNK_BYTES, ChunkItems, ParityPlace, add_to_parity};
use forebay_format::{CheckpointError, CheckpointHeader, CheckpointReader, IndexEntry, PAGE};

use crate::error::StoreError;
use crate::retry;
use crate::table::{Check, Entry};

/// The chunks of a checkpoint.
#[derive(Clone)]
pub(crate) struct Chunks {
    /// Offset of the area on the device.
    pub(crate) area: u64,
    pub(crate) parity: Option<ParityPlace>,
    pub(crate) reader: CheckpointReader,
}

/// A chunk that was read.
pub(crate) struct ReadChunk {
    /// Its bytes, intact.
    pub(crate) chunk: IoBuf,
    /// Bytes read for it.
    pub(crate) bytes_read: u64,
    /// Whether it was rebuilt from the parity.
    pub(crate) mended: bool,
}

/// Returns the items of a chunk.
///
/// # Errors
/// It has impossible items.
pub(crate) fn items_in<'a>(
    reader: &mut CheckpointReader,
    chunk: &'a [u8],
) -> Result<ChunkItems<'a>, StoreError> {
    reader.feed(chunk).map_err(damaged)
}

/// Returns the index entry of an entry of a checkpoint that keeps this many bits of checks: they are
/// at the high end, as in the table.
pub(crate) fn entry_of(entry: &IndexEntry, bits: u32) -> Entry {
    Entry {
        slot: entry.slot,
        dirty: entry.dirty,
        partial: entry.partial,
        rank: entry.rank,
        check: Check::from_28(entry.check << (28 - bits.min(28))),
    }
}

pub(crate) fn damaged(error: CheckpointError) -> StoreError {
    StoreError::Refused(error.to_string())
}

impl Chunks {
    /// Returns the checkpoint's header.
    pub(crate) fn header(&self) -> &CheckpointHeader {
        self.reader.header()
    }

    /// Returns the numbers of the chunks that have entries.
    pub(crate) fn chunks_of_entries(&self) -> Range<u32> {
        let reader = &self.reader;
        match reader.header().entry_count.checked_sub(1) {
            Some(last) => reader.chunk_of_entry(0)..reader.chunk_of_entry(last) + 1,
            None => 0..0,
        }
    }

    /// Returns the number of the first chunk that can have masks.
    pub(crate) fn first_chunk_of_masks(&self) -> u32 {
        self.reader.chunk_of_entry(self.header().entry_count)
    }

    /// Reads a chunk with `queue`, in any order. Returns it with the reader for its items.
    ///
    /// # Errors
    /// It does not exist, or is damaged and cannot be rebuilt.
    pub(crate) async fn read_at(
        &self,
        queue: &Queue,
        chunk: u32,
    ) -> Result<(ReadChunk, CheckpointReader), StoreError> {
        let absent = || StoreError::Refused(format!("the checkpoint has no chunk {chunk}"));
        let reader = self.reader.at(chunk);
        let read = self.read_with(queue, &reader).await?.ok_or_else(absent)?;
        Ok((read, reader))
    }

    /// Reads the next chunk of `reader`, intact or rebuilt; `None` after the last.
    pub(crate) async fn read_with(
        &self,
        queue: &Queue,
        reader: &CheckpointReader,
    ) -> Result<Option<ReadChunk>, StoreError> {
        let Some((at, len)) = reader.place() else { return Ok(None) };
        let chunk = retry::read_pages(queue, self.area + at, len).await?.bytes;
        let bytes_read = len as u64;
        let Err(error) = reader.verify(&chunk) else {
            return Ok(Some(ReadChunk { chunk, bytes_read, mended: false }));
        };
        let (chunk, more) = self.rebuild(queue, at, len).await?;
        reader.verify(&chunk).map_err(|_| damaged(error))?;
        Ok(Some(ReadChunk { chunk, bytes_read: bytes_read + more, mended: true }))
    }

    /// Rebuilds the chunk at `missing` from all other chunks and the parity. Returns it, and the
    /// bytes that were read.
    async fn rebuild(
        &self,
        queue: &Queue,
        missing: u64,
        len: usize,
    ) -> Result<(IoBuf, u64), StoreError> {
        let Some(place) = self.parity else { return Ok((IoBuf::zeroed(len), 0)) };
        let parity = retry::read_pages(queue, self.area + place.offset, place.len).await?;
        let mut sum = parity.bytes;
        let (mut at, mut bytes_read) = (PAGE as u64, 0);
        while at < place.offset {
            let len = (place.offset - at).min(CHUNK_BYTES as u64);
            if at != missing {
                let other = retry::read_pages(queue, self.area + at, len as usize).await?;
                add_to_parity(&mut sum, &other.bytes);
                bytes_read += len;
            }
            at += len;
        }
        sum.truncate(len);
        Ok((sum, bytes_read))
    }
}
