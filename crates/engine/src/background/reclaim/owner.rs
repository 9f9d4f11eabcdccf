//! Whose blocks reclaim moves.

use std::rc::Rc;

use forebay_core::why::EvictionReason;
use forebay_core::{SectorMask, VolumeId};
use forebay_policy::{Past, Rank};
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Entry, Version, VolumeSpace};

use super::live::Live;
use crate::io::admission::AdmissionControl;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};
use crate::stats::bump;

/// Whose blocks are moved: a volume of the cache, attached or not.
pub(super) struct Owner<'a> {
    engine: &'a EngineLane,
    replacement: &'a Replacement,
    pub(super) space: VolumeSpace,
    pub(super) view: Option<Rc<LaneVolume>>,
    /// Its dirty blocks stay dirty for now.
    pub(super) bound: bool,
    /// Its dirty blocks have their turn in ordered writeback.
    pub(super) in_order: bool,
}

impl<'a> Owner<'a> {
    /// `None`: the volume has been deleted.
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
                // One that is being put in order, which may take as long as its origin does, must not
                // be written back by others, but nothing is held yet for a place in the order.
                let (ordered, in_order) = (view.volume.is_ordered(), store.is_in_order(id));
                let entering = ordered && !in_order;
                (!view.volume.can_be_emptied() || entering, ordered && in_order)
            }
            None => (true, store.has_order(id)),
        };
        Some(Owner { engine, replacement, space, view, bound, in_order })
    }

    /// Whether a block leaves the cache no other way than by being reinserted.
    pub(super) fn must_reinsert(&self, live: &Live) -> bool {
        live.dirty && self.bound && !self.in_order
    }

    fn lane(&self) -> usize {
        usize::from(self.engine.lane.id().0)
    }

    /// The version that a block is reinserted as: the same, somewhere else. Of a volume that is not
    /// attached only dirt keeps it.
    pub(super) fn reinsertion(
        &self,
        live: &Live,
        entry: &Entry,
        mask: Option<SectorMask>,
    ) -> Version<'_> {
        let rank = match self.view {
            Some(_) => Rank::from_bits(entry.rank).reinserted(),
            None => Rank::EVICTABLE,
        };
        Version {
            space: &self.space,
            block: live.block,
            dirty: entry.dirty,
            mask,
            rank: rank.bits(),
            // Writeback may have made it clean while it was read. It stays clean then: an owner without a
            // view counts no block that becomes dirty.
            condition: Condition::Copy(entry.slot),
        }
    }

    /// Takes a block out of the cache, unless it is dirty or has been replaced.
    pub(super) fn evict(&self, live: &Live, reason: EvictionReason) {
        let gone = self.engine.cache.store.forget(&self.space, live.block, |entry| {
            entry.slot == live.slot && (!entry.dirty || planted::has(PlantedBug::EvictsDirty))
        });
        let Some(entry) = gone else { return };
        if let Some(view) = &self.view {
            Policy(view).gone(&entry);
            AdmissionControl(view).evicted(live.block, reason);
            return;
        }
        if let How::Lists(lists) = &self.replacement.how {
            lists.gone(self.lane(), entry.slot);
        }
        self.engine.cache.memory().ghost.note(self.space.address(live.block).0, Past::Evicted);
    }

    /// Counts a block that was reinserted. `false`: it stays where it was.
    pub(super) fn count_reinserted(&self, live: &Live, appended: Appended) -> bool {
        match appended {
            Appended::Done { .. } => (),
            // It was replaced meanwhile.
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
