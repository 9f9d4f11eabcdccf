//! What may enter the cache, and what a lane knows of blocks that are not in it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_core::why::{
    BypassReason, EvictionReason, InvalidationReason, MissReason, RefusalReason,
};
use forebay_core::{Admission, OriginBlock};
use forebay_policy::{Ghost, Past, Recall, admits};

use crate::lane::LaneVolume;
use crate::plan::{BlockState, miss_reason};

/// What decides about the fills of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Every block may enter.
    Open,
    /// Those may that were missed before.
    Remembered(Admission),
    /// None may: the write budget is used up.
    Spent,
}

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

/// What is remembered of a block that was refused for this reason.
fn past_of(reason: RefusalReason) -> Past {
    match reason {
        RefusalReason::NotAdmitted => Past::NotAdmitted,
        RefusalReason::WriteBudget => Past::OverBudget,
        RefusalReason::NoRoom | RefusalReason::Overtaken | RefusalReason::Unsynced => {
            Past::NotFilled
        }
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct AdmissionControl<'a>(pub(crate) &'a LaneVolume);

impl AdmissionControl<'_> {
    /// What speaks for a request's going round the cache, apart from the mode.
    pub(crate) fn bypass(self, write: bool, offset: u64, len: u64) -> Option<BypassReason> {
        if self.0.is_unavailable_to(write) {
            return Some(BypassReason::Unavailable);
        }
        if self.is_sequential(write, offset, len) {
            return Some(BypassReason::Sequential);
        }
        self.is_congested().then_some(BypassReason::Congested)
    }

    /// Whether the cache device is slower than this volume puts up with.
    fn is_congested(self) -> bool {
        let [read, write] = self.0.volume.admission.thresholds();
        if read.is_zero() && write.is_zero() {
            return false;
        }
        let (latency, now) = (&self.0.store.store().latency, self.0.now());
        latency.reads.exceeds(read, now) || latency.writes.exceeds(write, now)
    }

    /// What decides about fills at this moment. `asked`: a client wants the data to be cached.
    pub(crate) fn gate(self, asked: bool) -> Gate {
        let rules = &self.0.volume.admission;
        let limit = rules.budget_bytes.load(Ordering::Relaxed);
        if limit > 0 {
            let written = self.0.volume.stats.cache_written();
            if !rules.budget.lock().allows(limit, self.0.now(), written) {
                return Gate::Spent;
            }
        }
        match rules.rule() {
            Admission::Always => Gate::Open,
            _ if asked => Gate::Open,
            rule => Gate::Remembered(rule),
        }
    }

    /// Whether a block may enter.
    ///
    /// # Errors
    /// Why not. Nothing is counted or remembered yet.
    pub(crate) fn admit(self, gate: Gate, block: OriginBlock) -> Result<(), RefusalReason> {
        match gate {
            Gate::Open => Ok(()),
            Gate::Spent => Err(RefusalReason::WriteBudget),
            Gate::Remembered(rule) => {
                let admitted =
                    admits(rule, self.with_memory(|memory, at| memory.recall(at), block));
                if admitted { Ok(()) } else { Err(RefusalReason::NotAdmitted) }
            }
        }
    }

    /// Why a write of blocks that are all absent should not bring them in, if it should not. It goes one
    /// way as a whole: the way of most of its blocks.
    pub(crate) fn bypass_of_write(self, blocks: Range<u64>) -> Option<BypassReason> {
        let gate = self.gate(false);
        let refused = |block| self.admit(gate, OriginBlock(block)).err();
        let first = blocks.clone().find_map(refused)?;
        let count = blocks.clone().filter(|block| refused(*block).is_some()).count();
        if (count as u64) * 2 <= blocks.end - blocks.start {
            return None;
        }
        Some(match first {
            RefusalReason::WriteBudget => BypassReason::WriteBudget,
            _ => BypassReason::NotAdmitted,
        })
    }

    /// Asks the cache's memory of absent blocks about one of them, or tells it something.
    fn with_memory<T>(self, ask: impl FnOnce(&Ghost, u64) -> T, block: OriginBlock) -> T {
        let number = self.0.cache.memory_number();
        let mut own = self.0.memory.borrow_mut();
        if own.number != number {
            *own = self.0.cache.memory();
        }
        ask(&own.ghost, self.0.volume.space.address(block).0)
    }

    /// Notes that a block has been filled: its past is of no interest any more.
    pub(crate) fn entered(self, gate: Gate, block: OriginBlock) {
        // Otherwise what is remembered of it serves statistics only, and will be replaced.
        if matches!(gate, Gate::Remembered(_)) {
            self.with_memory(|memory, at| memory.forget(at), block);
        }
    }

    /// Counts a block that may not enter, or could not, and remembers that unless a part of it is
    /// there.
    pub(crate) fn refused(self, block: OriginBlock, cached: bool, reason: RefusalReason) {
        self.0.stats().why.refused.count(reason, 1);
        if !cached {
            self.with_memory(|memory, at| memory.note(at, past_of(reason)), block);
        }
    }

    /// Counts why a read needed the origin.
    pub(crate) fn count_miss(self, missed: Missed, round: Option<BypassReason>) {
        let reason = miss_reason(self.0.volume.mode(), missed.state, round)
            .unwrap_or_else(|| self.recall(missed.block));
        self.0.stats().why.miss.count(reason, 1);
    }

    fn recall(self, block: OriginBlock) -> MissReason {
        let reason = match self.with_memory(|memory, at| memory.recall(at), block) {
            Recall::Past(past) => missed_since(past),
            Recall::Nothing => MissReason::Cold,
            // Of a large cache a part of the blocks is remembered, chosen by a hash; the others are
            // counted in the same proportion.
            Recall::NotKept => return self.0.last_miss.get(),
        };
        self.0.last_miss.set(reason);
        reason
    }

    /// Notes that a clean copy has left the cache to make room, or was of no use.
    pub(crate) fn evicted(self, block: OriginBlock, reason: EvictionReason) {
        self.0.stats().why.evicted.count(reason, 1);
        self.with_memory(|memory, at| memory.note(at, Past::Evicted), block);
    }

    /// Notes that a clean copy was forgotten because the origin is about to change.
    pub(crate) fn invalidated(self, block: OriginBlock, reason: InvalidationReason) {
        self.0.stats().why.invalidated.count(reason, 1);
        self.with_memory(|memory, at| memory.note(at, Past::Invalidated), block);
    }

    /// Whether a request is part of a stream that goes round the cache.
    pub(crate) fn is_sequential(self, write: bool, offset: u64, len: u64) -> bool {
        let threshold = self.0.volume.sequential_cutoff();
        if threshold == 0 {
            return false;
        }
        // A request that could not be answered at once is asked about again.
        let request = (write, offset, len);
        let (last, verdict) = self.0.last_verdict.get();
        if last == request {
            return verdict;
        }
        let verdict = self.0.cutoff.borrow_mut().observe(write, offset, len).bypass(threshold);
        self.0.last_verdict.set((request, verdict));
        verdict
    }
}
