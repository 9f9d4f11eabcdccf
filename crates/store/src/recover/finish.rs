//! The last phase of opening a cache: assembles the store and makes the recovered state durable.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_core::{Generation, VolumeId};
use forebay_format::{AcceptedLog, Geometry};
use forebay_lane::{turns, yield_now};

use super::RecoveryReport;
use super::opening::{FoundSegment, Opening, Replayed};
use crate::appender::Appenders;
use crate::error::StoreError;
use crate::hazard::HazardSlots;
use crate::index::Index;
use crate::lane::StoreLane;
use crate::latency::DeviceLatency;
use crate::layout::SegmentLayout;
use crate::loading::Loading;
use crate::log::Log;
use crate::ordered::{Ordered, queue::GroupQueue as OrderQueue};
use crate::planted::{self, PlantedBug};
use crate::replay::{LastRecord, Replay};
use crate::roots::refused;
use crate::segments::{Live, SegmentSnapshot, SegmentState, Segments};
use crate::spaces::Ranges;
use crate::store::Store;
use crate::table::Entry;

/// The parts of a store that recovery restores.
pub(super) struct StoreParts {
    index: Index,
    segments: Segments,
    ordered: Ordered,
    log: Log,
    /// Whether the checkpoint was rebuilt or repaired, so that a new one must be written.
    mended: bool,
    loading: Loading,
    /// Volumes that were deleted and have records in the log.
    resting: HashSet<VolumeId>,
    /// The accepted part of the log to record in the superblock, if no checkpoint is written now.
    accepted: Option<AcceptedLog>,
}

impl Opening<'_> {
    /// Makes the parts of a store from the recovered state.
    pub(super) async fn assemble(
        &mut self,
        found: Replayed,
        queues: HashMap<VolumeId, OrderQueue>,
    ) -> Result<StoreParts, StoreError> {
        let geometry = &self.superblock.geometry;
        let Replayed { index, replay, image, segments, next, accepted } = found;
        let held = held_by(geometry, &queues).await;
        let ordered = Ordered::new(queues, &self.options.memory)
            .map_err(|over| refused(&self.device, over))?;
        let live = live_in(geometry, &index).await;
        (self.report.blocks, self.report.dirty) = match &image.later {
            Some(later) => later.counts(),
            None => sum(&live).await,
        };
        let lanes = self.options.lanes;
        let segments = match &image.later {
            Some(_) => {
                restored(lanes, next.generation, segments, &replay, &live, |it| !it.in_use).await
            }
            None => {
                let is_empty = |it: &FoundSegment| {
                    let number = it.segment.0 as usize;
                    live[number].blocks == 0 && held.get(number).is_none_or(|held| *held == 0)
                };
                restored(lanes, next.generation, segments, &replay, &live, is_empty).await
            }
        };
        for (number, some) in held.chunks(turns::AT_ONCE).enumerate() {
            segments.set_held(number * turns::AT_ONCE, some);
            yield_now().await;
        }
        let loading = match image.later {
            Some(later) => {
                // After a crash before the next checkpoint, everything appended until then has to
                // be replayed; this bounds it.
                let most = self.options.checkpoint_due(geometry) / geometry.segment_bytes;
                segments.withhold_beyond(most as u32);
                // Segments with records after the base have to wait for another checkpoint.
                segments.checkpoint_durable(image.base);
                Loading::of(later, index.shard_count(), self.options.lanes)
            }
            None => Loading::nothing(),
        };
        yield_now().await;
        let log = Log::new(
            SegmentLayout::new(geometry),
            self.options.lanes,
            geometry.segment_count,
            next.record,
        );
        let resting = replay.deleted;
        yield_now().await;
        Ok(StoreParts {
            resting,
            index,
            segments,
            ordered,
            log,
            mended: image.mended,
            loading,
            accepted,
        })
    }

    /// Phase 5: makes the recovered state durable, before anything else is written.
    pub(super) async fn finish(
        self,
        parts: StoreParts,
        concerned: &[VolumeId],
    ) -> Result<(Rc<StoreLane>, RecoveryReport), StoreError> {
        let (distrusted, lane) = (self.is_distrusted(), self.lane.clone());
        let Opening { device, queue, options, superblock, report, mend, .. } = self;
        let mended = parts.mended;
        let store = Arc::new(Store {
            hazards: HazardSlots::new(options.lanes),
            device,
            uuid: superblock.cache,
            geometry: superblock.geometry.clone(),
            options,
            index: parts.index,
            segments: parts.segments,
            health: Default::default(),
            counters: Default::default(),
            latency: DeviceLatency::default(),
            space: Default::default(),
            space_wanted: Default::default(),
            index_full: Default::default(),
            appenders: Appenders::new(parts.log.roles()),
            log: parts.log,
            ordered: parts.ordered,
            spaces: parking_lot::Mutex::new(Ranges::new(self.spaces)),
            meta: parking_lot::Mutex::new(superblock),
            volumes: parking_lot::Mutex::new(self.volumes),
            meta_gate: Default::default(),
            sync_gate: Default::default(),
            checkpoint_gate: Default::default(),
            loading: parts.loading,
            appended_at_checkpoint: AtomicU64::new(0),
            spaces_at_checkpoint: AtomicU64::new(self.spaces_at_checkpoint.unwrap_or_default()),
            resting: parking_lot::Mutex::new(parts.resting),
            _memory: self.memory,
            distrust: AtomicBool::new(false),
            #[cfg(feature = "planted-bugs")]
            known_checks: Default::default(),
        });
        let this = StoreLane::new(store, lane, queue);
        this.mend_roots(&mend).await?;
        if distrusted {
            // Barrier for invariant 12: the samples of origins are removed before the next
            // checkpoint clears the bit that marks them as distrusted.
            this.change_volumes(|volumes, _| {
                volumes.iter_mut().for_each(|volume| volume.samples = None);
                Ok(())
            })
            .await?;
        }
        if let Some(damage) = report.damage {
            tracing::error!(volumes = ?concerned, "{damage}");
            // Barrier for invariant 9: the damage is recorded before the next checkpoint, after
            // which no recovery would see the gap in the log.
            this.note_damage(damage, concerned).await?;
        }
        if report.clean && !mended {
            // Barrier for invariant 9: before the first write, neither copy may say that the device
            // is clean.
            let stays = planted::has(PlantedBug::CleanFlagStays);
            this.write_superblock(|superblock| superblock.clean_shutdown = stays).await?;
        } else if let Some(accepted) = parts.accepted {
            // Barrier for invariants 4 and 9: before the first write, the superblock records which
            // log records were accepted. Later writes would make the others look durable to the
            // next recovery.
            let accepted = (!planted::has(PlantedBug::AcceptedNotNoted)).then_some(accepted);
            this.write_superblock(|superblock| superblock.accept(accepted)).await?;
        } else {
            this.checkpoint(false).await?;
        }
        Ok((this, report))
    }
}

/// Counts the versions that ordered volumes hold, by segment. Empty without such volumes.
async fn held_by(geometry: &Geometry, queues: &HashMap<VolumeId, OrderQueue>) -> Vec<u32> {
    if queues.is_empty() {
        return Vec::new();
    }
    let mut held = turns::filled(geometry.segment_count as usize, |_| 0u32).await;
    for queue in queues.values() {
        queue.each(|version| {
            let segment = geometry.place_of(version.slot).0;
            if let Some(held) = held.get_mut(segment.0 as usize) {
                *held += 1;
            }
        });
        yield_now().await;
    }
    held
}

/// Returns the blocks in all segments, and how many of them are dirty.
async fn sum(live: &[Live]) -> (u64, u64) {
    let (mut sums, mut done) = ((0, 0), 0);
    for counts in live {
        sums = (sums.0 + u64::from(counts.blocks), sums.1 + u64::from(counts.dirty));
        turns::rest(&mut done).await;
    }
    sums
}

/// Counts the index entries that point into each segment.
async fn live_in(geometry: &Geometry, index: &Index) -> Vec<Live> {
    let mut live = turns::filled(geometry.segment_count as usize, |_| Live::default()).await;
    let mut count = |entry: &Entry| {
        let segment = geometry.place_of(entry.slot).0;
        if let Some(counts) = live.get_mut(segment.0 as usize) {
            counts.blocks += 1;
            counts.dirty += u32::from(entry.dirty);
            counts.kept += u32::from(entry.rank > 0);
        }
        false
    };
    for shard in 0..index.shard_count() {
        index.visit_shard(shard, &mut count, &mut |_, _| ());
        yield_now().await;
    }
    live
}

/// Restores the segments in the order of their generations.
async fn restored(
    lanes: usize,
    next_generation: Generation,
    mut found: Vec<FoundSegment>,
    replay: &Replay,
    live: &[Live],
    is_free: impl Fn(&FoundSegment) -> bool,
) -> Segments {
    turns::sort_by_key(&mut found, |it| it.generation).await;
    let segments = Segments::in_turns(live.len() as u32, lanes, next_generation).await;
    yield_now().await;
    let mut found = found.into_iter();
    while !found.as_slice().is_empty() {
        segments.restore(found.by_ref().take(turns::AT_ONCE).map(|it| {
            let FoundSegment { segment, generation, .. } = it;
            let state = if is_free(&it) { SegmentState::Free } else { SegmentState::Closed };
            let end = replay
                .end_of(segment)
                .unwrap_or(LastRecord { position: it.position, ..LastRecord::default() });
            (segment, SegmentSnapshot { generation, state, position: end.position }, end.number)
        }));
        yield_now().await;
    }
    for (number, some) in live.chunks(turns::AT_ONCE).enumerate() {
        let first = number * turns::AT_ONCE;
        segments.restored(first as u32..(first + some.len()) as u32);
        segments.set_live_from(first, some);
        yield_now().await;
    }
    segments
}
