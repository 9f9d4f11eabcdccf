//! The phases of opening a cache that write nothing: roots, checkpoint and log are read.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Generation, RecordNumber, SegmentId, VolumeId};
use forebay_device::{Device, Queue};
use forebay_format::checkpoint::SegmentUse;
use forebay_format::{AcceptedLog, CheckSeed, MAX_BLOCKS, Superblock, VolumeRecord};
use forebay_lane::{Lane, MemoryHold, turns, yield_now};
use parking_lot::Mutex;

use super::image::{self, CheckpointImage};
use super::size::{hold_memory, named, shards_of, table_geometry};
use super::{READS, RecoveryReport};
use crate::changes::Changes;
use crate::checkpoint::arrangement;
use crate::checkpoint::source::CheckpointSource;
use crate::chunks::Chunks;
use crate::error::StoreError;
use crate::index::Index;
use crate::loading::Entries;
use crate::meta::{CLEAN_DISTRUSTED, LOAD_AT_ONCE};
use crate::options::StoreOptions;
use crate::ordered::{Horizon, queue::GroupQueue as OrderQueue};
use crate::ordering::recover as order;
use crate::planted::{self, PlantedBug};
use crate::replay::{FirstNumbers, Replay, ShardSubset};
use crate::roots::{Roots, read_roots, refused};
use crate::spaces::VolumeSpace;
use crate::table::{Entry, TableGeometry};
use crate::team::Team;

/// Record numbers and sequences that are skipped after a crash. Those of records that did not reach
/// the device must not be assigned again. There are fewer such records than this, because they were
/// in memory.
const LEFT_OUT: u64 = 1 << 28;

/// Number of segments that crashes may have left almost empty, in addition to the number that makes
/// a checkpoint due.
const NOT_FULL: u64 = 32;

/// A cache that is being opened.
pub(super) struct Opening<'a> {
    pub(super) lane: &'a Rc<Lane>,
    pub(super) device: Arc<dyn Device>,
    pub(super) queue: Queue,
    team: Team,
    pub(super) options: StoreOptions,
    pub(super) superblock: Superblock,
    pub(super) volumes: Vec<VolumeRecord>,
    pub(super) spaces: Vec<VolumeSpace>,
    /// Copies of the roots that must be rewritten, with their offsets.
    pub(super) mend: Vec<(u64, Vec<u8>)>,
    /// Checksum of the volumes' address ranges in the checkpoint.
    pub(super) spaces_at_checkpoint: Option<u64>,
    table: TableGeometry,
    shards: u32,
    /// The memory of the open cache.
    pub(super) memory: Vec<MemoryHold>,
    pub(super) report: RecoveryReport,
}

/// The checkpoint, or the reason why there is none.
pub(super) type Checkpoint = Result<CheckpointSource, StoreError>;

/// The index as of the checkpoint, before the log is replayed.
pub(super) struct Loaded {
    index: Index,
    replay: Replay,
    image: CheckpointImage,
}

/// A segment as found by recovery.
pub(super) struct FoundSegment {
    pub(super) segment: SegmentId,
    pub(super) generation: Generation,
    /// Granules written according to the checkpoint.
    pub(super) position: u32,
    /// Whether there may be records after the checkpoint.
    pub(super) walked: bool,
    /// Whether the cache has been opened before.
    pub(super) in_use: bool,
}

/// The index as of the end of the log.
pub(super) struct Replayed {
    pub(super) index: Index,
    pub(super) replay: Replay,
    pub(super) image: CheckpointImage,
    pub(super) segments: Vec<FoundSegment>,
    pub(super) next: FirstNumbers,
    /// The accepted part of the log to record in the superblock, if no checkpoint is written before
    /// the cache is used.
    pub(super) accepted: Option<AcceptedLog>,
}

impl<'a> Opening<'a> {
    /// Phase 1: reads the roots, and holds the memory that the open cache needs.
    pub(super) async fn begin(
        lane: &'a Rc<Lane>,
        device: Arc<dyn Device>,
        queue: Queue,
        mut options: StoreOptions,
    ) -> Result<(Self, Checkpoint), StoreError> {
        let team = Team::new(lane, &queue, &device, std::mem::take(&mut options.helpers));
        // Barrier for invariant 7: after a process was killed, the roots just read may still be in
        // the device's write cache; the areas that they do not refer to will be overwritten.
        queue.sync().await?;
        let Roots { superblock, volumes, notes, mend } = read_roots(&device, &queue).await?;
        if superblock.is_read_only() {
            return Err(refused(
                &device,
                "it uses features that a program must know to write to it; use a newer program",
            ));
        }
        let geometry = &superblock.geometry;
        let (spaces, blocks) = spaces_of(&superblock, &volumes, &options);
        let blocks = blocks.saturating_add(options.room_for_blocks);
        let checkpoint = match CheckpointSource::open(&queue, &superblock).await {
            Ok(None) => Err(refused(&device, "there is no checkpoint")),
            Ok(Some(source)) => Ok(source),
            Err(error) => Err(error),
        };
        let order = checkpoint.as_ref().ok().and_then(|it| it.header().arrangement);
        let shards = options.shards.or(order.as_ref().and_then(shards_of));
        let key_bits = order.as_ref().map(|order| order.key_bits);
        let (table, shards) = table_geometry(geometry, blocks, shards, key_bits)
            .map_err(|error| refused(&device, error))?;
        let kept_bits = checkpoint.as_ref().map_or(28, |it| u32::from(it.header().check_bits));
        let table = table
            .with_check_bits(table.check_bits().min(kept_bits))
            .map_err(|error| refused(&device, error))?;
        let memory = hold_memory(&device, &options, geometry, &table)?;
        let clean = superblock.clean_shutdown;
        let report = RecoveryReport { clean, notes, ..Default::default() };
        let opening = Opening {
            lane,
            device,
            queue,
            team,
            options,
            superblock,
            volumes,
            spaces,
            mend,
            spaces_at_checkpoint: order.map(|order| order.spaces),
            table,
            shards,
            memory,
            report,
        };
        Ok((opening, checkpoint))
    }

    /// Phases 2 to 4: restores the index as of the end of the log, or prepares loading it later.
    pub(super) async fn read_log(
        &mut self,
        checkpoint: Checkpoint,
    ) -> Result<Replayed, StoreError> {
        if let Ok(source) = &checkpoint
            && self.may_load_later(source)
        {
            match self.replay_first(source.chunks().clone()).await {
                Ok(Ok(replayed)) => return Ok(replayed),
                Ok(Err(why)) => {
                    let device = self.device.name();
                    tracing::info!(device, "the index is loaded before anything is served: {why}");
                }
                // Read the checkpoint as a whole, and repair it.
                Err(error) => {
                    tracing::warn!(%error, "the index is loaded before anything is served")
                }
            }
        }
        let loaded = self.load(checkpoint).await?;
        self.replay(loaded).await
    }

    /// Reads the log, and leaves the checkpoint's entries to be loaded later if that is possible.
    async fn replay_first(
        &mut self,
        chunks: Chunks,
    ) -> Result<Result<Replayed, &'static str>, StoreError> {
        let (index, mut replay) = self.empty().await;
        let clean = self.report.clean;
        let mut image =
            image::load_later(&self.source(), chunks, clean, &index, &mut replay).await?;
        let mut segments = self.choose_walks(&image, &mut replay).await;
        // Another recovery must be able to hold everything that is written meanwhile.
        let geometry = &self.superblock.geometry;
        let most = 2 * self.options.checkpoint_due(geometry) / geometry.segment_bytes;
        if segments.iter().filter(|it| it.walked).count() as u64 > most + NOT_FULL {
            return Ok(Err("the log is too long"));
        }
        let mut replay = self.walk(replay).await?;
        yield_now().await;
        let next = self.next(&replay, &segments, &image).await;
        let accepted = replay.accepted(&next);
        if replay.lost().is_some() || !replay.has_read_all() {
            return Ok(Err("the log is damaged"));
        }
        // Another recovery must be able to make the same decision.
        if !accepted.fits() {
            return Ok(Err("the crash has torn more than a superblock can note"));
        }
        let mut done = 0;
        for segment in &mut segments {
            segment.in_use &= segment.walked || !replay.is_free(segment.segment);
            turns::rest(&mut done).await;
        }
        let mut changes = replay.changes();
        if changes.partial_count() as u64 > image::MOST_MASKS {
            return Ok(Err("the log has too many blocks that are valid in part"));
        }
        if !changes.keep() {
            return Ok(Err("there is too little memory to do both at a time"));
        }
        let mut loaded = Ok(());
        changes.partial(|address, mask| {
            if loaded.is_ok() {
                loaded = index.load_mask(address, mask.clone());
            }
        });
        loaded.map_err(|unfit| unfit.of("the log"))?;
        yield_now().await;
        if let Some(later) = &mut image.later {
            let of = |number: usize| meaning(&segments[number], image.reopened[number].is_some());
            later.segments = turns::filled(segments.len(), of).await;
            later.changes = Mutex::new((!clean).then(|| Arc::new(changes)));
        }
        yield_now().await;
        self.report_log(&replay, &image);
        let accepted = (!clean).then_some(accepted);
        Ok(Ok(Replayed { index, replay, image, segments, next, accepted }))
    }

    /// The cache, for reading the checkpoint.
    fn source(&self) -> image::RecoveryInput<'_> {
        image::RecoveryInput {
            team: &self.team,
            geometry: &self.superblock.geometry,
            spaces: &self.spaces,
            accepted: self.superblock.accepted.as_ref(),
        }
    }

    /// Phases 2 and 3: loads the checkpoint into a new index. If the checkpoint cannot be used, the
    /// index is rebuilt from the log.
    async fn load(&mut self, checkpoint: Checkpoint) -> Result<Loaded, StoreError> {
        let (mut index, mut replay) = self.empty().await;
        let from = self.source();
        let loaded = match checkpoint {
            Ok(source) => image::load(&from, source, self.report.clean, &index, &mut replay).await,
            Err(error) => Err(error),
        };
        let image = match loaded {
            Ok(image) => image,
            Err(error @ StoreError::Memory(_)) => return Err(named(&self.device, error)),
            Err(error) => {
                (index, replay) = self.empty().await;
                let image = image::rebuild(&from, &mut replay, error).await?;
                self.report.clean = false;
                image
            }
        };
        if image.mended {
            self.report.notes.push(
                "the checkpoint was damaged, and was repaired or rebuilt from the log".into(),
            );
        }
        for note in &self.report.notes {
            tracing::warn!(device = self.device.name(), "{note}");
        }
        Ok(Loaded { index, replay, image })
    }

    /// Returns whether the entries of the checkpoint may be loaded while requests are served. They
    /// may not if this opening depends on all of them, as the order of writes of a volume does.
    fn may_load_later(&self, source: &CheckpointSource) -> bool {
        let order = arrangement(&self.table, self.shards, &self.spaces);
        self.report.notes.is_empty()
            && !source.mended
            && !self.is_distrusted()
            && self.superblock.compat & LOAD_AT_ONCE == 0
            && self.volumes.iter().all(|volume| Horizon::of(volume).is_none())
            && image::can_wait(source, &order, self.options.load_later_from)
    }

    /// Returns an empty index and the replay for it.
    async fn empty(&self) -> (Index, Replay) {
        let (geometry, memory) = (&self.superblock.geometry, &self.options.memory);
        let index = Index::in_turns(self.table, self.shards, geometry.block, memory).await;
        let table = (*index.geometry(), index.shard_count());
        let (cache, spaces) = (self.superblock.cache, &self.spaces);
        (index, Replay::new(geometry.clone(), cache, spaces, table, memory))
    }

    /// Phase 4: applies the records after the checkpoint's base.
    async fn replay(&mut self, loaded: Loaded) -> Result<Replayed, StoreError> {
        let Loaded { index, mut replay, image } = loaded;
        let segments = self.choose_walks(&image, &mut replay).await;
        let parts = if image.rebuilt { self.parts_of_log() } else { 1 };
        let mut others: Vec<Replay> = (1..parts).map(|_| replay.again()).collect();
        for (number, part) in std::iter::once(&mut replay).chain(&mut others).enumerate() {
            part.limit_to(ShardSubset { number: number as u32, of: parts });
        }
        let mut replay = self.walk(replay).await?;
        let next = self.next(&replay, &segments, &image).await;
        self.report.damage = replay.lost();
        self.apply(&replay.changes(), &index).await?;
        self.report_log(&replay, &image);
        for other in others {
            tracing::info!(
                device = self.device.name(),
                "the log is read for a further part of the index"
            );
            let mut other = self.walk(other).await?;
            self.apply(&other.changes(), &index).await?;
            self.report.bytes_read += other.bytes_read;
        }
        Ok(Replayed { index, replay, image, segments, next, accepted: None })
    }

    /// Returns the number of passes in which the index is rebuilt from the log: each pass reads the
    /// whole log, and holds all versions of one part of the index in memory.
    fn parts_of_log(&self) -> u32 {
        let geometry = &self.superblock.geometry;
        let blocks = u64::from(geometry.segment_count) * geometry.blocks_per_segment();
        let parts = blocks.div_ceil(self.options.rebuilt_at_once.max(1));
        parts.clamp(1, self.shards.into()) as u32
    }

    /// Makes the changes of the log in the index.
    async fn apply(&self, changes: &Changes, index: &Index) -> Result<(), StoreError> {
        for shard in 0..index.shard_count() {
            let applied = changes.apply_to(index, shard);
            applied.map_err(|error| named(&self.device, error))?;
            yield_now().await;
        }
        Ok(())
    }

    /// Walks through the segments that are registered with a replay.
    async fn walk(&self, replay: Replay) -> Result<Replay, StoreError> {
        let walked = replay.run(&self.team, READS).await;
        walked.map_err(|error| named(&self.device, error))
    }

    fn report_log(&mut self, replay: &Replay, image: &CheckpointImage) {
        self.report.records = replay.records;
        self.report.torn = replay.torn;
        self.report.bytes_read += replay.bytes_read + image.bytes_read;
    }

    /// Returns the numbers, sequences and generations to continue with.
    async fn next(
        &self,
        replay: &Replay,
        segments: &[FoundSegment],
        image: &CheckpointImage,
    ) -> FirstNumbers {
        let left_out = if self.report.clean { 0 } else { LEFT_OUT };
        let last = replay.highest_number.max(image.base);
        // Segments may have been opened without any header reaching the device: each at most once.
        let unseen = if self.report.clean { 0 } else { self.superblock.geometry.segment_count };
        let found = segments.iter().map(|it| it.generation.0 + 1);
        let lines = image.lines.iter().map(|line| line.generation.0 + 1);
        let known = self.superblock.accepted.iter().map(|accepted| accepted.next_generation.0);
        let (mut next, mut done) = (image.next_generation.0.max(1), 0);
        for after in known.chain(found).chain(lines) {
            next = next.max(after);
            turns::rest(&mut done).await;
        }
        FirstNumbers {
            record: RecordNumber(last.0 + 1 + left_out),
            sequence: replay.highest_sequence.saturating_add(left_out),
            generation: Generation(next + u64::from(unseen)),
        }
    }

    /// Registers with the replay the segments that have records after the checkpoint.
    async fn choose_walks(
        &self,
        image: &CheckpointImage,
        replay: &mut Replay,
    ) -> Vec<FoundSegment> {
        let mut segment_of = |(number, line): (usize, &forebay_format::SegmentState)| {
            let segment = SegmentId(number as u32);
            let walk = match image.reopened.get(number).copied().flatten() {
                // The first header may be damaged, and later ones intact.
                None if line.usage == SegmentUse::Open && !self.report.clean => {
                    Some(line.generation)
                }
                reopened => reopened,
            };
            if let Some(generation) = walk {
                replay.walk_later(segment, generation);
            }
            let in_use = walk.is_some() || line.usage != SegmentUse::Free;
            let generation = walk.unwrap_or(line.generation);
            replay.set_generation(segment, in_use.then_some(generation));
            let (position, walked) = (line.write_position, walk.is_some());
            FoundSegment { segment, generation, position, walked, in_use }
        };
        let (mut found, mut done) = (Vec::with_capacity(image.lines.len()), 0);
        for line in image.lines.iter().enumerate() {
            found.push(segment_of(line));
            turns::rest(&mut done).await;
        }
        found
    }

    /// Drops clean copies that may be superseded by a lost record, or by one that a failed device
    /// never received: the origin has the current data. Returns the volumes that are damaged by the
    /// loss.
    pub(super) async fn distrust(&self, log: &Replayed) -> Vec<VolumeId> {
        let Replayed { index, image, .. } = log;
        let (damage, volumes) = (self.report.damage, self.volumes.iter());
        let is_doubtful = |volume: &&VolumeRecord| {
            self.is_distrusted() || damage.is_some_and(|damage| !damage.precedes(volume))
        };
        let doubtful: Vec<VolumeId> = volumes.clone().filter(is_doubtful).map(|it| it.id).collect();
        if !doubtful.is_empty() {
            drop_clean(index, &self.spaces, &doubtful).await;
        }
        let Some(damage) = damage else { return Vec::new() };
        let mut with_dirty = image.dirty.clone();
        for shard in 0..index.shard_count() {
            index.visit_shard(shard, &mut |entry| entry.dirty, &mut |address, _| {
                let space = self.spaces.iter().find(|space| space.block(address).is_some());
                with_dirty.extend(space.map(|space| space.id));
            });
            yield_now().await;
        }
        let concerned =
            volumes.filter(|it| damage.concerns(it, image.base, with_dirty.contains(&it.id)));
        concerned.map(|volume| volume.id).collect()
    }

    /// Returns whether clean copies cannot be trusted, because the device had failed.
    pub(super) fn is_distrusted(&self) -> bool {
        self.superblock.compat & CLEAN_DISTRUSTED != 0
    }

    /// Recovers the groups of ordered volumes.
    pub(super) async fn find_order(
        &mut self,
        log: &Replayed,
    ) -> Result<HashMap<VolumeId, OrderQueue>, StoreError> {
        let Replayed { index, replay, segments, next, .. } = log;
        let horizons = self.volumes.iter().filter_map(Horizon::of);
        let horizon = horizons.map(|horizon| horizon.sequence).max().unwrap_or(0);
        let sequence = replay.highest_sequence.max(horizon);
        if !planted::has(PlantedBug::SequenceRestarts) {
            let left_out = next.sequence - replay.highest_sequence;
            index.raise_sequence(sequence.saturating_add(left_out));
        }
        let in_use = segments.iter().filter(|it| it.in_use);
        let source = order::SearchInput {
            queue: &self.queue,
            geometry: &self.superblock.geometry,
            cache: self.superblock.cache,
            volumes: &self.volumes,
            spaces: &self.spaces,
            index,
            segments: in_use.map(|it| (it.segment, it.generation)).collect(),
            torn: &replay.torn_slots,
            sequence,
            reads: READS,
        };
        let (queues, bytes_read) = order::recover(self.lane, source).await?;
        self.report.bytes_read += bytes_read;
        Ok(queues)
    }
}

/// Returns the meaning of the checkpoint's entries in a segment.
fn meaning(segment: &FoundSegment, reopened: bool) -> Entries {
    match (reopened, segment.in_use) {
        (true, _) => Entries::Superseded,
        (false, true) => Entries::Valid,
        (false, false) => Entries::None,
    }
}

/// Returns the address ranges of the volumes, and their total number of blocks.
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

/// Removes the clean blocks of these volumes from the index.
async fn drop_clean(index: &Index, spaces: &[VolumeSpace], volumes: &[VolumeId]) {
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
        yield_now().await;
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use forebay_core::Slot;
    use forebay_format::Uuid;
    use forebay_testkit::LaneWorld;

    use super::*;
    use crate::index::Address;
    use crate::table::Check;

    fn space(volume: u16, base: u64, blocks: u64) -> VolumeSpace {
        let id = VolumeId(volume);
        VolumeSpace { id, base, blocks, seed: CheckSeed::new(&Uuid::from_u128(7), id) }
    }

    #[test]
    fn clean_blocks_are_dropped_of_the_volumes_that_are_named() {
        let index = Index::new(TableGeometry::new(1000, 1, 20, 13).expect("small"), 1);
        let spaces = [space(1, 0, 100), space(2, 100, 100)];
        // Two blocks of each volume, and two that belong to no volume.
        for (slot, address) in [3, 4, 103, 104, 903, 904].into_iter().enumerate() {
            let entry = Entry {
                slot: Slot(slot as u32 + 1),
                dirty: address % 2 == 0,
                partial: false,
                rank: 0,
                check: Check::new(0),
            };
            index.restore(Address(address), entry).expect("there is room");
        }
        let mut left = LaneWorld::new().block_on(async move {
            drop_clean(&index, &spaces, &[VolumeId(1)]).await;
            let mut left = Vec::new();
            index.scan(|address, _| left.push(address.0));
            left
        });
        left.sort_unstable();
        assert_eq!(left, [4, 103, 104, 904]);
    }
}
