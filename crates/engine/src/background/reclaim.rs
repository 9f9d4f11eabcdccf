//! Reclaim: frees segments of the log. It takes the closed segment that is cheapest to empty: clean
//! blocks are evicted or reinserted, dirty ones written back or reinserted. Then the segment drains
//! (see `store::segments`).
//!
//! No volume holds back the others. A block's index entry is enough to move it, so dirty blocks
//! whose volume is not attached, or whose origin accepts no writes, are reinserted; and reclaim
//! does not wait long for any origin. Such blocks are packed into as few segments as possible. Full
//! segments of them are not reclaimed, because that would free next to nothing.
//!
//! - [`owner`]: the volume that owns them
//! - [`empty`]: empties one segment

mod empty;
mod owner;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Nanos, SegmentId, VolumeId};
use forebay_lane::{either, turns, yield_now};
use forebay_store::segments::{Live, SegmentUse};

use crate::background::demote::ClockHand;
use crate::lane::engine::EngineLane;
use crate::state::cache::BackgroundEnding;
use crate::state::replacement::How;
use crate::state::volume::Volume;
use empty::{Emptied, PINNED_WHOLE};

/// Dirty blocks of a segment are reinserted if at most this share of it, in percent, is live. Those
/// of fuller segments are written back, so that space is gained in any case.
const REINSERT_LIVE: u32 = 50;

/// Dirty blocks are also reinserted up to this dirty share of a segment, in percent, if its origin
/// is slow; up to `REINSERT_WAITING` while clients wait. With more, more is reinserted without
/// relieving the disk.
const REINSERT_DIRTY: u32 = 60;
const REINSERT_WAITING: u32 = 95;

/// The cost of reinserting a block: a read of a SATA SSD, and a part of a large write.
const REINSERTION_TIME: Duration = Duration::from_micros(35);

/// Time for which a segment that could not be emptied is left alone.
const STUCK_FOR: Duration = Duration::from_secs(1);

/// State kept from one segment to the next.
#[derive(Default)]
struct State {
    hand: ClockHand,
    closed: Vec<SegmentUse>,
    /// Segments that could not be emptied.
    stuck: BTreeMap<SegmentId, Stuck>,
    /// The state of segments when they were last found stuck.
    tried: BTreeMap<SegmentId, (u64, Live)>,
    /// Segments whose reclaim would gain too little, with their state at that time. Cleared when
    /// bound blocks may be able to leave.
    packed: BTreeMap<SegmentId, (u64, Live)>,
    volumes: Vec<Leaving>,
}

/// The part of a volume's state that decides which of its blocks can leave a segment.
struct Leaving {
    id: VolumeId,
    takes_writes: bool,
    /// Number of changes of the volume's pins.
    pins: u64,
    /// Whether clean blocks that are pinned or guarded have to stay.
    guards: bool,
    /// Part of a segment that the volume's share leaves unguarded, in units of `PINNED_WHOLE`.
    spare: u64,
}

impl Leaving {
    /// Returns this state for segments of `cells` blocks.
    fn of(volume: &Volume, cells: u32, guards: bool) -> Self {
        let spare = volume.share.spare().min(cells.into());
        Leaving {
            id: volume.id,
            takes_writes: volume.can_be_emptied(),
            pins: volume.pins.changes(),
            guards,
            spare: spare * u64::from(PINNED_WHOLE) / u64::from(cells),
        }
    }

    /// Returns whether blocks may leave now that had to stay before.
    fn unpacks(&self, before: &Self) -> bool {
        let rest = |it: &Self| (it.id, it.takes_writes, it.pins);
        let lifted = before.guards && !self.guards;
        rest(self) != rest(before) || lifted || self.spare > before.spare
    }
}

/// A segment that could not be emptied.
struct Stuck {
    since: Nanos,
    /// The previous attempt found the segment in the same state, so its blocks will not leave soon.
    again: bool,
}

impl State {
    fn set_stuck(&mut self, segment: &SegmentUse, since: Nanos) {
        let found = (segment.opened, segment.live);
        let again = self.tried.insert(segment.id, found) == Some(found);
        self.stuck.insert(segment.id, Stuck { since, again });
    }

    fn is_packed(&self, segment: &SegmentUse) -> bool {
        self.packed.get(&segment.id) == Some(&(segment.opened, segment.live))
    }

    /// Takes the state of all volumes. Packed segments are looked at again if more can leave them.
    fn set_volumes(&mut self, volumes: Vec<Leaving>) {
        let mut pairs = volumes.iter().zip(&self.volumes);
        if volumes.len() != self.volumes.len() || pairs.any(|(new, old)| new.unpacks(old)) {
            self.packed.clear();
        }
        self.volumes = volumes;
    }
}

/// Returns the cost of reclaiming a segment, in eighths of a block. A kept block costs 8, because
/// it has to be written again. A dirty block costs 1: it must reach the origin at some time, but a
/// sweep is usually cheaper. While clients wait for space (`waits`), clean blocks are evicted and
/// only dirty ones are an obstacle: a dirty block costs 8, a kept one 1.
///
/// If more than `most` blocks are dirty, they are written to the origin instead of reinserted. That
/// adds 4 for every live block: avoiding it is worth reinserting half a segment of other blocks.
fn cost(segment: &SegmentUse, kept: u32, waits: bool, most: u32) -> u32 {
    let dirty = segment.live.dirty;
    let seeks = if dirty > most { segment.live.blocks * 4 } else { 0 };
    seeks + if waits { dirty * 8 + kept } else { kept * 8 + dirty }
}

/// Runs until the cache stops.
pub(crate) async fn run(engine: Rc<EngineLane>) {
    let _ending = BackgroundEnding { cache: engine.cache.clone(), task: "reclaim" };
    let store = engine.cache.store.clone();
    let mut state = State::default();
    // The live blocks of a segment are known only when the whole index is loaded.
    store.loaded().await;
    while !engine.cache.is_stopping() {
        let wanted = store.space_wanted.listen();
        engine.store.free_drained();
        let free = store.segments.free_count();
        let crowded = store.index_was_full();
        if (free >= engine.cache.free_target() && !crowded) || store.health.failed() {
            engine.cache.press(false);
            engine.cache.starve(false);
            either(wanted, engine.lane.sleep(Duration::from_millis(100))).await;
            continue;
        }
        let on_their_way = store.segments.draining_count();
        let enough = free + on_their_way >= engine.cache.free_target() && !crowded;
        if enough {
            engine.cache.press(false);
        }
        let emptied = !enough
            && match engine.reclaim_one(&mut state).await {
                // This frees nothing, so the cache remains short of space.
                Some(Emptied::Packed) => continue,
                emptied => emptied.is_some(),
            };
        engine.cache.starve(!emptied && on_their_way == 0 && engine.gets_no_room(&state));
        if emptied {
            if store.segments.free_count() <= store.reserved_segments() {
                engine.make_usable().await;
            }
            if crowded {
                store.space.notify_all();
            }
        } else if on_their_way > 0 {
            // Enough segments are draining, or no other can be taken, so make the draining ones
            // usable first.
            engine.make_usable().await;
            // Re-arm: earlier requests have been satisfied. Writing marks also requests space, so
            // waiting on the old listener would spin while draining segments wait for an origin.
            let wanted = store.space_wanted.listen();
            either(wanted, engine.lane.sleep(Duration::from_millis(1))).await;
        } else {
            either(wanted, engine.lane.sleep(Duration::from_millis(10))).await;
        }
    }
}

/// Returns the highest dirty share of a segment, in percent, at which its dirty blocks are
/// reinserted, given the mean time of a writeback write. The higher that time, the more reinsertion
/// is worth per free block: the sweep writes the blocks back later, in an order in which a disk is
/// many times as fast.
fn most_reinserted(write: Duration, clients_wait: bool) -> u32 {
    let share = 1.0 - REINSERTION_TIME.as_secs_f64() / write.as_secs_f64().max(1e-9);
    let most = if clients_wait { REINSERT_WAITING } else { REINSERT_DIRTY };
    ((share * 100.0).max(0.0) as u32).min(most)
}

impl EngineLane {
    /// Makes drained segments usable again: commits, and writes a checkpoint if some wait for one.
    async fn make_usable(self: &Rc<Self>) {
        if self.store.commit().await.is_err() {
            return;
        }
        if self.store.free_drained()
            && self.cache.store.segments.free_count() < self.cache.free_target()
        {
            if let Err(error) = self.store.checkpoint(false).await {
                tracing::warn!(%error, "a checkpoint failed");
            }
            self.store.free_drained();
        }
    }

    /// Returns whether there is no free space and will be none. Segments are then occupied by held
    /// versions that no origin is about to receive, or by blocks that cannot leave: unreadable,
    /// pinned or guarded ones, and the dirty ones of a stopped volume. Other volumes must not wait
    /// for them, because that may never end.
    fn gets_no_room(&self, state: &State) -> bool {
        let (store, volumes) = (&self.cache.store, self.cache.volumes());
        let takes =
            |volume: &Volume| volume.can_be_emptied() && volume.settings().writeback_running;
        let gets_some = |volume: &Arc<Volume>| takes(volume) && store.held_versions(volume.id) > 0;
        let gets_clean =
            |volume: &Arc<Volume>| takes(volume) && volume.dirty_blocks() > volume.bad_count();
        let full = match store.segments.with_held() {
            0 => !state.packed.is_empty() && !volumes.iter().any(gets_clean),
            _ => true,
        };
        full && store.segments.free_count() <= store.reserved_segments()
            && state.stuck.values().all(|stuck| stuck.again)
            && !volumes.iter().any(gets_some)
    }

    /// Stores the closed segments in `into`, like
    /// [`Segments::closed`](forebay_store::segments::Segments::closed). Other tasks of the lane run
    /// meanwhile.
    pub(crate) async fn closed_segments(&self, into: &mut Vec<SegmentUse>) {
        let segments = &self.cache.store.segments;
        into.clear();
        for first in (0..segments.count()).step_by(turns::AT_ONCE) {
            if first > 0 {
                yield_now().await;
            }
            segments.closed_among(first..first + turns::AT_ONCE as u32, into);
        }
    }

    /// Returns the number of kept blocks in all segments. Other tasks of the lane run meanwhile.
    pub(crate) async fn kept_blocks(&self) -> u64 {
        let segments = &self.cache.store.segments;
        let mut kept = 0;
        for first in (0..segments.count()).step_by(turns::AT_ONCE) {
            if first > 0 {
                yield_now().await;
            }
            kept += segments.live_among(first..first + turns::AT_ONCE as u32).1;
        }
        kept
    }

    /// Empties one segment. Returns `None` if none can be taken.
    async fn reclaim_one(self: &Rc<Self>, state: &mut State) -> Option<Emptied> {
        let store = &self.cache.store;
        let (_, replacement) = self.cache.replacement();
        self.demote(&replacement, &mut state.hand, &mut state.closed).await;
        let now = self.lane.now();
        state.stuck.retain(|_, stuck| now.since(stuck.since) < STUCK_FOR);
        self.closed_segments(&mut state.closed).await;
        let kept = |segment: &SegmentUse| match &replacement.how {
            How::Ranks(_) => segment.live.kept,
            How::Lists(lists) => lists.kept_in(segment.id),
        };
        let slowest = self.cache.volumes().iter().map(|volume| volume.writeback.cost.mean()).max();
        let waits = self.cache.throttle.is_engaged();
        let most = most_reinserted(slowest.unwrap_or_default(), waits).max(REINSERT_LIVE);
        let capacity = store.cells_per_segment() as u32;
        let most = capacity * most / 100;
        let guards = !self.cache.lifts_guards();
        let leaving = |it: &Arc<Volume>| Leaving::of(it, capacity, guards);
        state.set_volumes(self.cache.volumes().iter().map(leaving).collect());
        let candidates = state
            .closed
            .iter()
            .filter(|one| !one.held && !state.stuck.contains_key(&one.id) && !state.is_packed(one));
        let (mut least, mut looked_at) = (None, 0);
        for one in candidates {
            let own = (cost(one, kept(one), waits, most), one.opened);
            if least.as_ref().is_none_or(|(lowest, _)| own < *lowest) {
                least = Some((own, *one));
            }
            turns::rest(&mut looked_at).await;
        }
        let Some((_, victim)) = least else {
            // The remaining segments are held for ordered writeback.
            self.cache.press(store.segments.with_held() > 0);
            return None;
        };
        if !store.segments.begin_reclaim(victim.id) {
            return None;
        }
        let ends_probation = victim.on_probation && replacement.goes_by_ranks();
        for round in 0..4 {
            if store.segments.live(victim.id) == 0 {
                break;
            }
            let mut blocks = self.live_blocks(victim.id).await;
            if ends_probation && round == 0 {
                // The segment's blocks leave the order of the log now, so their time in the small
                // queue ends.
                self.end_probation_of(victim.id, &mut blocks, replacement.rule());
            }
            if self.empty(blocks, &replacement, waits).await == Emptied::Packed {
                state.packed.insert(victim.id, (victim.opened, victim.live));
                store.end_reclaim(victim.id);
                return Some(Emptied::Packed);
            }
        }
        if let How::Lists(lists) = &replacement.how {
            lists.emptied(victim.id);
        }
        if !store.end_reclaim(victim.id) {
            // Its dirty blocks could not be written back or read: try other segments.
            state.set_stuck(&victim, now);
        }
        Some(Emptied::AsFarAsPossible)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stuck_twice_in_the_same_state_gives_no_room() {
        let mut state = State::default();
        let stuck = |state: &mut State, opened, dirty| {
            let live = Live { blocks: 2, dirty, kept: 1 };
            let id = SegmentId(3);
            state.set_stuck(
                &SegmentUse { id, opened, live, on_probation: false, held: false },
                Nanos(7),
            );
            state.stuck[&id].again
        };
        assert!(!stuck(&mut state, 1, 2));
        assert!(!stuck(&mut state, 1, 1), "one block has left meanwhile");
        assert!(stuck(&mut state, 1, 1));
        assert!(!stuck(&mut state, 2, 1), "another life of the segment");
    }

    #[test]
    fn packed_segments_are_tried_again_when_more_blocks_are_spare() {
        let mut state = State::default();
        let id = SegmentId(3);
        let segment =
            SegmentUse { id, opened: 1, live: Live::default(), on_probation: false, held: false };
        let mut packed_after = |guards, spare| {
            let volume = Leaving { id: VolumeId(1), takes_writes: true, pins: 0, guards, spare };
            state.set_volumes(vec![volume]);
            let packed = state.is_packed(&segment);
            state.packed.insert(id, (segment.opened, segment.live));
            packed
        };
        assert!(!packed_after(true, 1), "a new volume");
        assert!(packed_after(true, 1));
        assert!(packed_after(true, 0), "fewer blocks may leave");
        assert!(!packed_after(true, 1), "some are spare again");
        assert!(!packed_after(true, 4), "more are");
        assert!(!packed_after(false, 4), "none is guarded any more");
        assert!(packed_after(false, 4));
        assert!(packed_after(true, 4), "they are guarded again");
    }
}
