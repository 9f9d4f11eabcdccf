//! Counts the blocks of volumes that have a share of the cache, and evicts those of a volume that
//! has more than its largest share.
//!
//! Where the log has free space, nothing is reclaimed, so reclaim cannot enforce the largest share.
//! Blocks are taken out of the index instead, and their space is reclaimed like that of overwritten
//! ones. The hand of a clock goes round the shards of the index: a block that the replacement
//! policy keeps is lowered in rank, any other one is evicted. The smallest share is guarded by
//! [`demote`](super::demote) and [`reclaim`](super::reclaim).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::why::EvictionReason;
use forebay_core::{OriginBlock, Slot, VolumeId};
use forebay_lane::{either, yield_now};
use forebay_policy::Rank;

use crate::io::admission::AdmissionControl;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::cache::BackgroundEnding;
use crate::state::replacement::{How, Replacement};
use crate::state::volume::{Volume, VolumeState};

/// Interval of checks whether a count is due.
const LOOK: Duration = Duration::from_millis(100);

/// Blocks are counted again when volumes with a share have appended `1 / PART` of the blocks that
/// the cache holds.
const PART: u64 = 128;

/// Blocks that have become clean justify another visit of the index if they are `1 / LEAST` of the
/// blocks.
const LEAST: u64 = 1024;

/// Maximum number of rounds of the hand for one volume. A block that was used often loses its rank
/// in four of them.
const ROUNDS: u32 = 6;

/// Number of evicted blocks whose marks may wait in RAM for their record.
const MARKS: usize = 1 << 16;

/// Blocks that are examined before other tasks of the lane run.
const STEP: usize = 1024;

/// Inputs of the last count: volumes, shares in percent, and changes of pins.
type Basis = Vec<(VolumeId, (u8, u8), u64)>;

/// Runs until the cache stops.
pub(crate) async fn run(engine: Rc<EngineLane>) {
    let cache = engine.cache.clone();
    let _ending = BackgroundEnding { cache: cache.clone(), task: "the task that counts shares" };
    let store = cache.store.clone();
    store.loaded().await;
    let mut basis = Basis::new();
    let mut counted_at = 0;
    let mut hand = 0;
    // Volumes that still exceeded their share, with their dirty blocks at that time. Until fewer
    // are dirty or blocks are counted again, another visit of the index would find nothing to
    // evict.
    let mut vain = BTreeMap::new();
    while !cache.is_stopping() {
        let changed = cache.background_changed.listen();
        let mut shared = cache.volumes();
        shared.retain(|volume| volume.share.is_set());
        if cache.is_stopping() {
            // The stop may have begun before `changed` listened.
            return;
        }
        if shared.is_empty() {
            cache.shares_doubtful.store(false, Ordering::Relaxed);
            changed.await;
            continue;
        }
        let appended = shared.iter().map(|it| it.stats.cache_written()).sum::<u64>();
        let entered = appended.saturating_sub(counted_at) / store.block_size().bytes();
        let of = |it: &Arc<Volume>| (it.id, it.share.percents(), it.pins.changes());
        let present: Basis = cache.volumes().iter().map(of).collect();
        let doubtful = cache.shares_doubtful.load(Ordering::Relaxed);
        if doubtful || present != basis || entered >= store.capacity_blocks() / PART {
            basis = present;
            counted_at = appended;
            vain.clear();
            engine.count(&shared).await;
            cache.shares_doubtful.store(false, Ordering::Relaxed);
        }
        for volume in shared {
            let dirty = volume.dirty_blocks();
            let few = store.capacity_blocks() / LEAST;
            let cleaned = |before: &u64| dirty + few < *before || (dirty == 0 && *before > 0);
            let again = vain.get(&volume.id).is_none_or(cleaned);
            if again
                && volume.share.excess() > 0
                && let Some(view) = engine.lane_volume(volume.id)
            {
                engine.trim(&view, &mut hand).await;
                if volume.share.excess() > 0 {
                    vain.insert(volume.id, dirty);
                }
            }
        }
        either(changed, engine.lane.sleep(LOOK)).await;
    }
}

impl EngineLane {
    /// Counts the blocks of some volumes.
    async fn count(&self, volumes: &[Arc<Volume>]) {
        let store = &self.cache.store;
        let mut counts = BTreeMap::new();
        for shard in 0..store.index.shard_count() {
            self.cache.count_shard(shard, &mut counts);
            yield_now().await;
        }
        let pinned = self.cache.sum_volumes(|volume| volume.pins.count());
        let all_least = self.cache.sum_volumes(|volume| u64::from(volume.share.percents().0));
        for volume in volumes {
            let own = counts.get(&volume.id).copied().unwrap_or_default();
            volume.share.count(own, store.capacity_blocks(), pinned, all_least);
        }
    }

    /// Evicts blocks of a volume until it has no more than its largest share, or only blocks that
    /// cannot leave.
    async fn trim(self: &Rc<Self>, view: &LaneVolume, hand: &mut u32) {
        let store = &self.cache.store;
        let (_, replacement) = self.cache.replacement();
        let shards = store.index.shard_count();
        let (mut found, mut marks) = (Vec::<(OriginBlock, Slot)>::new(), 0);
        for round in 0..ROUNDS {
            for _ in 0..shards {
                let gone = view.volume.state() == VolumeState::Removed || self.cache.is_stopping();
                if view.volume.share.excess() == 0 || gone {
                    return;
                }
                *hand = (*hand + 1) % shards;
                store.index.scan_shard(*hand, &mut |address, entry| {
                    let block = view.volume.space.block(address).filter(|_| !entry.dirty);
                    found.extend(block.map(|block| (block, entry.slot)));
                });
                for some in found.chunks(STEP) {
                    for (block, slot) in some {
                        if view.volume.share.excess() > 0
                            && pass(view, &replacement, *block, *slot, round)
                        {
                            marks += 1;
                        }
                    }
                    yield_now().await;
                }
                found.clear();
                if marks >= MARKS {
                    marks = 0;
                    // Without its mark an evicted block may come back after a crash, which is
                    // harmless.
                    let _ = self.store.sync_marks().await;
                }
                yield_now().await;
            }
        }
    }
}

/// Evicts a block, or lowers its rank. Returns `true` if it was evicted.
fn pass(
    view: &LaneVolume,
    replacement: &Replacement,
    block: OriginBlock,
    slot: Slot,
    round: u32,
) -> bool {
    let (store, volume) = (view.store.store(), &view.volume);
    if volume.pins.contain(block) {
        return false;
    }
    let keeps = match &replacement.how {
        How::Ranks(_) => {
            let uses = replacement.rule().promoting_uses;
            let lower =
                |rank: Rank| if rank.is_main() { rank.passed() } else { rank.leaves_small(uses) };
            let change = |rank| lower(Rank::from_bits(rank)).bits();
            let ranks = store.rerank(&volume.space, block, slot, change);
            if let Some((1.., 0)) = ranks {
                volume.share.demoted();
                Policy(view).remember_given_up(block);
            }
            ranks.is_some_and(|(before, _)| before > 0)
        }
        // A policy with lists evicts only when the whole cache is full; after the first round, any
        // block may have to leave.
        How::Lists(lists) => round == 0 && lists.keeps(slot),
    };
    if keeps {
        return false;
    }
    let gone = store.forget(&volume.space, block, |entry| entry.slot == slot && !entry.dirty);
    if let Some(entry) = &gone {
        Policy(view).gone(entry);
        AdmissionControl(view).evicted(block, EvictionReason::Share);
        volume.share.evicted();
    }
    gone.is_some()
}
