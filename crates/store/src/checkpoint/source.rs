//! Reading the current checkpoint, rebuilding a damaged part from parity.

use forebay_device::{IoBuf, Queue};
use forebay_format::checkpoint::ChunkItems;
use forebay_format::checkpoint::{CHUNK_BYTES, ParityPlace, add_to_parity};
use forebay_format::{
    CheckpointError, CheckpointHeader, CheckpointReader, Geometry, PAGE, Superblock,
};

use crate::error::StoreError;
use crate::retry;

/// The checkpoint that a superblock names, chunk by chunk. Call [`CheckpointSource::read`] and
/// [`CheckpointSource::items`] until there is no chunk left, then [`CheckpointSource::finish`].
pub struct CheckpointSource {
    queue: Queue,
    /// Offset of the area on the device.
    area: u64,
    parity: Option<ParityPlace>,
    reader: CheckpointReader,
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Whether a damaged chunk or header was rebuilt from the parity or the copy.
    pub mended: bool,
}

fn damaged(error: CheckpointError) -> StoreError {
    StoreError::Refused(error.to_string())
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
                    return Ok(Some(CheckpointSource {
                        queue,
                        area,
                        parity,
                        reader,
                        bytes_read,
                        mended,
                    }));
                }
                Err(error) => failure = Some(failure.unwrap_or(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Returns the checkpoint's header.
    pub fn header(&self) -> &CheckpointHeader {
        self.reader.header()
    }

    /// Reads the next chunk, intact or rebuilt; `None` after the last.
    ///
    /// # Errors
    /// It is damaged and cannot be rebuilt.
    pub async fn read(&mut self) -> Result<Option<IoBuf>, StoreError> {
        let Some((at, len)) = self.reader.place() else { return Ok(None) };
        self.bytes_read += len as u64;
        let pages = retry::read_pages(&self.queue, self.area + at, len).await?;
        let Err(error) = self.reader.verify(&pages.bytes) else { return Ok(Some(pages.bytes)) };
        let mended = self.rebuild(at, len).await?;
        self.reader.verify(&mended).map_err(|_| damaged(error))?;
        self.mended = true;
        Ok(Some(mended))
    }

    /// Rebuilds the chunk at `missing` from all other chunks and the parity.
    async fn rebuild(&mut self, missing: u64, len: usize) -> Result<IoBuf, StoreError> {
        let Some(place) = self.parity else { return Ok(IoBuf::zeroed(len)) };
        let parity = retry::read_pages(&self.queue, self.area + place.offset, place.len).await?;
        let mut sum = parity.bytes;
        let mut at = PAGE as u64;
        while at < place.offset {
            let len = (place.offset - at).min(CHUNK_BYTES as u64);
            if at != missing {
                let other = retry::read_pages(&self.queue, self.area + at, len as usize).await?;
                add_to_parity(&mut sum, &other.bytes);
                self.bytes_read += len;
            }
            at += len;
        }
        sum.truncate(len);
        Ok(sum)
    }

    /// Returns the items of the chunk that was read last.
    ///
    /// # Errors
    /// It has impossible items.
    pub fn items<'a>(&mut self, chunk: &'a [u8]) -> Result<ChunkItems<'a>, StoreError> {
        self.reader.feed(chunk).map_err(damaged)
    }

    /// Checks that everything that the header announces was read, and returns the header.
    ///
    /// # Errors
    /// Something is missing.
    pub fn finish(self) -> Result<CheckpointHeader, StoreError> {
        self.reader.finish().map_err(damaged)
    }
}
