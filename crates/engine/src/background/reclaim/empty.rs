//! Empties one segment: evicts, reinserts and writes back its blocks.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::why::{EvictionReason, WritebackReason};
use forebay_core::{OriginBlock, Slot, VolumeId};
use forebay_device::IoBuf;
use forebay_lane::{Notify, either, join_all};
use forebay_store::Class;

use super::owner::Owner;
use super::{REINSERT_LIVE, most_reinserted};
use crate::background::live::LiveBlock;
use crate::io::writeback::write_back;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};
use crate::state::volume::Volume;

/// If more than this share of a segment, in percent, is kept or dirty, no clean block is
/// reinserted: that would gain little space, and all other segments are even fuller.
/// `REINSERT_KEPT_WAITING` applies while clients wait for space.
const REINSERT_KEPT: u32 = 85;
const REINSERT_KEPT_WAITING: u32 = 50;

/// Blocks that are reinserted concurrently.
const REINSERTED_TOGETHER: usize = 32;

/// The longest time for which reclaim waits for an origin to accept dirty blocks, if there are
/// other volumes.
const PATIENCE: Duration = Duration::from_secs(1);

/// If more than `PACKED` / `WHOLE` of a segment is dirty and must be reinserted, too little space
/// is gained to be worth it.
const PACKED: u32 = 31;
const WHOLE: u32 = 32;

/// The same limit for clean blocks that are pinned.
const PINNED_PACKED: u32 = 3;
pub(super) const PINNED_WHOLE: u32 = 4;

/// The result of emptying a segment.
#[derive(PartialEq, Eq)]
pub(super) enum Emptied {
    AsFarAsPossible,
    /// No action: the segment is full of blocks that must stay.
    Packed,
}

/// The blocks of one owner in a segment that are reinserted.
struct Worth {
    /// Blocks that can leave the segment only by being reinserted.
    bound: bool,
    /// Clean blocks that the policy keeps.
    kept: bool,
    /// Dirty blocks that the policy keeps.
    kept_dirty: bool,
    /// All dirty blocks.
    dirty: bool,
}

impl Worth {
    fn reinserting(&self, owner: &Owner<'_>, live: &LiveBlock) -> bool {
        match live.dirty {
            true if owner.in_order => false,
            true => {
                let bound = self.bound && owner.must_reinsert(live);
                self.dirty || (self.kept_dirty && live.kept) || bound
            }
            false if owner.must_reinsert(live) => self.bound,
            false => self.kept && live.kept,
        }
    }
}

impl EngineLane {
    /// Empties a segment with these live blocks. `waits`: clients wait for space.
    pub(super) async fn empty(
        self: &Rc<Self>,
        blocks: BTreeMap<VolumeId, Vec<LiveBlock>>,
        replacement: &Replacement,
        waits: bool,
    ) -> Emptied {
        let store = self.cache.store.clone();
        let capacity = store.cells_per_segment() as u32;
        let live = self.owned_blocks(blocks, replacement);
        let count = |of: fn(&Owner<'_>, &LiveBlock) -> bool| {
            let each = live
                .iter()
                .map(|(owner, blocks)| blocks.iter().filter(|live| of(owner, live)).count() as u32);
            each.sum::<u32>()
        };
        let bound = count(|owner, live| owner.must_reinsert(live));
        // In a small segment, the headers of additional records can take as much space as was
        // gained.
        if bound * WHOLE > capacity * PACKED || u64::from(bound) >= store.cells_if_split() {
            return Emptied::Packed;
        }
        // Pinned blocks are moved only where that gains a good part of a segment, and count as kept
        // below: otherwise reclaim would move the same blocks for ever (invariant 25).
        let pinned = count(|owner, live| !live.dirty && owner.must_reinsert(live));
        if pinned * PINNED_WHOLE > capacity * PINNED_PACKED {
            return Emptied::Packed;
        }
        let (all, dirty) = (count(|_, _| true), count(|_, live| live.dirty));
        // Clean blocks of volumes that are not attached are not kept.
        let kept = count(|owner, live| live.dirty || (live.kept && owner.view.is_some()));
        // The reserved segments serve this purpose: emptying one segment fills less than one.
        let has_room = || store.segments.free_count() >= store.reserved_segments();
        if !has_room() {
            self.make_usable().await;
        }
        let room = has_room();
        // Marks may have taken a part of the reserve. Blocks that can leave only by being
        // reinserted are still reinserted if that frees more than it takes; otherwise no space
        // would ever become free again.
        let room_for_bound = room
            || u64::from(bound) <= self.store.free_background_cells()
            || (store.segments.free_count() > 0 && bound * 2 <= capacity);
        let most_kept = if waits { REINSERT_KEPT_WAITING } else { REINSERT_KEPT };
        let keep = room && kept * 100 <= capacity * most_kept;
        // A segment in which many blocks must stay says nothing about the policy.
        if room && !waits && (bound + pinned) * 8 <= capacity {
            replacement.kept.found(!keep);
        }
        for (owner, blocks) in live {
            let write = owner.view.as_ref().map(|view| view.volume.writeback.cost.mean());
            let most_dirty = most_reinserted(write.unwrap_or_default(), waits);
            let few = all * 100 <= capacity * REINSERT_LIVE || dirty * 100 <= capacity * most_dirty;
            // If there are pinned blocks, moving them together with the dirty blocks must still
            // gain space.
            let gains = pinned == 0 || (dirty + pinned) * 100 <= capacity * REINSERT_KEPT;
            let worth = Worth {
                bound: room_for_bound,
                kept: keep && owner.view.is_some(),
                // Called even if `keep` is false, because it also measures whether clients read.
                kept_dirty: owner.reads_pay() && keep,
                dirty: room && few && gains,
            };
            let (kept, leaving): (Vec<LiveBlock>, Vec<LiveBlock>) =
                blocks.into_iter().partition(|live| worth.reinserting(&owner, live));
            let unkept = if keep { EvictionReason::Reclaim } else { EvictionReason::NoRoom };
            let mut leaving: Vec<_> = leaving.into_iter().map(|live| (live, unkept)).collect();
            leaving.extend(self.reinsert_all(&owner, kept).await);
            let mut dirty = Vec::new();
            for (live, reason) in leaving {
                if live.dirty {
                    dirty.push(live);
                } else {
                    owner.evict(&live, reason);
                }
            }
            self.evict_dirty(&owner, dirty).await;
        }
        Emptied::AsFarAsPossible
    }

    /// Writes dirty blocks back and evicts them, as far as the origin accepts them.
    async fn evict_dirty(self: &Rc<Self>, owner: &Owner<'_>, mut dirty: Vec<LiveBlock>) {
        // The other blocks of an ordered volume are left to ordered writeback, or are unreadable.
        let Some(view) = owner.view.as_ref().filter(|_| !owner.bound && !owner.in_order) else {
            return;
        };
        dirty.retain(|live| !view.volume.is_given_up(live.block));
        dirty.sort_unstable_by_key(|live| live.block);
        let blocks: Vec<OriginBlock> = dirty.iter().map(|live| live.block).collect();
        if !blocks.is_empty() && self.make_clean(view, blocks).await {
            for live in dirty {
                owner.evict(&live, EvictionReason::Reclaim);
            }
        }
    }

    /// Returns live blocks by owner. Those that stay count as kept.
    fn owned_blocks<'a>(
        &'a self,
        blocks: BTreeMap<VolumeId, Vec<LiveBlock>>,
        replacement: &'a Replacement,
    ) -> Vec<(Owner<'a>, Vec<LiveBlock>)> {
        let mut all = Vec::new();
        for (id, mut blocks) in blocks {
            let Some(owner) = Owner::of(self, replacement, id) else { continue };
            for live in &mut blocks {
                if let How::Lists(lists) = &replacement.how {
                    live.kept = lists.keeps(live.slot);
                }
            }
            owner.guard(&mut blocks);
            all.push((owner, blocks));
        }
        all
    }

    /// Reinserts blocks, many at a time. Returns those that could not be reinserted, with the
    /// reason.
    async fn reinsert_all(
        self: &Rc<Self>,
        owner: &Owner<'_>,
        blocks: Vec<LiveBlock>,
    ) -> Vec<(LiveBlock, EvictionReason)> {
        let mut left = Vec::new();
        let mut blocks = self.reinsert_now(owner, blocks).into_iter();
        loop {
            let some: Vec<LiveBlock> = blocks.by_ref().take(REINSERTED_TOGETHER).collect();
            if some.is_empty() {
                return left;
            }
            let moved = join_all(some.iter().map(|live| self.reinsert(owner, live))).await;
            let failed = some.into_iter().zip(moved);
            left.extend(failed.filter_map(|(live, moved)| Some((live, moved.err()?))));
        }
    }

    /// Writes blocks back. Returns `false` if the origin takes too long, because other volumes must
    /// not wait for it. Until the origin has the blocks, the volume's dirty blocks are reinserted
    /// instead.
    async fn make_clean(self: &Rc<Self>, view: &Rc<LaneVolume>, blocks: Vec<OriginBlock>) -> bool {
        let ended = Rc::new((Cell::new(false), Notify::default()));
        let (this, ending) = (view.clone(), EmptyingGuard(view.volume.clone(), ended.clone()));
        self.lane.spawn(async move {
            let _guard = this.cache.store.fail_on_panic("writeback for reclaim");
            let result = write_back(&this, &blocks, WritebackReason::Reclaim).await;
            match result {
                Ok(_) => this.volume.writeback_works(),
                Err(error) => this.volume.set_writeback_error(Some(error)),
            }
            drop(ending);
        });
        let patient = self.lane.now() + PATIENCE;
        loop {
            let changed = ended.1.listen();
            if ended.0.get() {
                return true;
            }
            let alone = self.cache.store.volumes().len() == 1;
            if self.cache.is_stopping() || (!alone && self.lane.now() >= patient) {
                view.volume.set_overdue(true);
                return false;
            }
            either(changed, self.lane.sleep(PATIENCE)).await;
        }
    }

    /// Reinserts the blocks that can be read at once, and returns the rest.
    fn reinsert_now(&self, owner: &Owner<'_>, kept: Vec<LiveBlock>) -> Vec<LiveBlock> {
        /// Distance of prefetch hints, in blocks.
        const AHEAD: usize = 2;
        let store = &self.cache.store;
        let mut payload = IoBuf::for_overwrite(store.block_size().as_usize());
        let mut rest = Vec::new();
        let slots: Vec<Slot> = kept.iter().map(|live| live.slot).collect();
        for (number, live) in kept.into_iter().enumerate() {
            if let Some(next) = slots.get(number + AHEAD) {
                self.store.expect_slot(*next);
            }
            if !self.reinsert_one_now(owner, &live, &mut payload).unwrap_or(false)
                && store
                    .peek(&owner.space, live.block)
                    .is_some_and(|found| found.entry.slot == live.slot)
            {
                rest.push(live);
            }
        }
        rest
    }

    /// Reinserts a live block if it can be read at once. On `Some(false)` and `None` it was not
    /// reinserted.
    fn reinsert_one_now(
        &self,
        owner: &Owner<'_>,
        live: &LiveBlock,
        payload: &mut [u8],
    ) -> Option<bool> {
        let space = &owner.space;
        let pinned = self.cache.store.look_up(space, live.block)?;
        let entry = pinned.found.entry;
        if entry.slot != live.slot {
            return None;
        }
        let check = self.store.read_device_now(space, &pinned, payload)?.ok()?;
        let mask = pinned.found.mask.clone();
        let version = owner.reinsertion(live, &entry, mask);
        let appended = self.store.append_checked(version, Class::Background, payload, check);
        Some(owner.count_reinserted(live, appended))
    }

    /// Reinserts a live block unchanged.
    ///
    /// # Errors
    /// The reason why the block stays where it is.
    async fn reinsert(
        self: &Rc<Self>,
        owner: &Owner<'_>,
        live: &LiveBlock,
    ) -> Result<(), EvictionReason> {
        let store = &self.cache.store;
        let space = &owner.space;
        let Some(pinned) = store.look_up(space, live.block) else { return Ok(()) };
        let entry = pinned.found.entry;
        if entry.slot != live.slot {
            return Ok(());
        }
        let mask = pinned.found.mask.clone();
        // Unreadable blocks stay where they are: the caller keeps dirty ones and evicts clean ones.
        let read = self.store.read_block(space, pinned).await;
        let payload = read.map_err(|_| EvictionReason::Damaged)?;
        let version = owner.reinsertion(live, &entry, mask);
        let appended = self.store.append_whole(version, Class::Background, &payload);
        match owner.count_reinserted(live, appended) {
            true => Ok(()),
            false => Err(EvictionReason::NoRoom),
        }
    }
}

/// Signals on drop, also after a panic, that writeback for reclaim has ended.
struct EmptyingGuard(Arc<Volume>, Rc<(Cell<bool>, Notify)>);

impl Drop for EmptyingGuard {
    fn drop(&mut self) {
        let EmptyingGuard(volume, ended) = self;
        volume.set_overdue(false);
        ended.0.set(true);
        ended.1.notify_all();
    }
}
