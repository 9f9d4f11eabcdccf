//! The dirty blocks of a volume that cannot be read back.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_core::OriginBlock;

use crate::state::bad::Tried;
use crate::state::volume::Volume;

impl Volume {
    /// Records that a dirty block cannot be read back.
    pub(crate) fn add_bad(&self, block: OriginBlock) {
        // The block counts as only one of the two; otherwise the number of blocks that can be
        // written would be too low.
        self.remove_refused(block);
        let mut bad = self.bad.bad.lock();
        self.bad.any.store(true, Ordering::Relaxed);
        if bad.add(block) {
            tracing::error!(
                volume = self.name,
                block = block.0,
                "a dirty block cannot be read back: its addresses give I/O errors until they are overwritten or discarded"
            );
        }
    }

    pub(crate) fn is_bad(&self, block: OriginBlock) -> bool {
        self.has_bad() && self.bad.bad.lock().blocks.contains_key(&block)
    }

    /// Returns whether a block failed in this round, so that it should not be tried now.
    pub(crate) fn is_given_up(&self, block: OriginBlock) -> bool {
        let unreadable = || {
            let bad = self.bad.bad.lock();
            bad.blocks.get(&block) == Some(&Tried::In(bad.round))
        };
        (self.has_bad() && unreadable()) || self.is_refused_now(block)
    }

    /// Returns whether any dirty block is known to be bad.
    #[inline]
    pub(crate) fn has_bad(&self) -> bool {
        self.bad.any.load(Ordering::Relaxed)
    }

    /// Begins a round: all bad and refused blocks are tried once more.
    pub(crate) fn try_bad_again(&self) {
        self.try_refused_again();
        self.try_unreadable_again();
    }

    /// Begins a round like [`Volume::try_bad_again`], for blocks that cannot be read back.
    pub(crate) fn try_unreadable_again(&self) {
        if self.has_bad() {
            let mut bad = self.bad.bad.lock();
            bad.round += 1;
            bad.tried = 0;
            drop(bad);
            self.writeback.wanted.notify_all();
        }
    }

    /// Returns the bad blocks that have not been tried in this round, for the caller to try.
    pub(crate) fn bad_to_try(&self) -> Vec<OriginBlock> {
        if !self.has_bad() {
            return Vec::new();
        }
        let bad = &mut *self.bad.bad.lock();
        let mut blocks = Vec::new();
        for (block, tried) in &mut bad.blocks {
            if matches!(*tried, Tried::In(round) if round != bad.round) {
                *tried = Tried::Again;
                blocks.push(*block);
            }
        }
        blocks
    }

    /// Records that a block has been read, so that it is no longer bad. A block of an ordered
    /// volume stays listed until it is clean, because ordered writeback writes the blocks of its
    /// groups, and this block is in none.
    pub(crate) fn reads_again(&self, block: OriginBlock) {
        let was_bad = match self.is_ordered() {
            true => self.bad.bad.lock().try_soon(block),
            false => self.remove_bad(block),
        };
        if was_bad {
            tracing::info!(volume = self.name, block = block.0, "a dirty block can be read again");
            self.writeback.wanted.notify_all();
        }
    }

    #[inline]
    pub(crate) fn remove_bad(&self, block: OriginBlock) -> bool {
        if !self.has_bad() {
            return false;
        }
        let mut bad = self.bad.bad.lock();
        let removed = bad.remove(block);
        self.bad.any.store(!bad.blocks.is_empty(), Ordering::Relaxed);
        removed
    }

    /// Returns the dirty blocks that cannot be read back, as byte ranges of the origin.
    pub fn bad_ranges(&self) -> Vec<Range<u64>> {
        self.bad.bad.lock().blocks.keys().map(|block| self.block_range(*block)).collect()
    }

    /// Returns the bad blocks from `first` up to `end`.
    pub(crate) fn bad_within(&self, first: OriginBlock, end: OriginBlock) -> Vec<OriginBlock> {
        self.bad.bad.lock().blocks.range(first..end).map(|(block, _)| *block).collect()
    }

    /// Returns the number of dirty blocks that could not be read, or were refused by the origin, in
    /// this round, so that waiting for them is pointless.
    pub(crate) fn bad_count(&self) -> u64 {
        self.unreadable_count() + self.refused_count()
    }

    /// Returns how many dirty blocks could not be read back in this round.
    pub(crate) fn unreadable_count(&self) -> u64 {
        if self.has_bad() { self.bad.bad.lock().tried } else { 0 }
    }
}
