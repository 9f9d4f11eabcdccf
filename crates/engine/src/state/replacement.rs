//! The replacement policy of a cache; `io::policy` feeds and queries it.
//!
//! There are two kinds of policies. [`ReplacementKind::S3Fifo`] keeps its state in the ranks in the
//! index ([`forebay_policy::replacement`]) and in ghosts. The others have lists
//! ([`forebay_policy::exact`]), kept by a [`ListPolicy`]. Both only say which blocks are worth
//! keeping; `background::reclaim` frees the space.

mod list_policy;

use forebay_core::ReplacementKind;
use forebay_policy::{Ghost, Shares};
use forebay_store::Store;

pub(crate) use list_policy::ListPolicy;

/// The percentage of the blocks that fit in the log that S3-FIFO keeps. With more, reclaimed
/// segments are fuller and more is reinserted.
const KEPT_BY_RANK: u64 = 88;
/// The same for policies with lists, which should hit as well as in a cache without a log.
const KEPT_BY_LISTS: u64 = 90;
/// The same for random replacement. It gives up blocks evenly over all segments, so reclaim would
/// gain little from any of them with a higher share.
const KEPT_AT_RANDOM: u64 = 60;

/// Returns how many of `segments` reclaim keeps free for appends of `lanes` lanes. Blocks live in
/// the others.
pub fn segments_kept_free(segments: u32, lanes: u32) -> u32 {
    (segments / 50).max(Store::RESERVED_SEGMENTS + lanes + 2)
}

/// How a policy tracks which blocks are worth keeping.
pub(crate) enum How {
    /// By ranks in the index, and ghosts.
    Ranks(Ghost),
    /// By lists.
    Lists(ListPolicy),
}

/// The replacement policy of a cache.
pub(crate) struct Replacement {
    pub(crate) kind: ReplacementKind,
    pub(crate) shares: Shares,
    pub(crate) how: How,
}

impl Replacement {
    pub(crate) fn new(kind: ReplacementKind, store: &Store) -> Self {
        let (segments, lanes) = (store.segments.count(), store.options().lanes);
        let used = segments.saturating_sub(segments_kept_free(segments, lanes as u32));
        let room = u64::from(used) * store.cells_per_segment();
        if kind == ReplacementKind::S3Fifo {
            let shares = Shares::of(room, KEPT_BY_RANK);
            return Replacement { kind, shares, how: How::Ranks(Ghost::new(shares.ghosts)) };
        }
        let random = kind == ReplacementKind::Random;
        let shares = Shares::of(room, if random { KEPT_AT_RANDOM } else { KEPT_BY_LISTS });
        let how = How::Lists(ListPolicy::new(kind, shares.kept, store, lanes));
        Replacement { kind, shares, how }
    }

    /// Returns whether the ranks are all its state about cached blocks.
    pub(crate) fn goes_by_ranks(&self) -> bool {
        matches!(self.how, How::Ranks(_))
    }

    /// Returns the memory beside the index, in bytes: for cached blocks, and for ghosts.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        match &self.how {
            How::Ranks(ghosts) => (0, ghosts.bytes()),
            How::Lists(lists) => lists.bytes(),
        }
    }
}
