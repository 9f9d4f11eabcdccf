//! Inspects a cache device before anything is written to it, so that devices that do not belong
//! together are left unchanged.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_core::VolumeId;
use forebay_device::{Device, DeviceSpec, Queue};
use forebay_engine::{LaneContext, SampledOrigin, recognise};
use forebay_format::superblock::COPY_B;
use forebay_format::{PAGE, SuperblockError, VolumeRecord};
use forebay_lane::MemoryBudget;
use forebay_store::CLEAN_DISTRUSTED;
use forebay_store::check::{count_dirty, read_checkpoint};
use forebay_store::{Roots, read_roots, read_superblock};
use forebay_store::{StoreError, StoreOptions};

use super::attended::within;
use super::devices::Devices;
use super::faults;

/// Time limit for an origin of another volume to report its size.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// Content of a cache device.
pub(super) enum CacheContent {
    /// No Forebay cache.
    Nothing,
    /// A cache.
    Cache(Box<Roots>),
    /// A Forebay cache that cannot be used, for this reason.
    Unusable(String),
}

/// Inspects a device.
///
/// # Errors
/// The device cannot be read.
pub(super) async fn content(
    context: &LaneContext,
    device: &Arc<dyn Device>,
) -> Result<CacheContent, ApiError> {
    if device.size() < COPY_B + PAGE as u64 {
        return Ok(CacheContent::Nothing);
    }
    let queue = context.open(device).map_err(faults::engine)?;
    let found = read_superblock(device, &queue, &mut Vec::new()).await;
    match found.map_err(faults::store)? {
        Err(SuperblockError::NotForebay) => return Ok(CacheContent::Nothing),
        Err(error) => return Ok(CacheContent::Unusable(error.to_string())),
        Ok(_) => {}
    }
    Ok(match read_roots(device, &queue).await {
        Ok(roots) => CacheContent::Cache(Box::new(roots)),
        Err(error) => CacheContent::Unusable(error.to_string()),
    })
}

/// Returns the record of the volume of this name, if there is one.
pub(super) fn record_of<'a>(
    records: &'a [VolumeRecord],
    name: &VolumeName,
) -> Option<&'a VolumeRecord> {
    records.iter().find(|record| record.name == name.as_str())
}

/// Takes samples of an origin, up to the size that its volume knows.
///
/// # Errors
/// The origin cannot be opened.
pub(super) async fn look(
    context: &LaneContext,
    origin: &Arc<dyn Device>,
    size: u64,
) -> Result<SampledOrigin, ApiError> {
    let queue = context.open(origin).map_err(faults::engine)?;
    Ok(SampledOrigin::take(origin, &queue, size.min(origin.size())).await)
}

/// Checks that `origin`, with this `look`, is the one whose blocks the cache holds for the volume
/// in `record`. `noted`: the cache device has missed changes, so that the origin may differ because
/// of our own writes. Writes nothing.
///
/// # Errors
/// [`ErrorKind::Refused`] if the origin is too small or another device; [`ErrorKind::DataAtRisk`]
/// if it is another device or was changed while the cache had newer blocks.
pub(super) async fn check_pair(
    (context, memory): (&LaneContext, &Arc<MemoryBudget>),
    device: &Arc<dyn Device>,
    roots: &Roots,
    record: &VolumeRecord,
    origin: &Arc<dyn Device>,
    look: Option<&SampledOrigin>,
    noted: bool,
) -> Result<(), ApiError> {
    let name = &record.name;
    if origin.size() < record.origin_bytes {
        let message = format!(
            "the origin {} has {} bytes, but '{name}' was created for {}: it is another device, or was truncated",
            origin.name(),
            origin.size(),
            record.origin_bytes
        );
        return Err(ApiError::new(ErrorKind::Refused, message));
    }
    // With force, refuse only what force cannot override.
    let Some(look) = look else { return Ok(()) };
    let trusted = roots.superblock.compat & CLEAN_DISTRUSTED == 0 && !noted;
    let verdict = recognise(record, look, &**origin, trusted).map_err(faults::engine)?;
    if verdict.is_same() {
        return Ok(());
    }
    let dirty =
        dirty_blocks((context, memory), device, roots, record.id).await.map_err(faults::store)?;
    verdict.allow(name, origin.name(), dirty).map_err(faults::engine)
}

/// Returns the volumes of a cache whose origins are larger than the cache knows, with their number
/// of blocks: the volume `name`, whose origin has `size` bytes, and others whose origins answer in
/// time.
pub(super) fn grown(
    devices: &Devices,
    roots: &Roots,
    name: &VolumeName,
    size: u64,
) -> Vec<(VolumeId, u64)> {
    let block = roots.superblock.geometry.block.bytes();
    let size_of = |record: &VolumeRecord| {
        let own = record.name == name.as_str();
        let spec: Option<DeviceSpec> = record.origin.parse().ok();
        // A RAM device would be created anew.
        let spec = spec.filter(|spec| !own && !spec.is_volatile());
        let look = spec.map(|spec| {
            let devices = devices.clone();
            within(LOOK_WITHIN, move || devices.look(&spec.made()).ok().map(|device| device.size()))
        });
        move || if own { Some(size) } else { look?()? }
    };
    // All origins are queried in parallel, so that one that does not answer delays no other.
    let asked: Vec<_> = roots.volumes.iter().map(|record| (record, size_of(record))).collect();
    let sizes = asked.into_iter().filter_map(|(record, size)| Some((record, size()?)));
    let larger = sizes.filter(|(record, size)| *size > record.origin_bytes);
    let blocks = |record: &VolumeRecord, size: u64| {
        size.saturating_add(u64::from(record.alignment)).div_ceil(block)
    };
    larger.map(|(record, size)| (record.id, blocks(record, size))).collect()
}

/// Counts the dirty blocks of a volume on a cache device that is not open.
async fn dirty_blocks(
    (context, memory): (&LaneContext, &Arc<MemoryBudget>),
    device: &Arc<dyn Device>,
    roots: &Roots,
    volume: VolumeId,
) -> Result<u64, StoreError> {
    if !roots.superblock.clean_shutdown {
        // The dirty state is in the log: recover it in memory, without writing.
        let open = |device: &Arc<dyn Device>| {
            let queue = Queue::new(device.open_queue(&context.queues)?);
            (context.register)(&queue);
            Ok(queue)
        };
        let options = StoreOptions { memory: memory.clone(), ..StoreOptions::default() };
        return count_dirty(&context.lane, device, &open, volume, &options).await;
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
