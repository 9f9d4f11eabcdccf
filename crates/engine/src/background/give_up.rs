//! Giving up: what is not worth keeping any more when there is no room for all of it.
//!
//! Policies with lists do this by themselves. S3-FIFO's small queue and main queue are here: the
//! oldest of the segments to which new blocks went are passed, and the clock goes round the index
//! (see `forebay_policy::replacement`).

use std::ops::Range;
use std::rc::Rc;

use forebay_core::SegmentId;
use forebay_policy::Rank;
use forebay_store::segments::SegmentUse;

use crate::engine::EngineLane;
use crate::replacement::{How, Replacement};

/// Buckets of the index that the clock passes at a time, all of their entries: few, so that little more
/// is given up than has to be.
const BUCKETS: usize = 4;
/// Steps of the clock before others have their turn.
const STEPS_AT_ONCE: usize = 1024;

/// Where the clock of the main queue is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hand {
    shard: u32,
    bucket: usize,
}

impl Hand {
    /// The next buckets of its shard.
    fn buckets(self) -> Range<usize> {
        self.bucket..self.bucket + BUCKETS
    }

    fn advance(&mut self, all: usize, shards: u32) {
        self.bucket += BUCKETS;
        if self.bucket >= all {
            *self = Hand { shard: (self.shard + 1) % shards.max(1), bucket: 0 };
        }
    }
}

impl EngineLane {
    /// Brings what is kept down to the policy's share, before a segment is chosen by how much of it
    /// is kept. `closed` is scratch.
    pub(crate) async fn give_up(
        self: &Rc<Self>,
        replacement: &Replacement,
        hand: &mut Hand,
        closed: &mut Vec<SegmentUse>,
    ) {
        if let How::Lists(keeper) = &replacement.how {
            keeper.catch_up();
            return;
        }
        let segments = &self.cache.store.segments;
        // Each round gives something up, or takes a use away, or there is nothing to be given up.
        for _ in 0..segments.count() {
            let (_, kept) = segments.all_live();
            let Some(over) = kept.checked_sub(replacement.shares.kept + 1) else { return };
            segments.closed(closed);
            let young = || closed.iter().filter(|segment| segment.young);
            let small: u64 = young().map(|segment| u64::from(segment.live.kept)).sum();
            match young().min_by_key(|segment| segment.opened) {
                Some(oldest) if small > replacement.shares.small || small >= kept => {
                    self.pass_young(oldest.id).await;
                }
                _ if !self.advance_clock(hand, over + 1).await => return,
                _ => (),
            }
        }
    }

    /// The end of the small queue: what was not used enough in a segment is given up.
    pub(crate) async fn pass_young(self: &Rc<Self>, segment: SegmentId) {
        let store = &self.cache.store;
        for (id, blocks) in self.live_blocks(segment).await {
            let Some(space) = store.space_of(id) else { continue };
            let volume = self.lane_volume(id);
            for live in blocks {
                let leaves = |rank| Rank::from_bits(rank).leaves_small().bits();
                let Some((before, after)) = store.rerank(&space, live.block, live.slot, leaves)
                else {
                    continue;
                };
                if before > 0
                    && after == 0
                    && let Some(volume) = &volume
                {
                    volume.remember_given_up(live.block);
                }
            }
        }
        store.segments.grown_up(segment);
    }

    /// Lets the clock of the main queue go on until it has given up so many blocks. `false`: it has
    /// been round four times, which takes every use away, and there is nothing left.
    async fn advance_clock(&self, hand: &mut Hand, wanted: u64) -> bool {
        let store = &self.cache.store;
        let shards = store.index.shard_count();
        let (mut given_up, mut rounds) = (0, 0);
        let start = hand.shard;
        for step in 1.. {
            let all = store.pass(hand.shard, hand.buckets(), |bits| {
                let rank = Rank::from_bits(bits);
                let passed = rank.passed();
                given_up += u64::from(rank.is_kept() && !passed.is_kept());
                passed.bits()
            });
            hand.advance(all, shards);
            if given_up >= wanted {
                break;
            }
            if hand.shard == start && hand.bucket == 0 {
                rounds += 1;
                if rounds > 4 {
                    break;
                }
            }
            if step % STEPS_AT_ONCE == 0 {
                forebay_lane::yield_now().await;
            }
        }
        given_up > 0
    }
}
