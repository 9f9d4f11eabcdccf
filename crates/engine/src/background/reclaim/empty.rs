//! Emptying one segment: what is evicted, reinserted and written back.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::why::{EvictionReason, WritebackReason};
use forebay_core::{OriginBlock, SegmentId, Slot};
use forebay_device::IoBuf;
use forebay_lane::{Notify, either, join_all};
use forebay_store::Class;

use super::live::Live;
use super::owner::Owner;
use super::{REINSERT_LIVE, most_reinserted};
use crate::io::writeback::write_back;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};
use crate::state::volume::Volume;

/// Of a segment of which more (in percent) is kept or dirty, nothing clean is reinserted: there would
/// be little room gained, and everything else is even fuller. The same while clients wait for room.
const REINSERT_KEPT: u32 = 85;
const REINSERT_KEPT_WAITING: u32 = 50;

/// Blocks that are reinserted side by side.
const REINSERTED_TOGETHER: usize = 32;

/// Reclaim waits so long at most for an origin to take what is in its way, if there are other volumes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Of a segment of which more than this share (in parts of [`WHOLE`]) is dirty and has to be reinserted,
/// too little is gained to be worth it.
const PACKED: u32 = 31;
const WHOLE: u32 = 32;

/// How emptying a segment went.
#[derive(PartialEq, Eq)]
pub(super) enum Emptied {
    AsFarAsPossible,
    /// Nothing was done: it is full of what has to stay.
    Packed,
}

impl EngineLane {
    /// `waits`: clients wait for room.
    pub(super) async fn empty(
        self: &Rc<Self>,
        segment: SegmentId,
        replacement: &Replacement,
        waits: bool,
    ) -> Emptied {
        let store = self.cache.store.clone();
        let capacity = store.cells_per_segment() as u32;
        let mut live = self.live_blocks(segment).await;
        if let How::Lists(lists) = &replacement.how {
            live.values_mut().flatten().for_each(|live| live.kept = lists.keeps(live.slot));
        }
        let live: Vec<(Owner<'_>, Vec<Live>)> = live
            .into_iter()
            .filter_map(|(id, blocks)| Some((Owner::of(self, replacement, id)?, blocks)))
            .collect();
        let count = |of: fn(&Owner<'_>, &Live) -> bool| {
            let each = live
                .iter()
                .map(|(owner, blocks)| blocks.iter().filter(|live| of(owner, live)).count() as u32);
            each.sum::<u32>()
        };
        let bound = count(|owner, live| owner.must_reinsert(live));
        if bound * WHOLE > capacity * PACKED {
            return Emptied::Packed;
        }
        let all = count(|_, _| true);
        let dirty = count(|_, live| live.dirty);
        // What is clean and nobody asks for is not kept.
        let kept = count(|owner, live| live.dirty || (live.kept && owner.view.is_some()));
        // What is reserved is for this: less than a segment is filled here for one that is gained.
        let has_room = || store.segments.free_count() >= store.reserved_segments();
        if !has_room() {
            self.make_usable().await;
        }
        let room = has_room();
        // Marks may have taken a part of what is reserved. Blocks that leave in no other way than by being
        // reinserted still are, where that gains more than it takes; or there would be no room ever again.
        let room_for_bound = room
            || u64::from(bound) <= self.store.free_background_cells()
            || (store.segments.free_count() > 0 && bound * 2 <= capacity);
        let most_kept = if waits { REINSERT_KEPT_WAITING } else { REINSERT_KEPT };
        let keep = room && kept * 100 <= capacity * most_kept;
        for (owner, blocks) in live {
            let write = owner.view.as_ref().map(|view| view.volume.write_cost.mean());
            let most_dirty = most_reinserted(write.unwrap_or_default(), waits);
            let reinsert = room
                && (all * 100 <= capacity * REINSERT_LIVE || dirty * 100 <= capacity * most_dirty);
            let (kept, leaving): (Vec<Live>, Vec<Live>) =
                blocks.into_iter().partition(|live| match live.dirty {
                    true => !owner.in_order && (reinsert || (room_for_bound && owner.bound)),
                    false => keep && live.kept && owner.view.is_some(),
                });
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
            // What is in order has its turn in ordered writeback, or cannot be read.
            let Some(view) = owner.view.as_ref().filter(|_| !owner.bound && !owner.in_order) else {
                continue;
            };
            dirty.sort_unstable_by_key(|live| live.block);
            let blocks: Vec<OriginBlock> = dirty.iter().map(|live| live.block).collect();
            if !blocks.is_empty() && self.make_clean(view, blocks).await {
                for live in dirty {
                    owner.evict(&live, EvictionReason::Reclaim);
                }
            }
        }
        Emptied::AsFarAsPossible
    }

    /// Reinserts blocks, many at a time. Returns those that could not be, and why.
    async fn reinsert_all(
        self: &Rc<Self>,
        owner: &Owner<'_>,
        blocks: Vec<Live>,
    ) -> Vec<(Live, EvictionReason)> {
        let mut left = Vec::new();
        let mut blocks = self.reinsert_now(owner, blocks).into_iter();
        loop {
            let some: Vec<Live> = blocks.by_ref().take(REINSERTED_TOGETHER).collect();
            if some.is_empty() {
                return left;
            }
            let moved = join_all(some.iter().map(|live| self.reinsert(owner, live))).await;
            let failed = some.into_iter().zip(moved);
            left.extend(failed.filter_map(|(live, moved)| Some((live, moved.err()?))));
        }
    }

    /// Has blocks written back. `false`: the origin takes too long, and others do not wait for it; until
    /// it has taken them, the volume's dirty blocks are reinserted.
    async fn make_clean(self: &Rc<Self>, view: &Rc<LaneVolume>, blocks: Vec<OriginBlock>) -> bool {
        let ended = Rc::new((Cell::new(false), Notify::default()));
        let (this, ending) = (view.clone(), Ending(view.volume.clone(), ended.clone()));
        self.lane.spawn(async move {
            let _guard = this.cache.store.fail_on_panic("writeback for reclaim");
            let result = write_back(&this, &blocks, WritebackReason::Reclaim).await;
            this.volume.set_writeback_error(result.err());
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

    /// Reinserts what can be read at once, and gives back the rest.
    fn reinsert_now(&self, owner: &Owner<'_>, kept: Vec<Live>) -> Vec<Live> {
        /// Blocks by which the hint is ahead.
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

    /// Appends a live block again, if it can be read at once. `Some(false)` and `None`: not done.
    fn reinsert_one_now(&self, owner: &Owner<'_>, live: &Live, payload: &mut [u8]) -> Option<bool> {
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

    /// Appends a live block again, as it is. If it stays where it was, says why.
    async fn reinsert(
        self: &Rc<Self>,
        owner: &Owner<'_>,
        live: &Live,
    ) -> Result<(), EvictionReason> {
        let store = &self.cache.store;
        let space = &owner.space;
        let Some(pinned) = store.look_up(space, live.block) else { return Ok(()) };
        let entry = pinned.found.entry;
        if entry.slot != live.slot {
            return Ok(());
        }
        let mask = pinned.found.mask.clone();
        // What cannot be read stays where it is: bad dirty blocks are kept, clean ones evicted.
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

/// Ends what reclaim asked a volume's writeback for, also by a panic.
struct Ending(Arc<Volume>, Rc<(Cell<bool>, Notify)>);

impl Drop for Ending {
    fn drop(&mut self) {
        let Ending(volume, ended) = self;
        volume.set_overdue(false);
        ended.0.set(true);
        ended.1.notify_all();
    }
}
