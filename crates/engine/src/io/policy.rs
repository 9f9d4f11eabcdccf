//! Passes events about the blocks of a volume to the replacement policy, and its answers back.

use forebay_core::why::RefusalReason;
use forebay_core::{OriginBlock, Slot};
use forebay_policy::Rank;
use forebay_policy::exact::Key;
use forebay_store::{Class, Entry, VersionId};

use crate::lane::LaneVolume;
use crate::state::replacement::{How, ListPolicy, Replacement};

/// Feeds and queries the replacement policy for a volume's blocks.
#[derive(Clone, Copy)]
pub(crate) struct Policy<'a>(pub(crate) &'a LaneVolume);

impl Policy<'_> {
    /// Calls `ask` with the policy in force.
    fn with_replacement<T>(self, ask: impl FnOnce(&Replacement) -> T) -> T {
        let number = self.0.cache.replacement_number();
        let mut own = self.0.replacement.borrow_mut();
        if own.0 != number {
            *own = self.0.cache.replacement();
        }
        ask(&own.1)
    }

    fn with_lists(self, tell: impl FnOnce(&ListPolicy, usize)) {
        self.with_replacement(|replacement| {
            if let How::Lists(lists) = &replacement.how {
                tell(lists, usize::from(self.0.lane().id().0));
            }
        });
    }

    fn key(self, block: OriginBlock) -> Key {
        Key(self.0.volume.space.unique(block))
    }

    /// Records that a cached block has been read.
    #[inline]
    pub(crate) fn used(self, block: OriginBlock, entry: &Entry) {
        if self.0.cache.ranks() {
            let rank = Rank::from_bits(entry.rank);
            // Blocks that are used often have the highest rank already, so no update is needed.
            if rank.used() != rank {
                let space = &self.0.volume.space;
                self.0
                    .store
                    .store()
                    .rerank(space, block, entry.slot, |bits| Rank::from_bits(bits).used().bits());
            }
        } else {
            self.with_lists(|lists, lane| lists.hit(lane, entry.slot, self.key(block)));
        }
    }

    /// Returns the rank of a new version of a block. `entry`: the cached version, if any.
    #[inline]
    pub(crate) fn rank(self, block: OriginBlock, entry: Option<&Entry>) -> Rank {
        if !self.0.cache.ranks() {
            return Rank::SMALL;
        }
        if self.0.is_pinned(block) {
            return Rank::MAIN;
        }
        if let Some(entry) = entry {
            return Rank::from_bits(entry.rank).used();
        }
        let address = self.0.volume.space.unique(block);
        let comes_back = self.with_replacement(|replacement| replacement.comes_back(address));
        if comes_back { Rank::MAIN } else { Rank::SMALL }
    }

    /// Returns the rank of a block that is about to be written.
    #[inline]
    pub(crate) fn rank_of_write(self, block: OriginBlock) -> Rank {
        if !self.0.cache.ranks() {
            return Rank::SMALL;
        }
        let found = self.0.store.store().peek(&self.0.volume.space, block);
        self.rank(block, found.as_ref().map(|found| &found.entry))
    }

    /// Returns the segment class for a write of a block with this rank.
    pub(crate) fn class_of_write(self, rank: Rank) -> Class {
        if self.0.volume.is_ordered() {
            Class::Ordered
        } else if rank.is_main() {
            Class::Rewritten
        } else {
            Class::Foreground
        }
    }

    /// Returns the segment class for a fill of a block with this rank.
    pub(crate) fn class_of_fill(self, rank: Rank) -> Class {
        if rank.is_main() { Class::Settled } else { Class::Foreground }
    }

    /// Records that a new version of a block has been appended.
    #[inline]
    pub(crate) fn placed(self, block: OriginBlock, old: Option<&Entry>) {
        if !self.0.cache.ranks() {
            self.placed_in_lists(block, old);
        }
    }

    #[cold]
    fn placed_in_lists(self, block: OriginBlock, old: Option<&Entry>) {
        let Some(found) = self.0.store.store().peek(&self.0.volume.space, block) else { return };
        let (slot, old) = (found.entry.slot, old.map(|entry| entry.slot));
        self.with_lists(|lists, lane| lists.placed(lane, slot, old, self.key(block)));
    }

    /// Records that a version of a block has become clean. On an almost write-only volume a clean
    /// copy saves no reads, however often it was overwritten while dirty, so it becomes evictable.
    pub(crate) fn cleaned(self, block: OriginBlock, version: &VersionId) {
        let (volume, store) = (&self.0.volume, self.0.store.store());
        if self.0.cache.ranks() && volume.reads.share.is_only_written() && !self.0.is_pinned(block)
        {
            store.rerank(&volume.space, block, version.slot(), |_| Rank::EVICTABLE.bits());
        }
    }

    /// Records that a block has been reinserted from `old`.
    pub(crate) fn reinserted(self, block: OriginBlock, old: Slot) {
        if !self.0.cache.ranks()
            && let Some(found) = self.0.store.store().peek(&self.0.volume.space, block)
        {
            self.with_lists(|lists, lane| lists.moved(lane, found.entry.slot, old));
        }
    }

    /// Records that a block is no longer cached.
    pub(crate) fn gone(self, entry: &Entry) {
        if !self.0.cache.ranks() {
            self.with_lists(|lists, lane| lists.gone(lane, entry.slot));
        }
    }

    /// Returns whether the policy admits an absent block. Must be called once per miss; most
    /// policies admit all.
    pub(crate) fn admits(self, block: OriginBlock) -> bool {
        if self.0.cache.ranks() {
            return true;
        }
        self.with_replacement(|replacement| match &replacement.how {
            How::Ranks(_) => true,
            How::Lists(lists) => lists.admits(self.key(block)),
        })
    }

    /// Returns whether the policy admits a fill, like [`Policy::admits`]. Partly cached blocks are
    /// always admitted.
    pub(crate) fn admit_to_lists(self, block: OriginBlock) -> Result<(), RefusalReason> {
        if self.0.is_pinned(block) {
            return Ok(());
        }
        let ranks = self.0.cache.ranks();
        let present = || self.0.store.store().peek(&self.0.volume.space, block).is_some();
        if ranks || present() || self.admits(block) {
            Ok(())
        } else {
            Err(RefusalReason::NotAdmitted)
        }
    }

    /// Adds a ghost for a cached block that the policy no longer keeps.
    pub(crate) fn remember_given_up(self, block: OriginBlock) {
        let address = self.0.volume.space.unique(block);
        self.with_replacement(|replacement| replacement.remember(address));
    }
}
