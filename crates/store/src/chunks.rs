//! The chunks of a checkpoint, read in any order; a damaged one is rebuilt from the parity.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::{IoBuf, Queue};
use forebay_format::checkpoint::{CHUNK_BYTES, ChunkItems, ParityPlace, add_to_parity};
use forebay_format::{CheckpointError, CheckpointHeader, CheckpointReader, IndexEntry, PAGE};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::retry;
use crate::table::{Check, Entry};

/// Limit of rebuilt chunks. The parity covers one chunk; reads that fail only at times can require
/// more.
const MOST_REBUILT: usize = 4;

/// The chunks of a checkpoint.
#[derive(Clone)]
pub(crate) struct Chunks {
    /// Offset of the area on the device.
    area: u64,
    parity: Option<ParityPlace>,
    reader: CheckpointReader,
    /// Rebuilt chunks with their numbers. Rebuilding a chunk reads all others, and damage can be
    /// crafted so that each of them can be rebuilt; keeping them limits the reads.
    rebuilt: Arc<Mutex<Vec<(u64, IoBuf)>>>,
}

/// A chunk that was read.
pub(crate) struct ReadChunk {
    /// The bytes of the chunk, intact.
    pub(crate) chunk: IoBuf,
    /// Bytes read for it.
    pub(crate) bytes_read: u64,
    /// Whether it was rebuilt from the parity.
    pub(crate) mended: bool,
}

/// Returns the items of a chunk.
///
/// # Errors
/// The chunk has impossible items.
pub(crate) fn items_in<'a>(
    reader: &mut CheckpointReader,
    chunk: &'a [u8],
) -> Result<ChunkItems<'a>, StoreError> {
    reader.feed(chunk).map_err(damaged)
}

/// Returns the index entry for an entry of a checkpoint that keeps `bits` bits of checks, at the
/// high end as in the table.
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
    /// Creates the chunks of the checkpoint in the area at this offset of the device.
    pub(crate) fn new(area: u64, parity: Option<ParityPlace>, reader: CheckpointReader) -> Self {
        Chunks { area, parity, reader, rebuilt: Arc::default() }
    }

    /// Returns the reader, at the first chunk.
    pub(crate) fn reader(&self) -> &CheckpointReader {
        &self.reader
    }

    /// Returns the same reader for changes.
    pub(crate) fn reader_mut(&mut self) -> &mut CheckpointReader {
        &mut self.reader
    }

    /// Returns the same reader by value.
    pub(crate) fn into_reader(self) -> CheckpointReader {
        self.reader
    }

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
    /// The chunk does not exist, or is damaged and cannot be rebuilt.
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
        let known = || Some(IoBuf::copy_from(&self.rebuilt.lock().iter().find(|it| it.0 == at)?.1));
        if let Some(chunk) = known() {
            return Ok(Some(ReadChunk { chunk, bytes_read, mended: true }));
        }
        if self.rebuilt.lock().len() >= MOST_REBUILT {
            return Err(damaged(error));
        }
        let (chunk, more) = self.rebuild(queue, at, len).await?;
        reader.verify(&chunk).map_err(|_| damaged(error))?;
        self.rebuilt.lock().push((at, IoBuf::copy_from(&chunk)));
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use forebay_core::{BlockSize, Generation, OriginBlock, RecordNumber, SegmentId, VolumeId};
    use forebay_device::{Device, RamDevice};
    use forebay_format::{CheckpointRef, CheckpointWriter, Geometry, SegmentState, Uuid};
    use forebay_testkit::{LaneWorld, peek, poke};

    use super::*;

    const CACHE: Uuid = Uuid::from_u128(7);

    fn geometry() -> Geometry {
        Geometry::plan(1 << 30, BlockSize::DEFAULT, 512, None).expect("a plan")
    }

    fn entry(geometry: &Geometry, number: u64) -> IndexEntry {
        let (segment, cell) = (number / 512, number % 512 + 1);
        IndexEntry {
            block: OriginBlock(number),
            slot: geometry.slot_at(SegmentId(segment as u32), cell as u32),
            check: 0,
            volume: VolumeId(1),
            rank: 0,
            dirty: false,
            partial: false,
        }
    }

    /// A checkpoint of several chunks, with its parity.
    fn write(device: &Arc<dyn Device>, geometry: &Geometry) -> CheckpointRef {
        let start = geometry.checkpoint_areas[0];
        let mut writer = CheckpointWriter::new(geometry, CACHE, 0, 1, 0).expect("in range");
        let segments = vec![SegmentState::default(); geometry.segment_count as usize];
        writer.push_segments(&segments).expect("in order");
        let mut number = 0;
        loop {
            let full = number < 120_000
                && writer.push_entries(&[entry(geometry, number)]).expect("in order") == 0;
            if !full && number < 120_000 {
                number += 1;
                continue;
            }
            match writer.take_chunk().expect("in order") {
                Some(chunk) => poke(device, start + chunk.offset, chunk.bytes),
                None => break,
            }
        }
        let finished =
            writer.finish(RecordNumber(0), 0, Generation(1)).expect("everything was pushed");
        let place = ParityPlace::of(&finished.reference, geometry).expect("there is room for it");
        poke(device, start, &finished.header);
        poke(device, start + place.offset, &finished.parity);
        finished.reference
    }

    /// The same bit is wrong in each chunk, so each one can be rebuilt from the others.
    #[test]
    fn rebuilding_every_chunk_reads_the_checkpoint_only_a_few_times() {
        let geometry = geometry();
        let device: Arc<dyn Device> = RamDevice::new("ram", geometry.device_bytes).expect("memory");
        let reference = write(&device, &geometry);
        let area = geometry.checkpoint_areas[0];
        let flip = |damaged: u64| {
            for chunk in 0..damaged {
                let at = area + PAGE as u64 + chunk * CHUNK_BYTES as u64 + 512;
                let mut sector = peek(&device, at, 512);
                sector[0] ^= 1;
                poke(&device, at, &sector);
            }
        };
        let rebuilt = |damaged: u64| {
            flip(damaged);
            let world = LaneWorld::new();
            let queue = world.queue(&device);
            let page = peek(&device, area, PAGE);
            let read = world.block_on({
                let (parity, geometry) = (ParityPlace::of(&reference, &geometry), geometry.clone());
                async move {
                    let reader = CheckpointReader::open(&page, &reference, &geometry, CACHE);
                    let mut chunks = Chunks::new(area, parity, reader.expect("intact"));
                    let mut mended = 0;
                    loop {
                        match chunks.read_with(&queue, chunks.reader()).await {
                            Ok(Some(read)) => {
                                mended += u64::from(read.mended);
                                items_in(chunks.reader_mut(), &read.chunk).expect("intact");
                            }
                            Ok(None) => return Ok(mended),
                            Err(_) => return Err(mended),
                        }
                    }
                }
            });
            flip(damaged);
            read
        };
        assert_eq!(rebuilt(0), Ok(0));
        assert_eq!(rebuilt(1), Ok(1));
        assert_eq!(rebuilt(3), Ok(3));
        assert_eq!(rebuilt(7), Err(MOST_REBUILT as u64));
    }
}
