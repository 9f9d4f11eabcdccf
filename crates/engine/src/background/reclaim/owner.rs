//! The volume that owns the blocks moved by reclaim.

use std::rc::Rc;

use forebay_core::why::EvictionReason;
use forebay_core::{SectorMask, VolumeId};
use forebay_policy::{Past, Rank};
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Entry, Version, VolumeSpace};

use super::REINSERTION_TIME;
use crate::background::live::LiveBlock;
use crate::io::admission::AdmissionControl;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};
use crate::stats::bump;

/// The owner of blocks that are moved: a volume of the cache, attached or not.
pub(super) struct Owner<'a> {
    engine: &'a EngineLane,
    replacement: &'a Replacement,
    pub(super) space: VolumeSpace,
    pub(super) view: Option<Rc<LaneVolume>>,
    /// The volume's dirty blocks cannot be written back now.
    pub(super) bound: bool,
    /// The volume's dirty blocks are left to ordered writeback.
    pub(super) in_order: bool,
}

impl<'a> Owner<'a> {
    /// Returns the owner with this number, or `None` if the volume was deleted.
    pub(super) fn of(
        engine: &'a EngineLane,
        replacement: &'a Replacement,
        id: VolumeId,
    ) -> Option<Self> {
        let store = &engine.cache.store;
        let space = store.space_of(id)?;
        let view = engine.lane_volume(id);
        let (bound, in_order) = match &view {
            Some(view) => {
                // Only the task that puts a volume in order may write it back meanwhile, which
                // takes as long as its origin needs; but none of its versions are held for ordered
                // writeback yet.
                let (ordered, in_order) = (view.volume.is_ordered(), store.is_in_order(id));
                let entering = ordered && !in_order;
                (!view.volume.can_be_emptied() || entering, ordered && in_order)
            }
            None => (true, store.has_order(id)),
        };
        Some(Owner { engine, replacement, space, view, bound, in_order })
    }

    /// Returns whether future reads justify reinserting a dirty block that the policy keeps: they
    /// cost a miss each if blocks are read and not overwritten. Saved writes to the origin do not
    /// count here.
    pub(super) fn reads_pay(&self) -> bool {
        let Some(view) = &self.view else { return false };
        let (volume, store) = (&view.volume, &self.engine.cache.store);
        let reads = volume.reads.share.of(volume.stats.blocks(), store.capacity_blocks());
        volume.origin_latency.cost().mul_f64(reads) > REINSERTION_TIME
    }

    /// Returns whether a block can leave its segment only by being reinserted.
    pub(super) fn must_reinsert(&self, live: &LiveBlock) -> bool {
        match live.dirty {
            true => (self.bound || self.is_refused(live)) && !self.in_order,
            false => live.stays,
        }
    }

    /// Returns whether the origin refuses a dirty block, so that only other blocks of its volume
    /// can be written back.
    fn is_refused(&self, live: &LiveBlock) -> bool {
        self.view.as_ref().is_some_and(|view| view.volume.is_refused(live.block))
    }

    /// Decides which clean blocks stay: pinned ones, and those that the volume's share guards.
    /// Blocks that the replacement policy does not keep leave first. Sets `kept` of the blocks that
    /// stay.
    pub(super) fn guard(&self, blocks: &mut [LiveBlock]) {
        let Some(view) = &self.view else { return };
        if view.cache.lifts_guards() {
            return;
        }
        let mut spare = view.volume.share.spare();
        for kept in [false, true] {
            for live in blocks.iter_mut().filter(|live| !live.dirty && live.kept == kept) {
                live.stays = spare == 0 || view.volume.pins.contain(live.block);
                spare -= u64::from(!live.stays);
            }
        }
        blocks.iter_mut().for_each(|live| live.kept |= live.stays);
    }

    fn lane(&self) -> usize {
        usize::from(self.engine.lane.id().0)
    }

    /// Returns the version to reinsert a block as: unchanged, but evictable if the volume is not
    /// attached, because then only dirty blocks are kept.
    pub(super) fn reinsertion(
        &self,
        live: &LiveBlock,
        entry: &Entry,
        mask: Option<SectorMask>,
    ) -> Version<'_> {
        let rank = match self.view {
            Some(_) if live.stays => Rank::MAIN,
            Some(_) => Rank::from_bits(entry.rank).reinserted(),
            None => Rank::EVICTABLE,
        };
        Version {
            space: &self.space,
            block: live.block,
            dirty: entry.dirty,
            mask,
            rank: rank.bits(),
            // Writeback may have made the block clean while it was read. It stays clean then: an
            // owner without a view does not count blocks that become dirty.
            condition: Condition::Copy(entry.slot),
        }
    }

    /// Evicts a block, unless it is dirty or has been replaced.
    pub(super) fn evict(&self, live: &LiveBlock, reason: EvictionReason) {
        let gone = self.engine.cache.store.forget(&self.space, live.block, |entry| {
            entry.slot == live.slot && (!entry.dirty || planted::has(PlantedBug::EvictsDirty))
        });
        let Some(entry) = gone else { return };
        if let Some(view) = &self.view {
            Policy(view).gone(&entry);
            AdmissionControl(view).evicted(live.block, reason);
            view.volume.share.evicted();
            return;
        }
        if let How::Lists(lists) = &self.replacement.how {
            lists.gone(self.lane(), entry.slot);
        }
        self.engine.cache.memory().ghost.note(self.space.unique(live.block), Past::Evicted);
    }

    /// Records the result of reinserting a block. Returns `false` if the block stays where it was.
    pub(super) fn count_reinserted(&self, live: &LiveBlock, appended: Appended) -> bool {
        match appended {
            Appended::Done { .. } => (),
            // The block was replaced meanwhile.
            Appended::Refused => return true,
            Appended::NoSpace | Appended::NoMask => return false,
        }
        let Some(volume) = &self.view else {
            if let How::Lists(lists) = &self.replacement.how
                && let Some(found) = self.engine.cache.store.peek(&self.space, live.block)
            {
                lists.moved(self.lane(), found.entry.slot, live.slot);
            }
            return true;
        };
        Policy(volume).reinserted(live.block, live.slot);
        let counters = &volume.stats().counters;
        bump(&counters.cache_written_bytes, volume.volume.block.bytes());
        bump(&counters.reinserted_blocks, 1);
        if !live.kept {
            bump(&counters.reinserted_dirty_blocks, 1);
        }
        true
    }
}
