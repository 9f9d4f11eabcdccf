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
//! none may be missing: numbers are dense. If one is, volumes are damaged, see
//! [`damage`](crate::damage).
//!
//! Recovery does not see every record that reached the device: one may lie behind a page that did not.
//! Such a record must not count after the next crash either. So the checkpoint bounds the
//! generations of what can come after it, and no number, sequence or generation is given out twice.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_core::{BlockSize, Generation, RecordNumber, SegmentId, Slot, VolumeId};
use forebay_device::{Device, Queue};
use forebay_format::checkpoint::SegmentUse;
use forebay_format::{CheckSeed, Geometry, MAX_BLOCKS, Superblock, VolumeRecord};
use forebay_lane::{Lane, MemoryHold, MemoryUse};

use crate::appender::Cut;
use crate::checkpoint::source::CheckpointSource;
use crate::damage::Damage;
use crate::error::StoreError;
use crate::glance::Notes;
use crate::index::{Address, Index};
use crate::lane::StoreLane;
use crate::latency::DeviceLatency;
use crate::log::Log;
use crate::meta::CLEAN_DISTRUSTED;
use crate::options::StoreOptions;
use crate::ordered::{Horizon, Ordered, recover as order};
use crate::planted::{self, PlantedBug};
use crate::replay::Replay;
use crate::roots::{Roots, read_roots, refused};
use crate::segments::{Live, SegmentSnapshot, SegmentState, Segments};
use crate::store::{Store, VolumeSpace};
use crate::table::{Entry, Geometry as TableGeometry};

mod firsts;
mod image;

/// Reads of headers that are in flight together.
const READS: usize = 64;

/// Numbers of records, and sequences, that are left out after a crash: those that had been given out
/// and that recovery did not see are fewer, because their records were in memory.
const LEFT_OUT: u64 = 1 << 28;

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
    /// Log records that are lost, as far as this recovery has found out.
    pub damage: Option<Damage>,
    /// What was damaged and is there twice, so that nothing is lost.
    pub notes: Vec<String>,
}

/// How the index of a cache is shaped.
fn table_geometry(
    geometry: &Geometry,
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

/// What an open cache takes of memory, beside what comes and goes: for what, how many bytes.
fn memory_of(
    geometry: &Geometry,
    table: &TableGeometry,
    lanes: usize,
) -> [(MemoryUse, u64, &'static str); 2] {
    let segments = geometry.segment_count;
    let buffers = Log::most_buffers(lanes, segments) as u64 * geometry.segment_bytes;
    let index = table.bytes() + Segments::bytes_for(segments);
    [(MemoryUse::Index, index, "the index"), (MemoryUse::LogBuffers, buffers, "the log")]
}

fn hold_memory(
    device: &Arc<dyn Device>,
    options: &StoreOptions,
    geometry: &Geometry,
    table: &TableGeometry,
) -> Result<Vec<MemoryHold>, StoreError> {
    let parts = memory_of(geometry, table, options.lanes).into_iter();
    parts
        .map(|(by, bytes, what)| options.memory.hold(by, bytes, what))
        .collect::<Result<_, _>>()
        .map_err(|error| refused(device, error))
}

/// What was refused for want of memory names the device.
fn named(device: &Arc<dyn Device>, error: StoreError) -> StoreError {
    match error {
        StoreError::Memory(over) => refused(device, over),
        error => error,
    }
}

impl Store {
    /// Whether there is memory for a cache with blocks of this size, before it is made. Nothing is held
    /// or written.
    ///
    /// # Errors
    /// It needs more memory than there is, or the device is too small.
    pub fn fits(
        device: &Arc<dyn Device>,
        block: BlockSize,
        options: &StoreOptions,
    ) -> Result<(), StoreError> {
        let geometry = Geometry::plan(device.size(), block, device.logical_block(), None)
            .map_err(|cause| StoreError::Format { device: device.name().into(), cause })?;
        let (table, _) = table_geometry(&geometry, options.room_for_blocks, options.shards)
            .map_err(|error| refused(device, error))?;
        hold_memory(device, options, &geometry, &table).map(drop)
    }

    /// Opens a cache device for the lanes of one engine; `lane` does the reading. If records are lost, the
    /// volumes that they may have been about are damaged from now on: see [`Store::damage_of`].
    ///
    /// # Errors
    /// The device is not a cache device, or fails.
    pub async fn open(
        lane: &Rc<Lane>,
        device: Arc<dyn Device>,
        queue: Queue,
        options: StoreOptions,
    ) -> Result<(Rc<StoreLane>, RecoveryReport), StoreError> {
        // Barrier for invariant 7: the roots that are read may still be in the device's write cache,
        // after a process that was killed; what they refer to is kept, what they do not is overwritten.
        queue.sync().await?;
        let Roots { superblock, volumes, notes, mend } = read_roots(&device, &queue).await?;
        if superblock.is_read_only() {
            return Err(refused(&device, "it has features that this program may not write to"));
        }
        let geometry = superblock.geometry.clone();
        let (spaces, blocks) = spaces_of(&superblock, &volumes, &options);
        let (table, shards) = table_geometry(
            &geometry,
            blocks.saturating_add(options.room_for_blocks),
            options.shards,
        )
        .map_err(|error| refused(&device, error))?;
        let mut report =
            RecoveryReport { clean: superblock.clean_shutdown, notes, ..Default::default() };
        let source = match CheckpointSource::open(&queue, &superblock).await {
            Ok(Some(source)) => Ok(source),
            Ok(None) => Err(refused(&device, "there is no checkpoint")),
            Err(error) => Err(error),
        };
        let kept_bits = source.as_ref().map_or(28, |source| u32::from(source.header().check_bits));
        let table = table
            .with_check_bits(table.check_bits().min(kept_bits))
            .map_err(|error| refused(&device, error))?;
        let new_replay = || {
            let held = MemoryHold::none(&options.memory, MemoryUse::Background);
            let replay = Replay::new(geometry.clone(), superblock.cache, &spaces, held);
            Rc::new(RefCell::new(replay))
        };
        let memory = hold_memory(&device, &options, &geometry, &table)?;
        let new_index = || Index::within(table, shards, geometry.block, &options.memory);
        let mut index = new_index();
        let mut replay = new_replay();
        let from = image::Source { lane, queue: &queue, geometry: &geometry, spaces: &spaces };
        let loaded = match source {
            Ok(source) => image::load(&from, source, report.clean, &index, &replay).await,
            Err(error) => Err(error),
        };
        let image = match loaded {
            Ok(image) => image,
            Err(StoreError::Memory(over)) => return Err(refused(&device, over)),
            Err(error) => {
                (index, replay) = (new_index(), new_replay());
                report.clean = false;
                image::rebuild(&from, &replay, error).await?
            }
        };
        report.bytes_read += image.bytes_read;
        if image.mended {
            report.notes.push("the checkpoint was damaged in one place, and mended".into());
        }
        for note in &report.notes {
            tracing::warn!(device = device.name(), "{note}");
        }
        let lines = image.lines;
        let mut lives = Vec::new();
        let mut in_use = vec![false; lines.len()];
        for (number, line) in lines.iter().enumerate() {
            let segment = SegmentId(number as u32);
            let walk = match image.reopened.get(number).copied().flatten() {
                // The first header may be damaged, and later ones intact.
                None if line.usage == SegmentUse::Open && !report.clean => Some(line.generation),
                reopened => reopened,
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
        Replay::run(lane, &queue, &replay, READS).await.map_err(|error| named(&device, error))?;
        let mut replay = Rc::try_unwrap(replay)
            .map_err(|_| refused(&device, "recovery is still running"))?
            .into_inner();
        report.damage = replay.lost();
        replay.apply_to(&index).map_err(|error| named(&device, error))?;
        let distrusted = superblock.compat & CLEAN_DISTRUSTED != 0;
        // A lost record, or one that the failed device never took, may have superseded any copy: the
        // origin knows better than a clean one.
        let doubtful = |volume: &VolumeRecord| {
            distrusted || report.damage.is_some_and(|damage| !damage.precedes(volume))
        };
        let doubtful: Vec<VolumeId> =
            volumes.iter().filter(|volume| doubtful(volume)).map(|volume| volume.id).collect();
        if !doubtful.is_empty() {
            drop_clean(&index, &spaces, &doubtful);
        }
        let concerned = match report.damage {
            Some(damage) => {
                let dirty = |address| spaces.iter().find(|space| space.block(address).is_some());
                let mut with_dirty = image.dirty;
                index.scan(|address, entry| {
                    with_dirty
                        .extend(entry.dirty.then(|| dirty(address)).flatten().map(|it| it.id));
                });
                let concerned = volumes
                    .iter()
                    .filter(|it| damage.concerns(it, image.base, with_dirty.contains(&it.id)));
                concerned.map(|volume| volume.id).collect()
            }
            None => Vec::new(),
        };
        report.records = replay.records;
        report.torn = replay.torn;
        report.bytes_read += replay.bytes_read;
        let horizons = volumes.iter().filter_map(Horizon::of);
        let highest_sequence =
            horizons.map(|horizon| horizon.sequence).fold(replay.highest_sequence, u64::max);
        let left_out = if report.clean { 0 } else { LEFT_OUT };
        if !planted::has(PlantedBug::SequenceRestarts) {
            index.raise_sequence(highest_sequence.saturating_add(left_out));
        }

        let highest = lines.iter().map(|line| line.generation.0).max().unwrap_or(0);
        let highest = highest.max(lives.iter().map(|life| life.1.0).max().unwrap_or(0));
        // Segments may have been opened of which no header reached the device: at most each once.
        let unseen = if report.clean { 0 } else { geometry.segment_count };
        let next_generation =
            Generation((highest + 1).max(image.next_generation.0) + u64::from(unseen));
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
        let ordered = Ordered::new(queues, &options.memory);
        let ordered = ordered.map_err(|over| refused(&device, over))?;
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

        let next = RecordNumber(replay.highest_number.0.max(image.base.0) + 1 + left_out);
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
            ordered,
            spaces: parking_lot::Mutex::new(spaces),
            meta: parking_lot::Mutex::new(superblock),
            volumes: parking_lot::Mutex::new(volumes),
            meta_gate: Default::default(),
            sync_gate: Default::default(),
            checkpoint_gate: Default::default(),
            appended_at_checkpoint: AtomicU64::new(0),
            resting: Default::default(),
            _memory: memory,
            distrust: AtomicBool::new(false),
            #[cfg(feature = "planted-bugs")]
            known_checks: Default::default(),
        });
        let this = StoreLane::new(store, lane.clone(), queue);
        this.mend_roots(&mend).await?;
        if distrusted {
            // Barrier for invariant 12: the bit that says what samples of origins are worth goes with
            // the next checkpoint, so they go before it.
            this.change_volumes(|volumes, _| {
                volumes.iter_mut().for_each(|volume| volume.samples = None);
                Ok(())
            })
            .await?;
        }
        if let Some(damage) = report.damage {
            tracing::error!(volumes = ?concerned, "{damage}");
            // Barrier for invariant 9: the checkpoint takes the gap out of the log.
            this.note_damage(damage, &concerned).await?;
        }
        if report.clean && !image.mended {
            // Barrier for invariant 9: from the first write on, neither copy says that the device is clean.
            let stays = planted::has(PlantedBug::CleanFlagStays);
            this.write_superblock(|superblock| superblock.clean_shutdown = stays).await?;
        } else {
            this.checkpoint(false).await?;
        }
        Ok((this, report))
    }
}

/// The volumes' parts of the index, and how many blocks they are together.
fn spaces_of(
    superblock: &Superblock,
    volumes: &[VolumeRecord],
    options: &StoreOptions,
) -> (Vec<VolumeSpace>, u64) {
    let mut spaces = Vec::new();
    let mut base = 0;
    for volume in volumes {
        let blocks = (volume.origin_bytes + u64::from(volume.alignment))
            .div_ceil(superblock.geometry.block.bytes());
        let grown = options.grown.iter().find(|(id, _)| *id == volume.id);
        let blocks = blocks.max(grown.map_or(0, |(_, blocks)| (*blocks).min(MAX_BLOCKS)));
        let seed = CheckSeed::new(&superblock.cache, volume.id);
        spaces.push(VolumeSpace { id: volume.id, base, blocks, seed });
        base += blocks;
    }
    (spaces, base)
}

/// Takes the clean blocks of these volumes out of the index.
fn drop_clean(index: &Index, spaces: &[VolumeSpace], volumes: &[VolumeId]) {
    let mut clean = Vec::new();
    for shard in 0..index.shard_count() {
        index.scan_shard(shard, &mut |address, entry: &Entry| {
            let of = |space: &&VolumeSpace| space.block(address).is_some();
            let space = spaces.iter().find(of);
            if !entry.dirty && space.is_none_or(|space| volumes.contains(&space.id)) {
                clean.push(address);
            }
        });
        for address in clean.drain(..) {
            index.remove(address, |_| true);
        }
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

#[cfg(all(test, not(feature = "loom")))]
mod tests;
