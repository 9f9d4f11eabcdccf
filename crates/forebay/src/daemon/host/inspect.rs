//! What is on a cache device, read before anything is written to it: a pair of devices that does
//! not belong together is left as it is.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_core::VolumeId;
use forebay_device::{Access, Device, DeviceSpec, Queue};
use forebay_engine::{LaneContext, Look, Verdict, recognise};
use forebay_format::superblock::COPY_B;
use forebay_format::{PAGE, SuperblockError, VolumeRecord};
use forebay_store::CLEAN_DISTRUSTED;
use forebay_store::StoreError;
use forebay_store::check::{count_dirty, read_checkpoint};
use forebay_store::{Roots, read_roots, read_superblock};

use super::attended::within;
use super::faults;

/// How long an origin of another volume may take to say how large it is.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// What a cache device holds.
pub(super) enum Content {
    /// Nothing of ours.
    Nothing,
    /// A cache.
    Cache(Box<Roots>),
    /// Something of ours that cannot be used, and why.
    Unusable(String),
}

/// Looks at a device.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn content(
    context: &LaneContext,
    device: &Arc<dyn Device>,
) -> Result<Content, ApiError> {
    if device.size() < COPY_B + PAGE as u64 {
        return Ok(Content::Nothing);
    }
    let queue = context.open(device).map_err(faults::engine)?;
    let found = read_superblock(device, &queue, &mut Vec::new()).await;
    match found.map_err(faults::store)? {
        Err(SuperblockError::NotForebay) => return Ok(Content::Nothing),
        Err(error) => return Ok(Content::Unusable(error.to_string())),
        Ok(_) => {}
    }
    Ok(match read_roots(device, &queue).await {
        Ok(roots) => Content::Cache(Box::new(roots)),
        Err(error) => Content::Unusable(error.to_string()),
    })
}

/// The record of the volume of this name, if the cache that holds it is on `device`.
pub(super) fn record_of<'a>(
    records: &'a [VolumeRecord],
    name: &VolumeName,
) -> Option<&'a VolumeRecord> {
    records.iter().find(|record| record.name == name.as_str())
}

/// Looks at an origin, as far as a volume knows it.
///
/// # Errors
/// When it cannot be opened.
pub(super) async fn look(
    context: &LaneContext,
    origin: &Arc<dyn Device>,
    size: u64,
) -> Result<Look, ApiError> {
    let queue = context.open(origin).map_err(faults::engine)?;
    Ok(Look::take(&queue, size.min(origin.size())).await)
}

/// Checks that `origin`, which has this `look`, is the one whose blocks the cache holds as the volume
/// in `record`. `noted`: the device was not told all, which may have been our own writes to the origin.
/// Whatever the answer, nothing has been written.
///
/// # Errors
/// [`ErrorKind::Refused`] when the origin is too small or another device; [`ErrorKind::DataAtRisk`]
/// when it is another device or was changed while the cache had newer blocks.
pub(super) async fn check_pair(
    context: &LaneContext,
    device: &Arc<dyn Device>,
    roots: &Roots,
    record: &VolumeRecord,
    origin: &Arc<dyn Device>,
    look: Option<&Look>,
    noted: bool,
) -> Result<(), ApiError> {
    let name = &record.name;
    if origin.size() < record.origin_bytes {
        let message = format!(
            "the origin {} has {} bytes and '{name}' was made for {}: it is another device, or was cut",
            origin.name(),
            origin.size(),
            record.origin_bytes
        );
        return Err(ApiError::new(ErrorKind::Refused, message));
    }
    // With force only what that cannot help is refused.
    let Some(look) = look else { return Ok(()) };
    let trusted = roots.superblock.compat & CLEAN_DISTRUSTED == 0 && !noted;
    let verdict =
        recognise(record, look, origin.identity().as_ref(), trusted).map_err(faults::engine)?;
    if verdict == Verdict::Same {
        return Ok(());
    }
    let dirty = dirty_blocks(context, device, roots, record.id).await.map_err(faults::store)?;
    verdict.allow(name, origin.name(), dirty).map_err(faults::engine)
}

/// Volumes of a cache whose origins are larger than it knows, with their blocks: the volume `name`,
/// whose origin has `size` bytes, and those of others as far as they can be looked at soon.
pub(super) fn grown(roots: &Roots, name: &VolumeName, size: u64) -> Vec<(VolumeId, u64)> {
    let block = roots.superblock.geometry.block.bytes();
    let size_of = |record: &VolumeRecord| {
        let own = record.name == name.as_str();
        let spec: Option<DeviceSpec> = record.origin.parse().ok();
        // RAM would be made anew.
        let spec = spec.filter(|spec| !own && !spec.is_volatile());
        let look = spec.map(|spec| {
            within(LOOK_WITHIN, move || {
                spec.made().open(Access::Unlocked).ok().map(|device| device.size())
            })
        });
        move || if own { Some(size) } else { look?()? }
    };
    // All are asked together: one that does not answer does not take the time of the others.
    let asked: Vec<_> = roots.volumes.iter().map(|record| (record, size_of(record))).collect();
    let sizes = asked.into_iter().filter_map(|(record, size)| Some((record, size()?)));
    let larger = sizes.filter(|(record, size)| *size > record.origin_bytes);
    let blocks = |record: &VolumeRecord, size: u64| {
        size.saturating_add(u64::from(record.alignment)).div_ceil(block)
    };
    larger.map(|(record, size)| (record.id, blocks(record, size))).collect()
}

/// Dirty blocks of a volume on a cache device that is not open.
async fn dirty_blocks(
    context: &LaneContext,
    device: &Arc<dyn Device>,
    roots: &Roots,
    volume: VolumeId,
) -> Result<u64, StoreError> {
    if !roots.superblock.clean_shutdown {
        // What is dirty is in the log: it is recovered in memory, and nothing is written.
        let open = |device: &Arc<dyn Device>| {
            let queue = Queue::new(device.open_queue(&context.queues)?);
            (context.register)(&queue);
            Ok(queue)
        };
        return count_dirty(&context.lane, device, &open, volume).await;
    }
    let mut dirty = 0u64;
    let queue = Queue::new(device.open_queue(&context.queues)?);
    (context.register)(&queue);
    read_checkpoint(&queue, &roots.superblock, |entry| {
        dirty += u64::from(entry.dirty && entry.volume == volume);
    })
    .await?;
    Ok(dirty)
}
