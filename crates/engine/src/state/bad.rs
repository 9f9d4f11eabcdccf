//! Dirty blocks of a volume that cannot be read back. They are tried again once in each round; a
//! round begins when an operator wants everything written back, and once a minute.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use forebay_core::OriginBlock;
use parking_lot::Mutex;

/// The retry state of a bad block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The block was found bad in the round with this number.
    In(u64),
    /// Writeback is reading the block again.
    Again,
}

/// Dirty blocks that cannot be read back.
#[derive(Default)]
pub(crate) struct BadBlocks {
    pub(crate) any: AtomicBool,
    pub(crate) bad: Mutex<BadBlockSet>,
}

#[derive(Default)]
pub(crate) struct BadBlockSet {
    pub(crate) blocks: BTreeMap<OriginBlock, Tried>,
    /// The current round. All blocks are tried again in each.
    pub(crate) round: u64,
    /// Number of blocks that were found bad in this round.
    pub(crate) tried: u64,
}

impl BadBlockSet {
    /// Records a block as bad in this round. Returns whether it is newly bad.
    pub(crate) fn add(&mut self, block: OriginBlock) -> bool {
        let now = Tried::In(self.round);
        let before = self.blocks.insert(block, now);
        self.tried += u64::from(before != Some(now));
        before.is_none()
    }

    /// Allows a block to be tried again before the next round. Returns whether it was found bad in
    /// this round.
    pub(crate) fn try_soon(&mut self, block: OriginBlock) -> bool {
        let found = Tried::In(self.round);
        let Some(tried) = self.blocks.get_mut(&block).filter(|tried| **tried == found) else {
            return false;
        };
        *tried = Tried::In(self.round.wrapping_sub(1));
        self.tried -= 1;
        true
    }

    pub(crate) fn remove(&mut self, block: OriginBlock) -> bool {
        let before = self.blocks.remove(&block);
        self.tried -= u64::from(before == Some(Tried::In(self.round)));
        before.is_some()
    }
}
