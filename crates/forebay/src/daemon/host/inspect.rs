//! What is on a cache device, read before anything is written to it: a pair of devices that does
//! not belong together is left as it is.

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_core::VolumeId;
use forebay_device::{Access, Device, DeviceSpec, IoBuf, Queue};
use forebay_engine::{LaneContext, Look, Verdict, recognise};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{PAGE, Superblock, SuperblockError, VolumeRecord};
use forebay_store::CLEAN_DISTRUSTED;
use forebay_store::StoreError;
use forebay_store::check::{count_dirty, read_checkpoint};
use forebay_store::{Roots, read_roots};

use super::faults;

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
    let read = async |at| queue.read(at, IoBuf::zeroed(PAGE)).await;
    let copy_a = read(COPY_A).await.map_err(|error| faults::device(&error))?;
    let copy_b = read(COPY_B).await.map_err(|error| faults::device(&error))?;
    match Superblock::choose(&copy_a, &copy_b) {
        Err(SuperblockError::NotForebay) => return Ok(Content::Nothing),
        Err(error) => return Ok(Content::Unusable(error.to_string())),
        Ok(_) => {}
    }
    Ok(match read_roots(device, &queue).await {
        Ok(roots) => Content::Cache(Box::new(roots)),
        Err(error) => Content::Unusable(error.to_string()),
    })
}

/// Checks that `origin` is the one whose blocks the cache holds as volume `name`. Whatever the
/// answer, nothing has been written.
///
/// # Errors
/// [`ErrorKind::Refused`] when the cache does not know the volume, or the origin is too small or
/// another device; [`ErrorKind::DataAtRisk`] when it is another device or was changed while the
/// cache had newer blocks. With `force` only what it cannot help is refused.
pub(super) async fn check_pair(
    context: &LaneContext,
    device: &Arc<dyn Device>,
    roots: &Roots,
    name: &VolumeName,
    origin: &Arc<dyn Device>,
    force: bool,
) -> Result<(), ApiError> {
    let refused = |message: String| Err(ApiError::new(ErrorKind::Refused, message));
    let Some(record) = roots.volumes.iter().find(|record| record.name == name.as_str()) else {
        return refused(format!(
            "{} is the cache device of other volumes and does not know '{name}'; name the device that does",
            device.name()
        ));
    };
    if origin.size() < record.origin_bytes {
        return refused(format!(
            "the origin {} has {} bytes and '{name}' was made for {}: it is another device, or was cut",
            origin.name(),
            origin.size(),
            record.origin_bytes
        ));
    }
    if force {
        return Ok(());
    }
    let queue = context.open(origin).map_err(faults::engine)?;
    let look = Look::take(&queue, record.origin_bytes).await;
    let trusted = roots.superblock.compat & CLEAN_DISTRUSTED == 0;
    let verdict =
        recognise(record, &look, origin.identity().as_ref(), trusted).map_err(faults::engine)?;
    if verdict == Verdict::Same {
        return Ok(());
    }
    let dirty = dirty_blocks(context, device, roots, record.id).await.map_err(faults::store)?;
    verdict.allow(name.as_str(), origin.name(), dirty).map_err(faults::engine)
}

/// Volumes of a cache whose origins are larger than it knows, with their blocks: the volume `name`,
/// whose origin has `size` bytes, and those of others as far as they can be looked at.
pub(super) fn grown(roots: &Roots, name: &VolumeName, size: u64) -> Vec<(VolumeId, u64)> {
    let block = roots.superblock.geometry.block.bytes();
    let size_of = |record: &VolumeRecord| {
        if record.name == name.as_str() {
            return Some(size);
        }
        let spec: DeviceSpec = record.origin.parse().ok()?;
        // RAM would be made anew.
        let there = !spec.is_volatile();
        let size = || spec.made().open(Access::Unlocked).ok().map(|device| device.size());
        there.then(size).flatten()
    };
    let volumes = roots.volumes.iter();
    let sizes = volumes.filter_map(|record| Some((record, size_of(record)?)));
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
