//! Reading the current checkpoint from its beginning to its end.

use forebay_device::{IoBuf, Queue};
use forebay_format::checkpoint::ChunkItems;
use forebay_format::checkpoint::ParityPlace;
use forebay_format::{CheckpointHeader, CheckpointReader, Geometry, PAGE, Superblock};

use crate::chunks::{Chunks, damaged, items_in};
use crate::error::StoreError;
use crate::retry;

/// The checkpoint that a superblock names, chunk by chunk. Call [`CheckpointSource::read`] and
/// [`CheckpointSource::items`] until there is no chunk left, then [`CheckpointSource::finish`].
pub struct CheckpointSource {
    queue: Queue,
    chunks: Chunks,
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Whether a damaged chunk or header was rebuilt from the parity or the copy.
    pub mended: bool,
}

impl CheckpointSource {
    /// Opens the current checkpoint; `None`: there is none yet.
    ///
    /// # Errors
    /// Both its header and the copy of it are damaged or unreadable.
    pub async fn open(queue: &Queue, superblock: &Superblock) -> Result<Option<Self>, StoreError> {
        let Some(reference) = &superblock.checkpoint else { return Ok(None) };
        let geometry: &Geometry = &superblock.geometry;
        let area = geometry.checkpoint_areas[usize::from(reference.area)];
        let parity = ParityPlace::of(reference, geometry);
        let mut failure = None;
        for at in [Some(0), parity.map(|place| place.header)].into_iter().flatten() {
            let found = match retry::read(queue, area + at, PAGE).await {
                Ok(page) => CheckpointReader::open(&page, reference, geometry, superblock.cache)
                    .map_err(damaged),
                Err(error) => Err(error.into()),
            };
            match found {
                Ok(reader) => {
                    let (queue, bytes_read) = (queue.clone(), PAGE as u64);
                    let mended = failure.is_some();
                    let chunks = Chunks::new(area, parity, reader);
                    return Ok(Some(CheckpointSource { queue, chunks, bytes_read, mended }));
                }
                Err(error) => failure = Some(failure.unwrap_or(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Returns the chunks, to be read in any order.
    pub(crate) fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// Returns the checkpoint's header.
    pub fn header(&self) -> &CheckpointHeader {
        self.chunks.header()
    }

    /// Reads the next chunk, intact or rebuilt; `None` after the last.
    ///
    /// # Errors
    /// The chunk is damaged and cannot be rebuilt.
    pub async fn read(&mut self) -> Result<Option<IoBuf>, StoreError> {
        let read = self.chunks.read_with(&self.queue, self.chunks.reader()).await?;
        let Some(read) = read else { return Ok(None) };
        self.bytes_read += read.bytes_read;
        self.mended |= read.mended;
        Ok(Some(read.chunk))
    }

    /// Returns the items of the chunk that was read last.
    ///
    /// # Errors
    /// The chunk has impossible items.
    pub fn items<'a>(&mut self, chunk: &'a [u8]) -> Result<ChunkItems<'a>, StoreError> {
        items_in(self.chunks.reader_mut(), chunk)
    }

    /// Checks that everything that the header announces was read, and returns the header.
    ///
    /// # Errors
    /// Something is missing.
    pub fn finish(self) -> Result<CheckpointHeader, StoreError> {
        self.chunks.into_reader().finish().map_err(damaged)
    }
}
