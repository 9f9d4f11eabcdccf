//! Dirty blocks of a volume that cannot be read back. They are tried again in rounds: a round begins
//! when somebody wants everything written back.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use forebay_core::OriginBlock;
use parking_lot::Mutex;

/// When a bad block is to be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// It was found to be bad in this round.
    In(u64),
    /// A write to the origin that will try it is under way.
    Again,
}

/// Dirty blocks that cannot be read back.
#[derive(Default)]
pub(crate) struct BadBlocks {
    pub(crate) any: AtomicBool,
    pub(crate) bad: Mutex<Bad>,
}

#[derive(Default)]
pub(crate) struct Bad {
    pub(crate) blocks: BTreeMap<OriginBlock, Tried>,
    /// All of them are tried again when a round begins.
    pub(crate) round: u64,
    /// Those that were found to be bad in this round.
    pub(crate) tried: u64,
}

impl Bad {
    /// Notes that a block is bad in this round; whether it was not known to be.
    pub(crate) fn add(&mut self, block: OriginBlock) -> bool {
        let now = Tried::In(self.round);
        let before = self.blocks.insert(block, now);
        self.tried += u64::from(before != Some(now));
        before.is_none()
    }

    pub(crate) fn remove(&mut self, block: OriginBlock) -> bool {
        let before = self.blocks.remove(&block);
        self.tried -= u64::from(before == Some(Tried::In(self.round)));
        before.is_some()
    }
}
