//! The replacement policy of a cache; `path::policy` tells it what happens, and asks it.
//!
//! There are two kinds of policies. [`ReplacementKind::S3Fifo`] keeps all it knows in the ranks of
//! the index ([`forebay_policy::replacement`]) and in a memory of absent blocks. The others have
//! lists ([`forebay_policy::exact`]), kept by a [`ListPolicy`]. Both only say which blocks are worth
//! keeping; room is made by `background::reclaim`.

mod list_policy;

use forebay_core::ReplacementKind;
use forebay_policy::{Ghost, Shares};
use forebay_store::Store;

pub(crate) use list_policy::ListPolicy;

/// Of the blocks that can live in the log, in percent, how many S3-FIFO keeps. With more the
/// segments that are reclaimed are fuller, and more is reinserted.
const KEPT_BY_RANK: u64 = 88;
/// And how many the others keep, which are to be as good as in a cache without a log.
const KEPT_BY_LISTS: u64 = 90;
/// All segments are alike to a policy that gives up any block: little would be gained by any of them.
const KEPT_AT_RANDOM: u64 = 60;

/// Of so many segments, how many reclaim keeps free for what comes next, with so many lanes. In the
/// others blocks can live.
pub fn segments_kept_free(segments: u32, lanes: u32) -> u32 {
    (segments / 50).max(Store::RESERVED_SEGMENTS + lanes + 2)
}

/// How a policy knows what is worth keeping.
pub(crate) enum How {
    /// By ranks, and by what it remembers of blocks that are not there.
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

    /// Whether all it knows of cached blocks is their ranks.
    pub(crate) fn goes_by_ranks(&self) -> bool {
        matches!(self.how, How::Ranks(_))
    }

    /// Bytes of memory beside the index: for cached blocks, and for what is remembered of others.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        match &self.how {
            How::Ranks(ghosts) => (0, ghosts.bytes()),
            How::Lists(lists) => lists.bytes(),
        }
    }
}
