//! What a lane knows of blocks that are not cached: why they are not there.

use forebay_core::OriginBlock;
use forebay_core::why::{BypassReason, EvictionReason, InvalidationReason, MissReason};
use forebay_policy::admission::ghost::{Ghost, Past, Recall};

use crate::lane::LaneVolume;
use crate::plan::{BlockState, miss_reason};

/// The first block of a read that has to come from the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    pub(crate) block: OriginBlock,
    pub(crate) state: BlockState,
}

/// Why a block is missed of which this became.
fn missed_since(past: Past) -> MissReason {
    match past {
        Past::Evicted => MissReason::Evicted,
        Past::Invalidated => MissReason::Invalidated,
        Past::NotAdmitted => MissReason::NotAdmitted,
        Past::OverBudget => MissReason::WriteBudget,
        Past::NotFilled => MissReason::NotFilled,
    }
}

impl LaneVolume {
    /// What speaks for a request's going round the cache, apart from the mode.
    pub(crate) fn round(&self, write: bool, offset: u64, len: u64) -> Option<BypassReason> {
        self.is_sequential(write, offset, len).then_some(BypassReason::Sequential)
    }

    /// Asks the cache's memory of absent blocks, or tells it something.
    fn with_memory<T>(&self, ask: impl FnOnce(&Ghost) -> T) -> T {
        let number = self.cache.memory_number();
        let mut own = self.memory.borrow_mut();
        if own.number != number {
            *own = self.cache.memory();
        }
        ask(&own.ghost)
    }

    /// Remembers what became of a block that is not cached any more, or still not.
    pub(crate) fn note(&self, block: OriginBlock, past: Past) {
        let address = self.volume.space.address(block);
        self.with_memory(|memory| memory.note(address.0, past));
    }

    /// Counts why a read needed the origin.
    pub(crate) fn count_miss(&self, missed: Missed, round: Option<BypassReason>) {
        let reason = miss_reason(self.volume.mode(), missed.state, round)
            .unwrap_or_else(|| self.recall(missed.block));
        self.stats().why.miss.count(reason, 1);
    }

    fn recall(&self, block: OriginBlock) -> MissReason {
        let address = self.volume.space.address(block);
        let reason = match self.with_memory(|memory| memory.recall(address.0)) {
            Recall::Past(past) => missed_since(past),
            Recall::Nothing => MissReason::Cold,
            // Of a large cache a part of the blocks is remembered, chosen by a hash; the others are
            // counted in the same proportion.
            Recall::NotKept => return self.last_miss.get(),
        };
        self.last_miss.set(reason);
        reason
    }

    /// Notes that a clean copy has left the cache to make room, or was of no use.
    pub(crate) fn evicted(&self, block: OriginBlock, reason: EvictionReason) {
        self.stats().why.evicted.count(reason, 1);
        self.note(block, Past::Evicted);
    }

    /// Notes that a clean copy was forgotten because the origin is about to change.
    pub(crate) fn invalidated(&self, block: OriginBlock, reason: InvalidationReason) {
        self.stats().why.invalidated.count(reason, 1);
        self.note(block, Past::Invalidated);
    }
}
