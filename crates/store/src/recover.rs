//! Opening a store: the index comes back exactly as far as it was durable, clean and dirty.
//!
//! 1. superblock and volume table;
//! 2. the checkpoint's segment table; the first header of every segment tells which have been
//!    opened since;
//! 3. the checkpoint's entries, but for those in segments that have been opened again: whatever
//!    superseded them is in the log;
//! 4. the records after the checkpoint's base: data, then marks;
//! 5. a new checkpoint, before anything else is written. So a crash at any write of recovery
//!    leaves what there was before (invariant 7).
//!
//! Of the records that were not yet durable when the last header was written, payloads are
//! verified: a block whose payload did not reach the device is dropped whole, and a record whose
//! header did not is dropped with all of its blocks (invariant 4). Of those that were durable
//! none may be missing: numbers are dense.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_core::{Generation, RecordNumber, SegmentId, Slot};
use forebay_device::{Device, IoBuf, Queue};
use forebay_format::checkpoint::SegmentUse;
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{
    CheckSeed, CheckpointReader, IndexEntry, MAX_BLOCKS, PAGE, SegmentState as SegmentLine,
    Superblock, VolumeRecord, volume,
};
use forebay_lane::{Lane, concurrently};

use crate::appender::Cut;
use crate::error::StoreError;
use crate::glance::Notes;
use crate::index::{Address, Index, NewVersion};
use crate::lane::StoreLane;
use crate::latency::DeviceLatency;
use crate::log::Log;
use crate::meta::CLEAN_DISTRUSTED;
use crate::options::StoreOptions;
use crate::ordered::{Horizon, Ordered, recover as order};
use crate::replay::{Replay, newest_generation};
use crate::segments::{Live, SegmentSnapshot, SegmentState, Segments};
use crate::store::{Store, VolumeSpace};
use crate::table::{Check, Entry, Geometry as TableGeometry};

/// Reads of headers that are in flight together.
const READS: usize = 64;

/// What recovery did.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// The last user had stopped in order: nothing was replayed.
    pub clean: bool,
    /// Blocks that are cached.
    pub blocks: u64,
    /// Those of them that are dirty.
    pub dirty: u64,
    /// Records that were replayed.
    pub records: u64,
    /// Records of which something had not reached the device.
    pub torn: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
}

/// What the roots of a device say.
pub struct Roots {
    /// The superblock that counts.
    pub superblock: Superblock,
    /// The volume table.
    pub volumes: Vec<VolumeRecord>,
}

pub(crate) fn refused(device: &Arc<dyn Device>, what: impl std::fmt::Display) -> StoreError {
    StoreError::Refused(format!("{}: {what}", device.name()))
}

/// Reads and checks superblock and volume table; writes nothing.
///
/// # Errors
/// The device is not a cache device that this program can use.
pub async fn read_roots(device: &Arc<dyn Device>, queue: &Queue) -> Result<Roots, StoreError> {
    if device.size() < COPY_B + PAGE as u64 {
        return Err(refused(device, "too small to be a cache device"));
    }
    let copy_a = queue.read(COPY_A, IoBuf::zeroed(PAGE)).await?;
    let copy_b = queue.read(COPY_B, IoBuf::zeroed(PAGE)).await?;
    let superblock =
        Superblock::choose(&copy_a, &copy_b).map_err(|error| refused(device, error))?;
    if superblock.geometry.device_bytes > device.size() {
        return Err(refused(
            device,
            format!(
                "the cache was made on a device of {} bytes, and this one has {}",
                superblock.geometry.device_bytes,
                device.size()
            ),
        ));
    }
    let table = &superblock.volume_table;
    let offset = superblock.geometry.volume_areas[usize::from(table.area)];
    let len = (table.len as usize).next_multiple_of(PAGE);
    let bytes = queue.read(offset, IoBuf::zeroed(len)).await?;
    let volumes = volume::decode(&bytes, table, &superblock.cache, superblock.geometry.block)
        .map_err(|error| refused(device, error))?;
    Ok(Roots { superblock, volumes })
}

/// The generations that a device's segments start with, by their first headers.
async fn first_headers(
    lane: &Rc<Lane>,
    queue: &Queue,
    replay: &Rc<RefCell<Replay>>,
    count: u32,
) -> Vec<Option<Generation>> {
    let found = Rc::new(RefCell::new(vec![None; count as usize]));
    let (queue, inner, replay) = (queue.clone(), found.clone(), replay.clone());
    let work = (0..count).map(move |number| {
        let (queue, found, replay) = (queue.clone(), inner.clone(), replay.clone());
        async move {
            let segment = SegmentId(number);
            let offset = replay.borrow().geometry.segment_offset(segment);
            // An unreadable header counts as none: if it mattered, a record number is missing.
            let Ok(page) = queue.read(offset, IoBuf::for_overwrite(PAGE)).await else { return };
            let first = {
                let mut replay = replay.borrow_mut();
                replay.bytes_read += PAGE as u64;
                replay.header_at(&page, segment, 0).map(|header| header.generation)
            };
            let first = match first {
                None if page.iter().any(|byte| *byte != 0) => {
                    // Torn or damaged: what follows tells whose life it was.
                    newest_generation(&queue, &replay, segment).await
                }
                other => other,
            };
            found.borrow_mut()[number as usize] = first;
        }
    });
    concurrently(lane, READS, work).await;
    found.take()
}

/// How the index of a cache is shaped.
fn table_geometry(
    geometry: &forebay_format::Geometry,
    blocks: u64,
    shards: Option<u32>,
) -> Result<(TableGeometry, u32), String> {
    let cells = Cut::new(geometry).cells_per_segment();
    // Every cell holds one version at most, so this is never too small, not even while recovery
    // replays versions that a later record has taken out again.
    let capacity = cells * u64::from(geometry.segment_count);
    let by_capacity = (capacity >> 14).next_power_of_two().clamp(1, 1024) as u32;
    let shards = shards.unwrap_or(by_capacity);
    let addresses = (blocks * 2).max(capacity * 32).max(1 << 20).next_power_of_two();
    let key_bits = addresses.trailing_zeros();
    let slot_bits = geometry.slot_count().next_power_of_two().trailing_zeros().max(1);
    let table = TableGeometry::new(capacity, shards, key_bits, slot_bits)
        .map_err(|error| error.to_string())?;
    Ok((table, shards))
}

/// The checkpoint's bits of a check, at the high end where the table has them.
fn check_of(entry: &IndexEntry, bits: u32) -> Check {
    Check::from_28(entry.check << (28 - bits.min(28)))
}

impl Store {
    /// Opens a cache device for the lanes of one engine; `lane` does the reading.
    ///
    /// # Errors
    /// The device is not a cache device, or has lost records that had been durable.
    pub async fn open(
        lane: &Rc<Lane>,
        device: Arc<dyn Device>,
        queue: Queue,
        options: StoreOptions,
    ) -> Result<(Rc<StoreLane>, RecoveryReport), StoreError> {
        // Barrier for invariant 7: the roots that are read may still be in the device's write cache,
        // after a process that was killed; what they refer to is kept, what they do not is overwritten.
        queue.sync().await?;
        let Roots { superblock, volumes } = read_roots(&device, &queue).await?;
        if superblock.is_read_only() {
            return Err(refused(&device, "it has features that this program may not write to"));
        }
        let geometry = superblock.geometry.clone();
        let block = geometry.block;
        let mut spaces = Vec::new();
        let mut base = 0;
        for volume in &volumes {
            let blocks =
                (volume.origin_bytes + u64::from(volume.alignment)).div_ceil(block.bytes());
            let grown = options.grown.iter().find(|(id, _)| *id == volume.id);
            let blocks = blocks.max(grown.map_or(0, |(_, blocks)| (*blocks).min(MAX_BLOCKS)));
            let seed = CheckSeed::new(&superblock.cache, volume.id);
            spaces.push(VolumeSpace { id: volume.id, base, blocks, seed });
            base += blocks;
        }
        let (table, shards) =
            table_geometry(&geometry, base.saturating_add(options.room_for_blocks), options.shards)
                .map_err(|error| refused(&device, error))?;
        let mut report = RecoveryReport { clean: superblock.clean_shutdown, ..Default::default() };
        let mut kept_bits = 28;
        let mut reader = None;
        if let Some(reference) = &superblock.checkpoint {
            let offset = geometry.checkpoint_areas[usize::from(reference.area)];
            let page = queue.read(offset, IoBuf::zeroed(PAGE)).await?;
            let opened = CheckpointReader::open(&page, reference, &geometry, superblock.cache)
                .map_err(|error| refused(&device, error))?;
            kept_bits = u32::from(opened.header().check_bits);
            reader = Some((opened, offset));
        }
        let table = table
            .with_check_bits(table.check_bits().min(kept_bits))
            .map_err(|error| refused(&device, error))?;
        let index = Index::new(table, shards);
        let replay =
            Rc::new(RefCell::new(Replay::new(geometry.clone(), superblock.cache, &spaces)));
        let mut lines = vec![SegmentLine::default(); geometry.segment_count as usize];
        let mut checkpoint_base = RecordNumber(0);
        let mut known_generation = Generation(0);
        let mut reopened: Vec<bool> = vec![false; lines.len()];
        let mut firsts: Option<Vec<Option<Generation>>> = None;
        if let Some((mut reader, offset)) = reader {
            checkpoint_base = reader.header().base;
            known_generation = reader.header().next_generation;
            replay.borrow_mut().begin(checkpoint_base, reader.header().highest_sequence);
            let mut next_line = 0;
            let mut masks = std::collections::HashMap::new();
            let mut partial = Vec::new();
            while let Some((at, len)) = reader.place() {
                let bytes = queue.read(offset + at, IoBuf::for_overwrite(len)).await?;
                report.bytes_read += len as u64;
                let items = reader.feed(&bytes).map_err(|error| refused(&device, error))?;
                for line in items.segments() {
                    if let Some(place) = lines.get_mut(next_line) {
                        *place = line;
                    }
                    next_line += 1;
                }
                if firsts.is_none() && next_line >= lines.len() && !report.clean {
                    let found = first_headers(lane, &queue, &replay, geometry.segment_count).await;
                    for ((first, line), reopened) in found.iter().zip(&lines).zip(&mut reopened) {
                        *reopened = first.is_some_and(|first| first > line.generation);
                    }
                    firsts = Some(found);
                }
                for entry in items.entries() {
                    let segment = geometry.place_of(entry.slot).0;
                    let Some(space) = spaces.iter().find(|space| space.id == entry.volume) else {
                        continue;
                    };
                    let valid = entry.block.0 < space.blocks;
                    if !valid || reopened.get(segment.0 as usize).copied().unwrap_or(true) {
                        continue;
                    }
                    let version = Entry {
                        slot: entry.slot,
                        dirty: entry.dirty,
                        partial: entry.partial,
                        rank: entry.rank,
                        check: check_of(&entry, kept_bits),
                    };
                    let address = space.address(entry.block);
                    if entry.partial {
                        partial.push((address, version));
                    } else if !index.restore(address, NewVersion { entry: version, mask: None }) {
                        return Err(refused(&device, "the checkpoint has more blocks than fit"));
                    }
                }
                for mask in items.masks() {
                    if let Some(space) = spaces.iter().find(|space| space.id == mask.volume) {
                        masks.insert(space.address(mask.block), mask.mask);
                    }
                }
            }
            reader.finish().map_err(|error| refused(&device, error))?;
            for (address, entry) in partial {
                let mask = masks.remove(&address);
                if !index.restore(address, NewVersion { entry, mask }) {
                    return Err(refused(&device, "the checkpoint has more blocks than fit"));
                }
            }
        }
        let mut lives = Vec::new();
        let mut in_use = vec![false; lines.len()];
        for (number, line) in lines.iter().enumerate() {
            let first = firsts.as_ref().and_then(|firsts| firsts[number]);
            let segment = SegmentId(number as u32);
            let walk = match first {
                Some(first) if first > line.generation => Some(first),
                Some(first) if first == line.generation && line.usage == SegmentUse::Open => {
                    Some(first)
                }
                // The first header is damaged or older: later ones may be intact.
                _ if line.usage == SegmentUse::Open && !report.clean => Some(line.generation),
                _ => None,
            };
            if let Some(generation) = walk {
                replay.borrow_mut().walk_later(segment, generation);
            }
            let used = walk.is_some() || line.usage != SegmentUse::NeverUsed;
            in_use[number] = used;
            let generation = walk.unwrap_or(line.generation);
            replay.borrow_mut().set_generation(segment, used.then_some(generation));
            lives.push((segment, generation, line.write_position));
        }
        Replay::run(lane, &queue, &replay, READS).await?;
        let mut replay = Rc::try_unwrap(replay)
            .map_err(|_| refused(&device, "recovery is still running"))?
            .into_inner();
        let lost = replay.lost();
        let mut damage = Vec::new();
        if let Some((first, lost)) = lost {
            if !options.accept_damage {
                return Err(StoreError::Damaged { device: device.name().into(), first, lost });
            }
            damage.push(format!("{lost} log records from number {first} on were lost"));
        }
        replay.apply_to(&index).map_err(|error| refused(&device, error))?;
        let distrusted = superblock.compat & CLEAN_DISTRUSTED != 0;
        if lost.is_some() || distrusted {
            // A lost record, or one that the failed device never took, may have superseded any
            // copy: the origin knows better than a clean one.
            let mut clean = Vec::new();
            index.scan(|address, entry| {
                if !entry.dirty {
                    clean.push(address);
                }
            });
            for address in clean {
                index.remove(address, |_| true);
            }
        }
        report.records = replay.records;
        report.torn = replay.torn;
        report.bytes_read += replay.bytes_read;
        let horizons = volumes.iter().filter_map(Horizon::of);
        let highest_sequence =
            horizons.map(|horizon| horizon.sequence).fold(replay.highest_sequence, u64::max);
        index.raise_sequence(highest_sequence);

        let highest = lines.iter().map(|line| line.generation.0).max().unwrap_or(0);
        let highest = highest.max(lives.iter().map(|life| life.1.0).max().unwrap_or(0));
        // Segments may have been opened of which no header reached the device: at most each once.
        let unseen = if report.clean { 0 } else { geometry.segment_count };
        let next_generation = Generation((highest + 1).max(known_generation.0) + unseen);
        if next_generation.0 >= forebay_format::MAX_GENERATION - geometry.segment_count {
            return Err(refused(
                &device,
                "its segments have been opened so often that their numbers are used up: drain it, delete its volumes and format it anew",
            ));
        }
        let (queues, bytes_read) = order::recover(
            lane,
            order::Source {
                queue: &queue,
                geometry: &geometry,
                cache: superblock.cache,
                volumes: &volumes,
                spaces: &spaces,
                index: &index,
                segments: lives
                    .iter()
                    .filter(|life| in_use[life.0.0 as usize])
                    .map(|life| (life.0, life.1))
                    .collect(),
                torn: &replay.torn_slots,
                sequence: highest_sequence,
                reads: READS,
            },
        )
        .await?;
        report.bytes_read += bytes_read;
        let mut held = vec![0u32; geometry.segment_count as usize];
        for queue in queues.values() {
            queue.each(|version| {
                let segment = geometry.place_of(version.slot).0;
                if let Some(held) = held.get_mut(segment.0 as usize) {
                    *held += 1;
                }
            });
        }
        let segments = Segments::new(geometry.segment_count, next_generation);
        lives.sort_by_key(|life| life.1);
        let mut live = vec![Live::default(); geometry.segment_count as usize];
        let count = |entry: &Entry| {
            let segment = geometry.place_of(entry.slot).0;
            if let Some(counts) = live.get_mut(segment.0 as usize) {
                counts.blocks += 1;
                counts.dirty += u32::from(entry.dirty);
                counts.kept += u32::from(entry.rank > 0);
            }
            false
        };
        index.visit(count, |_, _| ());
        segments.restore_all(lives.into_iter().map(|(segment, generation, position)| {
            let held = held.get(segment.0 as usize).is_some_and(|held| *held > 0);
            let state = if live[segment.0 as usize].blocks == 0 && !held {
                SegmentState::Free
            } else {
                SegmentState::Closed
            };
            let position = replay.position(segment).unwrap_or(position);
            (segment, SegmentSnapshot { generation, state, position }, RecordNumber(0))
        }));
        segments.set_live(&live);
        segments.set_held(&held);
        report.blocks = live.iter().map(|counts| u64::from(counts.blocks)).sum();
        report.dirty = live.iter().map(|counts| u64::from(counts.dirty)).sum();

        let next = RecordNumber(replay.highest_number.0.max(checkpoint_base.0) + 1);
        let log = Log::new(Cut::new(&geometry), options.lanes, geometry.segment_count, next);
        let store = Arc::new(Store {
            notes: Notes::new(options.lanes),
            device,
            uuid: superblock.cache,
            geometry,
            options,
            index,
            segments,
            health: Default::default(),
            counters: Default::default(),
            latency: DeviceLatency::default(),
            space: Default::default(),
            space_wanted: Default::default(),
            index_full: Default::default(),
            log,
            ordered: Ordered::new(queues),
            spaces: parking_lot::Mutex::new(spaces),
            meta: parking_lot::Mutex::new(superblock),
            volumes: parking_lot::Mutex::new(volumes),
            meta_gate: Default::default(),
            sync_gate: Default::default(),
            checkpoint_gate: Default::default(),
            appended_at_checkpoint: AtomicU64::new(0),
            damage: parking_lot::Mutex::new(damage),
            distrust: AtomicBool::new(false),
            #[cfg(feature = "planted-bugs")]
            known_checks: Default::default(),
        });
        let this = StoreLane::new(store, lane.clone(), queue);
        if distrusted {
            // Barrier for invariant 12: the bit that says what samples of origins are worth goes with
            // the next checkpoint, so they go before it.
            this.change_volumes(|volumes, _| {
                volumes.iter_mut().for_each(|volume| volume.samples = None);
                Ok(())
            })
            .await?;
        }
        if report.clean {
            // Barrier for invariant 9: from the first write on, the device is not clean any more.
            this.write_superblock(|superblock| superblock.clean_shutdown = false).await?;
        } else {
            this.checkpoint(false).await?;
        }
        Ok((this, report))
    }
}

/// The address of a block of a volume.
pub(crate) fn address_in(
    spaces: &[VolumeSpace],
    volume: forebay_core::VolumeId,
    block: forebay_core::OriginBlock,
) -> Option<(VolumeSpace, Address)> {
    let space = spaces.iter().find(|space| space.id == volume)?;
    (block.0 < space.blocks).then(|| (*space, space.address(block)))
}

/// Where a slot's cell is among the cells of its segment, counted in granules.
pub(crate) fn granule_in_segment(geometry: &forebay_format::Geometry, slot: Slot) -> usize {
    geometry.place_of(slot).1 as usize
}
