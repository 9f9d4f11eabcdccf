//! Verifying a cache device without writing to it.
//!
//! The device is recovered as for use, with its writes discarded, so that exactly the state that a
//! daemon would serve is verified. Then every record of every segment with live blocks is read, and
//! each current block is compared with the index and its content with its checksum.

mod overlay;
mod report;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{OriginBlock, SegmentId, Slot, VolumeId};
use forebay_device::{Device, DeviceError, Queue};
use forebay_format::{
    Body, CheckpointHeader, DataEntry, Geometry, IndexEntry, PAGE, RecordHeader, Superblock,
    SuperblockError, record,
};
use forebay_lane::{Lane, concurrently};

use crate::checkpoint::source::CheckpointSource;
use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::options::StoreOptions;
use crate::recover::RecoveryReport;
use crate::retry;
use crate::roots::{read_roots, read_superblock, refused};
use crate::store::{Store, VolumeSpace};
use crate::table::Entry;

use overlay::Overlay;
pub use report::{BadBlock, CheckReport, MAX_LISTED};

/// Segments that are read concurrently.
const SEGMENTS: usize = 8;

/// Opens a device for the lane that runs the check.
pub type OpenQueue<'a> = &'a dyn Fn(&Arc<dyn Device>) -> Result<Queue, DeviceError>;

/// Options of a check.
pub struct CheckOptions<'a> {
    /// Opens a device on the lane and makes the lane drive the queue.
    pub open: OpenQueue<'a>,
    /// Options for opening the cache. The whole index is loaded in any case.
    pub store: StoreOptions,
    /// Skip reading the content of the blocks.
    pub quick: bool,
    /// Called with the numbers of segments read so far and to be read.
    pub progress: Rc<dyn Fn(u64, u64)>,
}

/// Reads the current checkpoint, and passes each of its entries to `visit`. Returns `None` if there
/// is no checkpoint yet.
///
/// # Errors
/// The checkpoint is damaged or the device fails; the entries visited before are then meaningless.
pub async fn read_checkpoint(
    queue: &Queue,
    superblock: &Superblock,
    mut visit: impl FnMut(&IndexEntry),
) -> Result<Option<CheckpointHeader>, StoreError> {
    let Some(mut source) = CheckpointSource::open(queue, superblock).await? else {
        return Ok(None);
    };
    while let Some(chunk) = source.read().await? {
        source.items(&chunk)?.entries().for_each(|entry| visit(&entry));
    }
    source.finish().map(Some)
}

/// Counts the dirty blocks of a volume as recovery would find them, after an orderly stop or a
/// crash; writes nothing. `open` opens a device on `lane`. Memory comes from the budget in
/// `options`.
///
/// # Errors
/// The device is not a cache device, or fails, or needs more memory than there is.
pub async fn count_dirty(
    lane: &Rc<Lane>,
    device: &Arc<dyn Device>,
    open: OpenQueue<'_>,
    volume: VolumeId,
    options: &StoreOptions,
) -> Result<u64, StoreError> {
    let (store, _) = recover_whole(lane, device, open, options).await?;
    let mut dirty = 0;
    if let Some(space) = store.store().space_of(volume) {
        store.store().index.scan(|address, entry| {
            dirty += u64::from(entry.dirty && space.block(address).is_some());
        });
    }
    Ok(dirty)
}

/// Verifies a cache device. `lane` is the lane on which `options.open` opens queues.
///
/// # Errors
/// The device is not a cache device, or cannot be read, or needs more memory than `options.store`
/// allows. All other problems are in the report.
pub async fn check(
    lane: &Rc<Lane>,
    device: Arc<dyn Device>,
    options: CheckOptions<'_>,
) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport { quick: options.quick, ..CheckReport::default() };
    let queue = (options.open)(&device)?;
    match read_superblock(&device, &queue, &mut Vec::new()).await? {
        Ok(_) => (),
        Err(error @ SuperblockError::NotForebay) => return Err(refused(&device, error)),
        Err(error) => {
            report.problems.push(error.to_string());
            return Ok(report);
        }
    }
    let roots = match read_roots(&device, &queue).await {
        Ok(roots) => roots,
        Err(StoreError::Device(error)) => return Err(error.into()),
        Err(error) => {
            report.problems.push(error.to_string());
            return Ok(report);
        }
    };
    report.clean = roots.superblock.clean_shutdown;
    report.volumes = roots.volumes.clone();
    match read_checkpoint(&queue, &roots.superblock, |_| ()).await {
        Ok(header) => report.checkpoint = header,
        Err(error) => report.problems.push(error.to_string()),
    }
    report.tell_damaged();
    report.superblock = Some(roots.superblock);
    let Some(store) = recover(lane, &device, &options, &mut report).await? else {
        return Ok(report);
    };
    let walk = Rc::new(Walk {
        volumes: roots.volumes.iter().map(|volume| (volume.id, space(&store, volume.id))).collect(),
        store,
        quick: options.quick,
        report: RefCell::new(report),
        incomplete: RefCell::default(),
    });
    walk.clone().segments(lane, options.progress).await;
    walk.clone().unrecorded(lane).await;
    // The tasks have ended, so no other reference is left.
    Ok(walk.report.take())
}

fn space(store: &Rc<StoreLane>, id: forebay_core::VolumeId) -> Option<VolumeSpace> {
    store.store().space_of(id)
}

/// Recovers the device without writing to it, and loads the whole index.
async fn recover_whole(
    lane: &Rc<Lane>,
    device: &Arc<dyn Device>,
    open: OpenQueue<'_>,
    options: &StoreOptions,
) -> Result<(Rc<StoreLane>, RecoveryReport), StoreError> {
    let overlay: Arc<dyn Device> = Arc::new(Overlay(device.clone()));
    let queue = open(&overlay)?;
    let options = StoreOptions { load_later_from: u64::MAX, ..options.clone() };
    Store::open(lane, overlay, queue, options).await
}

/// Recovers the device without writing to it. Returns `None` if that failed; the report then has
/// the reason.
async fn recover(
    lane: &Rc<Lane>,
    device: &Arc<dyn Device>,
    options: &CheckOptions<'_>,
    report: &mut CheckReport,
) -> Result<Option<Rc<StoreLane>>, StoreError> {
    match recover_whole(lane, device, options.open, &options.store).await {
        Ok((store, recovered)) => {
            (report.blocks, report.dirty) = (recovered.blocks, recovered.dirty);
            (report.replayed, report.torn) = (recovered.records, recovered.torn);
            report.notes.extend(recovered.notes);
            if recovered.torn > 0 {
                let torn = recovered.torn;
                report.notes.push(format!(
                    "{torn} records were torn by a crash before they were durable, and are ignored"
                ));
            }
            if let Some(damage) = recovered.damage {
                report.lost_records = damage.count;
                report.problems.push(damage.to_string());
            }
            report.recovered = true;
            Ok(Some(store))
        }
        Err(error @ (StoreError::Device(_) | StoreError::Memory(_))) => Err(error),
        Err(error) => {
            let error = error.to_string();
            if !report.problems.iter().any(|known| error.ends_with(known.as_str())) {
                report.problems.push(error);
            }
            Ok(None)
        }
    }
}

/// Slots of a segment: a bit for each.
struct SlotSet {
    bits: Box<[u64]>,
    count: u64,
}

impl SlotSet {
    fn new(geometry: &Geometry) -> Self {
        let words = geometry.granules_per_segment().div_ceil(u64::BITS.into());
        SlotSet { bits: vec![0; words as usize].into(), count: 0 }
    }

    fn place(geometry: &Geometry, slot: Slot) -> (usize, u64) {
        let (_, position) = geometry.place_of(slot);
        ((position / u64::BITS) as usize, 1 << (position % u64::BITS))
    }

    fn insert(&mut self, geometry: &Geometry, slot: Slot) {
        let (word, bit) = SlotSet::place(geometry, slot);
        self.count += u64::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    fn contains(&self, geometry: &Geometry, slot: Slot) -> bool {
        let (word, bit) = SlotSet::place(geometry, slot);
        self.bits[word] & bit != 0
    }
}

/// The state of the walk through all segments.
struct Walk {
    store: Rc<StoreLane>,
    volumes: HashMap<forebay_core::VolumeId, Option<VolumeSpace>>,
    quick: bool,
    report: RefCell<CheckReport>,
    /// Segments in which not all live blocks were found, with the slots that were found.
    incomplete: RefCell<HashMap<SegmentId, SlotSet>>,
}

impl Walk {
    async fn segments(self: Rc<Self>, lane: &Rc<Lane>, progress: Rc<dyn Fn(u64, u64)>) {
        let segments = &self.store.store().segments;
        let used: Vec<SegmentId> =
            (0..segments.count()).map(SegmentId).filter(|id| segments.live(*id) > 0).collect();
        let total = used.len() as u64;
        self.report.borrow_mut().segments = total;
        let done = Rc::new(std::cell::Cell::new(0));
        let work = used.into_iter().map(move |segment| {
            let (walk, done, progress) = (self.clone(), done.clone(), progress.clone());
            async move {
                walk.segment(segment).await;
                done.set(done.get() + 1);
                progress(done.get(), total);
            }
        });
        concurrently(lane, SEGMENTS, work).await;
    }

    /// Reads the records of a segment. After a page that is not a header, the search continues page
    /// by page, as in recovery.
    async fn segment(&self, segment: SegmentId) {
        let store = self.store.store();
        let geometry = store.geometry();
        let generation = store.segments.generation(segment);
        let start = geometry.segment_offset(segment);
        let page = PAGE as u64;
        let (mut at, mut seen) = (0, SlotSet::new(geometry));
        while at + page <= geometry.segment_bytes {
            let bytes = match retry::read(self.store.queue(), start + at, PAGE).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.report.borrow_mut().add_problem(error.to_string());
                    at += page;
                    continue;
                }
            };
            let header = record::decode(&bytes, geometry, &store.uuid()).ok().filter(|header| {
                let place = u64::from(header.position) * geometry.granule();
                header.segment == segment && header.generation == generation && place == at
            });
            let Some(header) = header else {
                at += page;
                continue;
            };
            at = (at + page + u64::from(header.payload_bytes)).next_multiple_of(page);
            self.record(&header, &mut seen).await;
        }
        if seen.count < u64::from(store.segments.live(segment)) {
            self.incomplete.borrow_mut().insert(segment, seen);
        }
    }

    async fn record(&self, header: &RecordHeader, seen: &mut SlotSet) {
        self.report.borrow_mut().records += u64::from(!header.body.is_opening());
        let Body::Data(entries) = &header.body else { return };
        let store = self.store.store();
        let geometry = store.geometry();
        let live: Vec<(usize, &DataEntry, bool)> = entries
            .iter()
            .enumerate()
            .filter_map(|(number, entry)| {
                let slot = header.cell(geometry, number);
                let dirty = self.counts(entry, slot)?;
                seen.insert(geometry, slot);
                Some((number, entry, dirty))
            })
            .collect();
        if live.is_empty() || self.quick {
            self.report.borrow_mut().verified += live.len() as u64;
            return;
        }
        let block = geometry.block.as_usize();
        let offset = geometry.slot_offset(header.cell(geometry, 0));
        let payload = match retry::read(self.store.queue(), offset, entries.len() * block).await {
            Ok(payload) => payload,
            Err(error) => {
                for (_, entry, dirty) in live {
                    self.bad(entry.volume, entry.block, dirty, &error.to_string());
                }
                return;
            }
        };
        for (number, entry, dirty) in live {
            let cell = payload.get(number * block..(number + 1) * block).unwrap_or_default();
            let check =
                forebay_format::payload_check(&store.uuid(), entry.volume, entry.block, cell);
            let mut report = self.report.borrow_mut();
            report.verified += 1;
            report.bytes += cell.len() as u64;
            drop(report);
            if check != entry.check {
                self.bad(
                    entry.volume,
                    entry.block,
                    dirty,
                    "its content does not match its checksum",
                );
            }
        }
    }

    /// Returns whether the version at `slot` is dirty, or `None` if it is not the current one of
    /// its block.
    fn counts(&self, entry: &DataEntry, slot: Slot) -> Option<bool> {
        if entry.void {
            return None;
        }
        let store = self.store.store();
        let space = self.volumes.get(&entry.volume).copied().flatten()?;
        if !space.contains(entry.block) {
            return None;
        }
        let found = store.peek(&space, entry.block)?.entry;
        if found.slot != slot {
            return None;
        }
        if !store.index.check_matches(&found, entry.check) {
            self.bad(
                entry.volume,
                entry.block,
                found.dirty,
                "the checkpoint and the record disagree about its checksum",
            );
        }
        Some(found.dirty)
    }

    /// Verifies the blocks of the index for which no record was found. They came from the
    /// checkpoint, which suffices for the daemon to serve and write them back, provided their
    /// content matches the index. The content is read for a quick check too, because nothing else
    /// can verify them.
    async fn unrecorded(self: Rc<Self>, lane: &Rc<Lane>) {
        let incomplete = self.incomplete.take();
        if incomplete.is_empty() {
            return;
        }
        let store = self.store.store();
        // Shards are processed one after the other, so that the missing blocks of only one are in
        // memory at a time.
        for shard in 0..store.index.shard_count() {
            let mut missing: Vec<(VolumeSpace, OriginBlock, Entry)> = Vec::new();
            store.index.scan_shard(shard, &mut |address, entry| {
                let seen = incomplete.get(&store.segment_of(entry.slot));
                if seen.is_none_or(|seen| seen.contains(store.geometry(), entry.slot)) {
                    return;
                }
                for space in self.volumes.values().flatten() {
                    if let Some(block) = space.block(address) {
                        missing.push((*space, block, *entry));
                    }
                }
            });
            missing.sort_unstable_by_key(|(_, _, entry)| entry.slot.0);
            let walk = self.clone();
            let work = missing.into_iter().map(move |(space, block, entry)| {
                let walk = walk.clone();
                async move { walk.without_header(&space, block, &entry).await }
            });
            concurrently(lane, SEGMENTS, work).await;
        }
        self.report.borrow_mut().tell_without_header();
    }

    /// Verifies a block whose record header is damaged, by the same check as a read of the daemon.
    async fn without_header(&self, space: &VolumeSpace, block: OriginBlock, entry: &Entry) {
        let store = self.store.store();
        let offset = store.geometry().slot_offset(entry.slot);
        let len = store.block_size().as_usize();
        let what = match retry::read(self.store.queue(), offset, len).await {
            Err(error) => error.to_string(),
            Ok(payload) => {
                let check = store.check(space, block, &payload);
                if store.index.check_matches(entry, check) {
                    let mut report = self.report.borrow_mut();
                    report.verified += 1;
                    report.bytes += payload.len() as u64;
                    report.without_header += 1;
                    report.without_header_dirty += u64::from(entry.dirty);
                    return;
                }
                "the header of its record is damaged, and so is its content".to_owned()
            }
        };
        self.bad(space.id, block, entry.dirty, &what);
    }

    fn bad(&self, id: forebay_core::VolumeId, block: OriginBlock, dirty: bool, what: &str) {
        let size = self.store.store().block_size();
        let mut report = self.report.borrow_mut();
        let Some(volume) = report.volumes.iter().find(|volume| volume.id == id) else { return };
        let (alignment, end) = (u64::from(volume.alignment), volume.origin_bytes);
        let first = size.offset_of(block);
        let offset = first.saturating_sub(alignment);
        let len = (first + size.bytes()).saturating_sub(alignment).min(end).saturating_sub(offset);
        let volume = volume.name.clone();
        report.add_bad(BadBlock { volume, block, offset, len, dirty, what: what.to_owned() });
    }
}

#[cfg(test)]
mod tests;
