//! The replacement policy of a cache; `io::policy` feeds and queries it.
//!
//! There are two kinds of policies. [`ReplacementKind::S3Fifo`] keeps its state in the ranks in the
//! index ([`forebay_policy::replacement`]) and in ghosts. The others have lists
//! ([`forebay_policy::exact`]), kept by a [`ListPolicy`]. Both only say which blocks are worth
//! keeping; `background::reclaim` frees the space.

mod kept;
mod list_policy;

use forebay_core::ReplacementKind;
use forebay_policy::{GhostGroups, S3FifoParameters, Shares};
use forebay_store::Store;

use kept::Kept;
pub(crate) use list_policy::ListPolicy;

/// Returns how many of `segments` reclaim keeps free for the appends of `lanes` lanes. The others
/// hold blocks.
pub fn segments_kept_free(segments: u32, lanes: u32) -> u32 {
    (segments / 50).max(Store::RESERVED_SEGMENTS + lanes + 2)
}

/// Returns the number of blocks that a cache may hold.
pub(crate) fn room(store: &Store) -> u64 {
    let (segments, lanes) = (store.segments.count(), store.options().lanes);
    let used = segments.saturating_sub(segments_kept_free(segments, lanes as u32));
    u64::from(used) * store.cells_per_segment()
}

/// The method by which a policy tracks the blocks that are worth keeping.
pub(crate) enum How {
    /// By ranks in the index, and ghosts.
    Ranks(GhostGroups),
    /// By lists.
    Lists(ListPolicy),
}

/// The replacement policy of a cache.
pub(crate) struct Replacement {
    pub(crate) kind: ReplacementKind,
    pub(crate) shares: Shares,
    pub(crate) kept: Kept,
    pub(crate) how: How,
}

impl Replacement {
    pub(crate) fn new(kind: ReplacementKind, store: &Store) -> Self {
        let (room, lanes) = (room(store), store.options().lanes);
        let shares = Shares::of(room, kind);
        let kept = Kept::new(shares);
        let how = match kind {
            ReplacementKind::S3Fifo => How::Ranks(GhostGroups::new(shares.room)),
            kind => How::Lists(ListPolicy::new(kind, shares.kept, store, lanes)),
        };
        Replacement { kind, shares, kept, how }
    }

    /// Returns whether the policy's state about cached blocks consists only of ranks.
    pub(crate) fn goes_by_ranks(&self) -> bool {
        matches!(self.how, How::Ranks(_))
    }

    /// Returns the rule that ranks follow at the moment.
    pub(crate) fn rule(&self) -> &'static S3FifoParameters {
        match &self.how {
            How::Ranks(ghosts) if ghosts.are_single() => {
                &S3FifoParameters::S3_FIFO_OF_SINGLE_BLOCKS
            }
            _ => &S3FifoParameters::S3_FIFO,
        }
    }

    /// Adds a ghost for a block that has left the small queue.
    pub(crate) fn remember(&self, address: u64) {
        if let How::Ranks(ghosts) = &self.how {
            ghosts.note(address);
        }
    }

    /// Returns whether a ghost shows that an absent block returns soon enough for the main queue,
    /// and removes the ghost then.
    pub(crate) fn comes_back(&self, address: u64) -> bool {
        let How::Ranks(ghosts) = &self.how else { return false };
        let comes_back = ghosts.recall(address);
        if comes_back {
            ghosts.forget(address);
        }
        comes_back
    }

    /// Returns the memory in addition to the index, in bytes: for cached blocks, and for ghosts.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        match &self.how {
            How::Ranks(ghosts) => (0, ghosts.bytes()),
            How::Lists(lists) => lists.bytes(),
        }
    }
}
