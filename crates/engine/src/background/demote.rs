//! Demotion: chooses blocks that are no longer worth keeping when the cache holds more than the
//! policy's share.
//!
//! Policies with lists choose by themselves. S3-FIFO's small queue and main queue are implemented
//! here: the end of the small queue is the oldest segment that new blocks went to, and the clock of
//! the main queue goes round the other segments (see `forebay_policy::replacement`).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use forebay_core::{SegmentId, VolumeId};
use forebay_policy::{Rank, Rule};
use forebay_store::segments::SegmentUse;

use crate::background::reclaim::live::Live;
use crate::io::policy::Policy;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};

/// Returns how many blocks are demoted and dirty, at least: a segment does not count which of its dirty blocks are kept.
///
/// They cannot make room before they are written back, and reclaim would have to do that block by block, at the
/// price of a seek each. So they take the place of kept blocks, not that of blocks that can be evicted.
fn demoted_dirty(closed: &[SegmentUse]) -> u64 {
    closed.iter().map(|one| u64::from(one.live.dirty.saturating_sub(one.live.kept))).sum()
}

/// The clock hand of the main queue: the number of the segment that it visits next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockHand(u32);

impl EngineLane {
    /// Demotes blocks until no more are kept than the policy's share, before reclaim chooses a
    /// segment by how many of its blocks are kept. `closed` is scratch space.
    pub(crate) async fn demote(
        self: &Rc<Self>,
        replacement: &Replacement,
        hand: &mut ClockHand,
        closed: &mut Vec<SegmentUse>,
    ) {
        if let How::Lists(lists) = &replacement.how {
            lists.demote(replacement.kept.most());
            return;
        }
        if let Some(auto) = &replacement.auto {
            auto.catch_up();
        }
        let rule = replacement.rule();
        let most_small = replacement.shares.small(rule.small);
        let segments = &self.cache.store.segments;
        // Space taken by dirty blocks of detached volumes cannot hold kept blocks.
        let usable = self.cache.usable_blocks();
        let detached = self.cache.detached.dirty();
        let left = usable.saturating_sub(detached);
        self.closed_segments(closed).await;
        let in_the_way = demoted_dirty(closed).saturating_sub(detached);
        let most = (replacement.kept.most() * left / usable.max(1)).saturating_sub(in_the_way);
        let staying = self.cache.sum_volumes(|it| it.pins.count().max(it.share.kept_for_good()));
        // Each step demotes blocks, lowers their use counts, or finds nothing to do; four rounds
        // bring every use count to zero.
        let mut in_vain = 0;
        for _ in 0..segments.count() * 4 {
            if in_vain > closed.len() {
                // A volume may have more kept blocks than were counted, so that some can be given up.
                let shared = self.cache.volumes().iter().any(|volume| volume.share.is_set());
                self.cache.shares_doubtful.store(shared, Ordering::Relaxed);
                return;
            }
            let kept = self.kept_blocks().await;
            let closed_kept: u64 = closed.iter().map(|it| u64::from(it.live.kept)).sum();
            // What is left may be in open segments, pinned or guarded: passing over it gains nothing.
            let doubtful = self.cache.shares_doubtful.load(Ordering::Relaxed);
            if kept <= most || closed_kept <= staying || doubtful {
                return;
            }
            let on_probation = || closed.iter().filter(|segment| segment.on_probation);
            let small: u64 = on_probation().map(|segment| u64::from(segment.live.kept)).sum();
            match on_probation().min_by_key(|segment| segment.opened) {
                Some(oldest) if small > most_small || small >= kept => {
                    self.end_probation(oldest.id, rule).await;
                }
                _ => match self.advance_clock(hand, closed).await {
                    Some(true) => in_vain = 0,
                    Some(false) => in_vain += 1,
                    None => return,
                },
            }
            self.closed_segments(closed).await;
        }
    }

    /// Ends a segment's time in the small queue: blocks in it that were not used enough are
    /// demoted.
    pub(crate) async fn end_probation(self: &Rc<Self>, segment: SegmentId, rule: &Rule) {
        let mut blocks = self.live_blocks(segment).await;
        self.end_probation_of(segment, &mut blocks, rule);
    }

    /// As [`EngineLane::end_probation`], with the segment's live blocks, which learn whether they are kept.
    pub(crate) fn end_probation_of(
        &self,
        segment: SegmentId,
        blocks: &mut BTreeMap<VolumeId, Vec<Live>>,
        rule: &Rule,
    ) {
        self.pass(blocks, |rank| rank.leaves_small(rule.promoting_uses), true);
        self.cache.store.segments.end_probation(segment);
    }

    /// Moves the clock of the main queue past a segment. Returns whether a rank has changed; `None`: there is no
    /// segment.
    async fn advance_clock(
        self: &Rc<Self>,
        hand: &mut ClockHand,
        closed: &[SegmentUse],
    ) -> Option<bool> {
        let mut kept =
            closed.iter().filter(|segment| !segment.on_probation && segment.live.kept > 0);
        let first = kept.clone().min_by_key(|segment| segment.id);
        let next = kept.find(|segment| segment.id.0 >= hand.0).or(first);
        let next = next?.id;
        *hand = ClockHand(next.0 + 1);
        let mut blocks = self.live_blocks(next).await;
        Some(self.pass(&mut blocks, Rank::passed, false))
    }

    /// Changes the ranks of blocks, and returns whether any has changed. `remember`: adds ghosts for
    /// the blocks that this demotes.
    fn pass(
        &self,
        blocks: &mut BTreeMap<VolumeId, Vec<Live>>,
        passed: impl Fn(Rank) -> Rank,
        remember: bool,
    ) -> bool {
        let store = &self.cache.store;
        let mut some = false;
        for (id, blocks) in blocks {
            let Some(space) = store.space_of(*id) else { continue };
            let volume = self.lane_volume(*id);
            let stays = |block| {
                let volume = volume.as_ref().map(|view| &view.volume);
                volume.is_some_and(|it| !it.share.may_demote() || it.pins.contain(block))
            };
            for live in blocks {
                if stays(live.block) {
                    continue;
                }
                let change = |rank| passed(Rank::from_bits(rank)).bits();
                let Some(ranks) = store.rerank(&space, live.block, live.slot, change) else {
                    continue;
                };
                some |= ranks.0 != ranks.1;
                live.kept = ranks.1 > 0;
                if let ((1.., 0), Some(view)) = (ranks, &volume) {
                    view.volume.share.demoted();
                    if remember {
                        Policy(view).remember_given_up(live.block);
                    }
                }
            }
        }
        some
    }
}
