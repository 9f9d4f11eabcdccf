//! Formatting a cache device.

use std::sync::Arc;

use forebay_core::{BlockSize, Generation, RecordNumber};
use forebay_device::{Device, Queue};
use forebay_format::checkpoint::ParityPlace;
use forebay_format::superblock::{COPY_A, COPY_B, PROTECTED};
use forebay_format::{CheckpointWriter, Geometry, SegmentState, Superblock, Uuid, volume};

use crate::error::StoreError;
use crate::meta::page_buffer;

/// Options for formatting a device.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The unit of caching.
    pub block: BlockSize,
    /// Size of a segment in bytes; `None` to choose it by the size of the device.
    pub segment_bytes: Option<u64>,
    /// The cache's identity; never to be reused.
    pub uuid: Uuid,
}

/// Writes an empty cache. Everything on the device is lost.
///
/// Overwrites the old superblocks first, so that an interrupted format does not leave a valid cache
/// device.
///
/// # Errors
/// The device is too small or fails.
pub async fn format(
    device: &Arc<dyn Device>,
    queue: &Queue,
    options: &FormatOptions,
) -> Result<(), StoreError> {
    let geometry =
        Geometry::plan(device.size(), options.block, device.logical_block(), options.segment_bytes)
            .map_err(|cause| StoreError::Format { device: device.name().into(), cause })?;
    let impossible = |what: String| StoreError::Refused(format!("{}: {what}", device.name()));
    for at in [COPY_A, COPY_B] {
        queue.write(at, page_buffer(&[0])).await?;
    }
    // Barrier for invariant 13: no old superblock may refer to the areas overwritten below.
    queue.sync().await?;
    let table = volume::encode(&[], &options.uuid, options.block)
        .map_err(|error| impossible(error.to_string()))?;
    for area in geometry.volume_areas {
        queue.write(area, page_buffer(&table.bytes)).await?;
    }
    let failed = |error: forebay_format::CheckpointWriteError| impossible(error.to_string());
    let mut writer = CheckpointWriter::new(&geometry, options.uuid, 0, 1, 28).map_err(failed)?;
    let lines = vec![SegmentState::default(); geometry.segment_count as usize];
    let offset = geometry.checkpoint_areas[0];
    let mut rest = &lines[..];
    while !rest.is_empty() {
        let taken = writer.push_segments(rest).map_err(failed)?;
        rest = &rest[taken..];
        if let Some(chunk) = writer.take_chunk().map_err(failed)? {
            queue.write(offset + chunk.offset, page_buffer(chunk.bytes)).await?;
        }
    }
    let finished = writer.finish(RecordNumber(0), 0, Generation(1)).map_err(failed)?;
    queue.write(offset, page_buffer(&finished.header)).await?;
    if let Some(place) = ParityPlace::of(&finished.reference, &geometry) {
        queue.write(offset + place.offset, page_buffer(&finished.parity)).await?;
    }
    // Barrier for invariant 13: the superblock is written last.
    queue.sync().await?;
    let superblock = Superblock {
        cache: options.uuid,
        generation: 1,
        compat: PROTECTED,
        incompat: 0,
        ro_compat: 0,
        geometry,
        volume_table: table.reference(0),
        checkpoint: Some(finished.reference),
        clean_shutdown: false,
        next_volume_id: 1,
        last_record: RecordNumber(0),
        accepted: None,
    };
    for at in [COPY_A, COPY_B] {
        queue.write(at, page_buffer(&superblock.encode(at))).await?;
        queue.sync().await?;
    }
    Ok(())
}
