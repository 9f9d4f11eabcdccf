//! Demotion: chooses blocks that are no longer worth keeping when the cache holds more than the
//! policy's share.
//!
//! Policies with lists choose blocks themselves. S3-FIFO's small queue and main queue are
//! implemented here: the end of the small queue is the oldest segment to which new blocks were
//! appended, and the clock of the main queue visits the other segments in turn (see
//! `forebay_policy::replacement`).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use forebay_core::{SegmentId, VolumeId};
use forebay_lane::turns;
use forebay_policy::{Rank, S3FifoParameters};
use forebay_store::segments::SegmentUse;

use crate::background::live::LiveBlock;
use crate::io::policy::Policy;
use crate::lane::engine::EngineLane;
use crate::state::replacement::{How, Replacement};

/// The clock hand of the main queue: the number of the segment that it visits next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockHand(u32);

/// The small queue and the main queue, from a pass over the closed segments.
#[derive(Default)]
struct QueueSizes {
    /// Number of blocks that the policy keeps.
    kept: u64,
    /// Kept blocks in the small queue.
    small: u64,
    /// Lower bound of the blocks that are demoted and dirty: a segment does not count which of its
    /// dirty blocks are kept.
    ///
    /// They make no room before they are written back, and reclaim would have to do that block by
    /// block, with a seek each. So they reduce the number of kept blocks, not that of evictable
    /// ones.
    demoted_dirty: u64,
    /// The oldest segment of the small queue, with its position in the order of opening.
    oldest: Option<(u64, SegmentId)>,
    /// The first segment of the main queue, and the first one that the hand has not passed.
    first: Option<SegmentId>,
    next: Option<SegmentId>,
}

impl QueueSizes {
    /// Examines segments in the order of their numbers. Other tasks of the lane run meanwhile.
    async fn of(closed: &[SegmentUse], hand: ClockHand) -> Self {
        let (mut this, mut done) = (QueueSizes::default(), 0);
        for segment in closed {
            let kept = u64::from(segment.live.kept);
            this.kept += kept;
            this.demoted_dirty += u64::from(segment.live.dirty.saturating_sub(segment.live.kept));
            if segment.on_probation {
                this.small += kept;
                let own = (segment.opened, segment.id);
                this.oldest = Some(this.oldest.map_or(own, |oldest| oldest.min(own)));
            } else if kept > 0 {
                this.first = this.first.or(Some(segment.id));
                this.next = this.next.or(Some(segment.id).filter(|id| id.0 >= hand.0));
            }
            turns::rest(&mut done).await;
        }
        this
    }
}

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
        let rule = replacement.rule();
        let most_small = replacement.shares.small(rule.small);
        let segments = &self.cache.store.segments;
        // Space taken by dirty blocks of detached volumes cannot hold kept blocks.
        let usable = self.cache.usable_blocks();
        let detached = self.cache.detached.dirty();
        let left = usable.saturating_sub(detached);
        self.closed_segments(closed).await;
        let mut queues = QueueSizes::of(closed, *hand).await;
        let in_the_way = queues.demoted_dirty.saturating_sub(detached);
        let most = (replacement.kept.most() * left / usable.max(1)).saturating_sub(in_the_way);
        let staying = self.cache.sum_volumes(|it| it.pins.count().max(it.share.kept_for_good()));
        // Each step demotes blocks, lowers their use counts, or finds nothing to do; four rounds
        // bring every use count to zero.
        let mut in_vain = 0;
        for _ in 0..segments.count() * 4 {
            if in_vain > closed.len() {
                // A volume may have more kept blocks than were counted, so that some may be
                // demoted.
                let shared = self.cache.volumes().iter().any(|volume| volume.share.is_set());
                self.cache.shares_doubtful.store(shared, Ordering::Relaxed);
                return;
            }
            let kept = self.kept_blocks().await;
            // The remaining blocks may be in open segments, pinned or guarded: another pass would
            // gain nothing.
            let doubtful = self.cache.shares_doubtful.load(Ordering::Relaxed);
            if kept <= most || queues.kept <= staying || doubtful {
                return;
            }
            match queues.oldest {
                Some((_, oldest)) if queues.small > most_small || queues.small >= kept => {
                    self.end_probation(oldest, rule).await;
                }
                _ => match self.advance_clock(hand, &queues).await {
                    Some(true) => in_vain = 0,
                    Some(false) => in_vain += 1,
                    None => return,
                },
            }
            self.closed_segments(closed).await;
            queues = QueueSizes::of(closed, *hand).await;
        }
    }

    /// Ends a segment's time in the small queue: blocks in it that were not used enough are
    /// demoted.
    pub(crate) async fn end_probation(
        self: &Rc<Self>,
        segment: SegmentId,
        rule: &S3FifoParameters,
    ) {
        let mut blocks = self.live_blocks(segment).await;
        self.end_probation_of(segment, &mut blocks, rule);
    }

    /// Ends a segment's time like [`EngineLane::end_probation`], given the segment's live blocks,
    /// whose `kept` it updates.
    pub(crate) fn end_probation_of(
        &self,
        segment: SegmentId,
        blocks: &mut BTreeMap<VolumeId, Vec<LiveBlock>>,
        rule: &S3FifoParameters,
    ) {
        self.pass(blocks, |rank| rank.leaves_small(rule.promoting_uses), true);
        self.cache.store.segments.end_probation(segment);
    }

    /// Moves the clock of the main queue past a segment. Returns whether a rank has changed, or
    /// `None` if there is no segment.
    async fn advance_clock(
        self: &Rc<Self>,
        hand: &mut ClockHand,
        queues: &QueueSizes,
    ) -> Option<bool> {
        let next = queues.next.or(queues.first)?;
        *hand = ClockHand(next.0 + 1);
        let mut blocks = self.live_blocks(next).await;
        Some(self.pass(&mut blocks, Rank::passed, false))
    }

    /// Changes the ranks of blocks, and returns whether any has changed. `remember`: adds ghosts
    /// for the blocks that this demotes.
    fn pass(
        &self,
        blocks: &mut BTreeMap<VolumeId, Vec<LiveBlock>>,
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use forebay_lane::yield_now;
    use forebay_store::segments::Live;
    use forebay_testkit::LaneWorld;

    use super::*;

    #[test]
    fn the_queues_are_looked_at_in_turns() {
        let closed: Vec<SegmentUse> = (0..3 * turns::AT_ONCE as u32 + 5)
            .map(|number| SegmentUse {
                id: SegmentId(number),
                opened: u64::from(number ^ 4),
                live: Live { blocks: 9, dirty: 5, kept: if number % 10 < 2 { 0 } else { 3 } },
                on_probation: number % 2 == 0,
                held: false,
            })
            .collect();
        let count = closed.len() as u64;
        let kept_of = |all: &[SegmentUse], probation: &[bool]| -> u64 {
            let some = all.iter().filter(|one| probation.contains(&one.on_probation));
            some.map(|one| u64::from(one.live.kept)).sum()
        };
        let (kept, small) = (kept_of(&closed, &[true, false]), kept_of(&closed, &[true]));
        let (world, turns, ended) =
            (LaneWorld::new(), Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (counted, end) = (turns.clone(), ended.clone());
        world.lane.spawn(async move {
            while !end.get() {
                counted.set(counted.get() + 1);
                yield_now().await;
            }
        });
        for (hand, next) in [(0, Some(3)), (4, Some(5)), (40, Some(43)), (u32::MAX, None)] {
            let (closed, before) = (closed.clone(), turns.get());
            let queues =
                world.block_on(async move { QueueSizes::of(&closed, ClockHand(hand)).await });
            assert_eq!((queues.first, queues.next), (Some(SegmentId(3)), next.map(SegmentId)));
            assert_eq!(queues.oldest, Some((0, SegmentId(4))));
            assert_eq!((queues.kept, queues.small), (kept, small));
            assert_eq!(queues.demoted_dirty, count * 5 - kept);
            assert!(turns.get() - before >= 3, "{}", turns.get() - before);
        }
        ended.set(true);
    }
}
