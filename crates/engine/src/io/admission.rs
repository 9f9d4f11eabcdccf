//! Admission: which requests bypass the cache, which blocks may enter it, and the ghosts.

use std::ops::Range;

use forebay_core::why::{
    BypassReason, EvictionReason, InvalidationReason, MissReason, RefusalReason,
};
use forebay_core::{Admission, OriginBlock};
use forebay_policy::curve::Access;
use forebay_policy::exact::Key;
use forebay_policy::{Ghost, Past, Recall, admits};

use crate::io::streams::StreamControl;
use crate::lane::LaneVolume;
use crate::plan::{BlockState, miss_reason};

/// The fills of one request that are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Every block may enter.
    Open,
    /// Blocks that were missed before may enter, as the rule demands.
    Remembered(Admission),
    /// No block may enter: the write budget is used up.
    Spent,
}

/// The first block of a read that has to come from the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    pub(crate) block: OriginBlock,
    pub(crate) state: BlockState,
}

/// Returns the miss reason for a block with this past.
fn missed_since(past: Past) -> MissReason {
    match past {
        Past::Evicted => MissReason::Evicted,
        Past::Invalidated => MissReason::Invalidated,
        Past::NotAdmitted => MissReason::NotAdmitted,
        Past::OverBudget => MissReason::WriteBudget,
        Past::NotFilled => MissReason::NotFilled,
    }
}

/// Returns the past to remember for a block that was refused for this reason.
fn past_of(reason: RefusalReason) -> Past {
    match reason {
        RefusalReason::NotAdmitted => Past::NotAdmitted,
        RefusalReason::WriteBudget => Past::OverBudget,
        RefusalReason::NoRoom | RefusalReason::Overtaken | RefusalReason::Unsynced => {
            Past::NotFilled
        }
    }
}

/// Decides admission for a volume on one lane, counts the reasons and keeps the ghosts up to date.
#[derive(Clone, Copy)]
pub(crate) struct AdmissionControl<'a>(pub(crate) &'a LaneVolume);

impl AdmissionControl<'_> {
    /// Returns the reason why a request should bypass the cache, apart from the mode.
    pub(crate) fn bypass(self, write: bool, offset: u64, len: u64) -> Option<BypassReason> {
        if self.0.is_unavailable_to(write) {
            return Some(BypassReason::Unavailable);
        }
        let sequential = StreamControl(self.0).bypasses(write, offset, len);
        if self.0.volume.is_frozen() {
            // A write to a frozen cache updates cached blocks even under congestion, because
            // dropped blocks could not enter again.
            let congested = !write && self.is_congested();
            return Some(if congested { BypassReason::Congested } else { BypassReason::Frozen });
        }
        let volume = &self.0.volume;
        if sequential
            && let blocks = volume.blocks(offset..offset.saturating_add(len))
            && !self.0.has_pinned(&blocks)
        {
            let access = if write { Access::Write } else { Access::Read };
            volume.watched.bypass(access, Key(blocks.start)..Key(blocks.end), || self.0.now());
            return Some(BypassReason::Sequential);
        }
        self.is_congested().then_some(BypassReason::Congested)
    }

    /// Returns whether the cache device is slower than the volume's congestion thresholds allow.
    fn is_congested(self) -> bool {
        let [read, write] = self.0.volume.admission.thresholds();
        if read.is_zero() && write.is_zero() {
            return false;
        }
        let (latency, now) = (&self.0.store.store().latency, self.0.now());
        latency.reads.exceeds(read, now) || latency.writes.exceeds(write, now)
    }

    /// Returns the gate for blocks that a client reads.
    pub(crate) fn gate_of_reads(self) -> Gate {
        self.gate(self.0.volume.admission.rule_of_reads())
    }

    /// Returns the gate for blocks that a client asks to cache, or that a tier above offers after
    /// use.
    pub(crate) fn gate_on_request(self) -> Gate {
        self.gate(Admission::Always)
    }

    /// Returns the gate at this moment for blocks under `rule`.
    fn gate(self, rule: Admission) -> Gate {
        let volume = &self.0.volume;
        let written = || volume.stats.cache_written();
        match rule {
            _ if volume.admission.is_over_budget(self.0.now(), written) => Gate::Spent,
            Admission::Always => Gate::Open,
            rule => Gate::Remembered(rule),
        }
    }

    /// Returns whether a block may enter.
    ///
    /// # Errors
    /// The reason for the refusal; nothing is counted or remembered yet.
    pub(crate) fn admit(self, gate: Gate, block: OriginBlock) -> Result<(), RefusalReason> {
        match gate {
            Gate::Open => Ok(()),
            _ if self.0.is_pinned(block) => Ok(()),
            Gate::Spent => Err(RefusalReason::WriteBudget),
            Gate::Remembered(rule) => {
                let admitted =
                    admits(rule, self.with_memory(|memory, at| memory.recall(at), block));
                if admitted { Ok(()) } else { Err(RefusalReason::NotAdmitted) }
            }
        }
    }

    /// Returns why a write of absent blocks should bypass the cache, if it should. The write is
    /// admitted or refused as a whole: it is refused if more than half of its blocks are.
    pub(crate) fn bypass_of_write(self, blocks: Range<u64>) -> Option<BypassReason> {
        let gate = self.gate(self.0.volume.admission.rule());
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

    /// Reads or updates the cache's ghosts for a block.
    fn with_memory<T>(self, ask: impl FnOnce(&Ghost, u64) -> T, block: OriginBlock) -> T {
        let number = self.0.cache.memory_number();
        let mut own = self.0.memory.borrow_mut();
        if own.number != number {
            *own = self.0.cache.memory();
        }
        ask(&own.ghost, self.0.volume.space.unique(block))
    }

    /// Forgets the ghost of a block that has been filled.
    pub(crate) fn entered(self, gate: Gate, block: OriginBlock) {
        // Under other gates ghosts serve statistics only; this one will be overwritten in time.
        if matches!(gate, Gate::Remembered(_)) {
            self.with_memory(|memory, at| memory.forget(at), block);
        }
    }

    /// Counts a block that was not admitted or found no space, and remembers the refusal unless a
    /// part of the block is cached.
    pub(crate) fn refused(self, block: OriginBlock, cached: bool, reason: RefusalReason) {
        self.0.stats().why.refused.count(reason, 1);
        if !cached {
            self.with_memory(|memory, at| memory.note(at, past_of(reason)), block);
        }
    }

    /// Counts the reason why a read needed the origin.
    pub(crate) fn count_miss(self, missed: Missed, bypass: Option<BypassReason>) {
        let reason = miss_reason(self.0.volume.mode(), missed.state, bypass)
            .unwrap_or_else(|| self.recall(missed.block));
        self.0.stats().why.miss.count(reason, 1);
    }

    fn recall(self, block: OriginBlock) -> MissReason {
        let reason = match self.with_memory(|memory, at| memory.recall(at), block) {
            Recall::Past(past) => missed_since(past),
            Recall::Nothing => MissReason::Cold,
            // For a large cache only a hash-chosen part of the blocks has ghosts. The others count
            // with the last reason, so that proportions are preserved.
            Recall::NotKept => return self.0.last_miss.get(),
        };
        self.0.last_miss.set(reason);
        reason
    }

    /// Counts and remembers that a clean copy was evicted to free space, or because it was damaged.
    pub(crate) fn evicted(self, block: OriginBlock, reason: EvictionReason) {
        self.0.stats().why.evicted.count(reason, 1);
        self.with_memory(|memory, at| memory.note(at, Past::Evicted), block);
    }

    /// Counts and remembers that a clean copy was forgotten because the origin is about to change.
    pub(crate) fn invalidated(self, block: OriginBlock, reason: InvalidationReason) {
        self.0.stats().why.invalidated.count(reason, 1);
        self.with_memory(|memory, at| memory.note(at, Past::Invalidated), block);
    }
}
