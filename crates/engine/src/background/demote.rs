//! Giving up: what is not worth keeping any more when there is no room for all of it.
//!
//! Policies with lists do this by themselves. S3-FIFO's small queue and main queue are here: the
//! oldest of the segments to which new blocks went are passed, and the clock goes round the others
//! (see `forebay_policy::replacement`).

use std::rc::Rc;

use forebay_core::SegmentId;
use forebay_policy::Rank;
use forebay_store::segments::SegmentUse;

use crate::io::policy::Policy;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};

/// Where the clock of the main queue is: the number of the segment that it comes to next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockHand(u32);

impl EngineLane {
    /// Brings what is kept down to the policy's share, before a segment is chosen by how much of it
    /// is kept. `closed` is scratch.
    pub(crate) async fn demote(
        self: &Rc<Self>,
        replacement: &Replacement,
        hand: &mut ClockHand,
        closed: &mut Vec<SegmentUse>,
    ) {
        if let How::Lists(lists) = &replacement.how {
            lists.catch_up();
            return;
        }
        let segments = &self.cache.store.segments;
        // Nobody keeps blocks where dirty ones lie that nobody asks for.
        let usable = self.cache.usable_blocks();
        let left = usable.saturating_sub(self.cache.detached.dirty());
        let most = replacement.shares.kept * left / usable.max(1);
        // Each step gives something up, or takes a use away, or there is nothing to be given up; four
        // times round takes every use away.
        for _ in 0..segments.count() * 4 {
            let (_, kept) = segments.all_live();
            if kept <= most {
                return;
            }
            segments.closed(closed);
            let on_probation = || closed.iter().filter(|segment| segment.on_probation);
            let small: u64 = on_probation().map(|segment| u64::from(segment.live.kept)).sum();
            match on_probation().min_by_key(|segment| segment.opened) {
                Some(oldest) if small > replacement.shares.small || small >= kept => {
                    self.end_probation(oldest.id).await;
                }
                _ if !self.advance_clock(hand, closed).await => return,
                _ => (),
            }
        }
    }

    /// The end of the small queue: what was not used enough in a segment is given up.
    pub(crate) async fn end_probation(self: &Rc<Self>, segment: SegmentId) {
        self.pass(segment, Rank::leaves_small, true).await;
        self.cache.store.segments.end_probation(segment);
    }

    /// Lets the clock of the main queue pass a segment. `false`: there is none.
    async fn advance_clock(self: &Rc<Self>, hand: &mut ClockHand, closed: &[SegmentUse]) -> bool {
        let mut kept =
            closed.iter().filter(|segment| !segment.on_probation && segment.live.kept > 0);
        let first = kept.clone().min_by_key(|segment| segment.id);
        let next = kept.find(|segment| segment.id.0 >= hand.0).or(first);
        let Some(next) = next else { return false };
        *hand = ClockHand(next.id.0 + 1);
        self.pass(next.id, Rank::passed, false).await;
        true
    }

    /// Gives the blocks of a segment another rank. `remember`: those that are given up.
    async fn pass(self: &Rc<Self>, segment: SegmentId, passed: fn(Rank) -> Rank, remember: bool) {
        let store = &self.cache.store;
        for (id, blocks) in self.live_blocks(segment).await {
            let Some(space) = store.space_of(id) else { continue };
            let volume = self.lane_volume(id).filter(|_| remember);
            for live in blocks {
                let change = |rank| passed(Rank::from_bits(rank)).bits();
                let ranks = store.rerank(&space, live.block, live.slot, change);
                if let (Some((1.., 0)), Some(volume)) = (ranks, &volume) {
                    Policy(volume).remember_given_up(live.block);
                }
            }
        }
    }
}
