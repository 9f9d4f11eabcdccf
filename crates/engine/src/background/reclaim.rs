//! Reclaim: room in the log. Of the closed segments the one is taken of which least is to be kept; its
//! clean blocks are evicted or reinserted, its dirty ones written back or reinserted, and then it
//! drains (see `store::segments`).
//!
//! No volume holds back the others. To move a block, its part of the index is enough, so dirty blocks
//! whose volume is not attached, or whose origin does not take them, are reinserted; and reclaim waits
//! for no origin for long. Such blocks are packed into as few segments as possible:
//! those have nothing to be gained, and are left alone.

//!
//! - [`live`]: the live blocks of a segment
//! - [`owner`]: whose blocks they are
//! - [`empty`]: emptying one segment

mod empty;
pub(crate) mod live;
mod owner;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Nanos, SegmentId, VolumeId};
use forebay_lane::either;
use forebay_store::segments::{Live, SegmentUse};

use crate::background::demote::ClockHand;
use crate::lane::engine::EngineLane;
use crate::state::cache::BackgroundEnding;
use crate::state::replacement::How;
use crate::state::volume::Volume;
use empty::Emptied;

/// Of a segment that is live to at most this share (in percent), dirty blocks are reinserted. Fuller
/// ones are written back, so that room is gained in any case.
const REINSERT_LIVE: u32 = 50;

/// The same for the dirty share of a segment before an origin that is slow enough, and while clients
/// wait for it. With more of it more is reinserted, and a disk is busy for no less.
const REINSERT_DIRTY: u32 = 60;
const REINSERT_WAITING: u32 = 95;

/// What it costs to reinsert a block: a read of a SATA SSD, and a part of a large write.
const REINSERTION_TIME: Duration = Duration::from_micros(35);

/// A segment that could not be emptied is left alone for so long.
const STUCK_FOR: Duration = Duration::from_secs(1);

/// What reclaim remembers from one segment to the next.
#[derive(Default)]
struct State {
    hand: ClockHand,
    closed: Vec<SegmentUse>,
    /// Segments that could not be emptied, and when that was.
    stuck: BTreeMap<SegmentId, Nanos>,
    /// Segments of which too little would be gained, as they were then, and which volumes could be
    /// written back.
    packed: BTreeMap<SegmentId, (u64, Live)>,
    writable: Vec<VolumeId>,
}

impl State {
    fn is_packed(&self, segment: &SegmentUse) -> bool {
        self.packed.get(&segment.id) == Some(&(segment.opened, segment.live))
    }
}

/// What it costs to reclaim a segment, in eighths of a block: what is kept has to be written once more.
/// What is dirty has to go to the origin some day, but seldom is as cheap as in a sweep.
/// While clients wait for room (`waits`), clean blocks are given up, and only what is dirty is in the
/// way.
///
/// Beyond `most` dirty blocks, these are not reinserted but written to the origin: for that, half a segment
/// of other blocks is worth reinserting.
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
        let emptied = !enough && engine.reclaim_one(&mut state).await;
        engine.cache.starve(!emptied && on_their_way == 0 && engine.gets_no_room(&state));
        if emptied {
            if store.segments.free_count() <= store.reserved_segments() {
                engine.make_usable().await;
            }
            if crowded {
                store.space.notify_all();
            }
        } else if on_their_way > 0 {
            // Enough is on its way, or there is nothing else: make it usable before taking more.
            engine.make_usable().await;
            // Whoever asked for room before that was answered with this; marks ask as well, and would
            // for ever where segments on their way wait for an origin.
            let wanted = store.space_wanted.listen();
            either(wanted, engine.lane.sleep(Duration::from_millis(1))).await;
        } else {
            either(wanted, engine.lane.sleep(Duration::from_millis(10))).await;
        }
    }
}

/// Up to which share of dirty blocks, in percent, those of a segment are reinserted, if a write of the
/// sweep takes the origin so long: as long as what is gained by that costs less time. The sweep brings
/// the blocks home later, in an order in which a disk takes them many times as fast as now.
fn most_reinserted(write: Duration, clients_wait: bool) -> u32 {
    let share = 1.0 - REINSERTION_TIME.as_secs_f64() / write.as_secs_f64().max(1e-9);
    let most = if clients_wait { REINSERT_WAITING } else { REINSERT_DIRTY };
    ((share * 100.0).max(0.0) as u32).min(most)
}

impl EngineLane {
    /// Makes drained segments usable again: a commit, and a checkpoint if some wait for one.
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

    /// Whether there is no room, and versions that no origin is about to get keep what there could be. Others
    /// cannot wait for them: their volume may be stopped for good.
    fn gets_no_room(&self, state: &State) -> bool {
        let store = &self.cache.store;
        let gets_some = |volume: &Arc<Volume>| {
            let takes = volume.can_be_emptied() && volume.settings().writeback_running;
            takes && store.held_versions(volume.id) > 0
        };
        store.segments.free_count() <= store.reserved_segments()
            && store.segments.with_held() > 0
            && state.stuck.is_empty()
            && !self.cache.volumes().iter().any(gets_some)
    }

    /// Empties one segment. `false`: there is none to take.
    async fn reclaim_one(self: &Rc<Self>, state: &mut State) -> bool {
        let store = &self.cache.store;
        let (_, replacement) = self.cache.replacement();
        self.demote(&replacement, &mut state.hand, &mut state.closed).await;
        let now = self.lane.now();
        state.stuck.retain(|_, since| now.since(*since) < STUCK_FOR);
        store.segments.closed(&mut state.closed);
        let kept = |segment: &SegmentUse| match &replacement.how {
            How::Ranks(_) => segment.live.kept,
            How::Lists(lists) => lists.kept_in(segment.id),
        };
        let slowest = self.cache.volumes().iter().map(|volume| volume.write_cost.mean()).max();
        let waits = self.cache.throttle.is_engaged();
        let most = most_reinserted(slowest.unwrap_or_default(), waits).max(REINSERT_LIVE);
        let capacity = store.cells_per_segment() as u32;
        let most = capacity * most / 100;
        let writable: Vec<VolumeId> = self
            .cache
            .volumes()
            .iter()
            .filter_map(|volume| volume.can_be_emptied().then_some(volume.id))
            .collect();
        if state.writable != writable {
            state.writable = writable;
            state.packed.clear();
        }
        let candidates = state
            .closed
            .iter()
            .filter(|one| !one.held && !state.stuck.contains_key(&one.id) && !state.is_packed(one));
        let least = candidates.min_by_key(|one| (cost(one, kept(one), waits, most), one.opened));
        let Some(victim) = least.copied() else {
            // What is left is held for origins that get things in order.
            self.cache.press(store.segments.with_held() > 0);
            return false;
        };
        if !store.segments.begin_reclaim(victim.id) {
            return false;
        }
        if victim.on_probation && replacement.goes_by_ranks() && store.segments.live(victim.id) > 0
        {
            // Its blocks leave the order of the log now.
            self.end_probation(victim.id).await;
        }
        for _ in 0..4 {
            if store.segments.live(victim.id) == 0 {
                break;
            }
            if self.empty(victim.id, &replacement, waits).await == Emptied::Packed {
                state.packed.insert(victim.id, (victim.opened, victim.live));
                store.end_reclaim(victim.id);
                return true;
            }
        }
        if let How::Lists(lists) = &replacement.how {
            lists.emptied(victim.id);
        }
        if !store.end_reclaim(victim.id) {
            // Its dirty blocks could not be written back, or not be read: others may do better.
            state.stuck.insert(victim.id, now);
        }
        true
    }
}
