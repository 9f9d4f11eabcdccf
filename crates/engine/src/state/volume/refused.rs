//! The dirty blocks of a volume that its origin refuses.

use std::ops::Range;

use forebay_core::{Nanos, OriginBlock};
use forebay_device::DeviceError;
use forebay_store::planted::{self, PlantedBug};

use crate::error::WritebackError;
use crate::state::bad::Tried;
use crate::state::volume::Volume;

/// Maximum number of ranges that an error names.
const NAMED: usize = 3;

impl Volume {
    /// Records that the origin refuses a dirty block that was written alone. Returns `false` if too
    /// many are listed already.
    pub(crate) fn refuses(&self, block: OriginBlock, error: &DeviceError, now: Nanos) -> bool {
        if planted::has(PlantedBug::RefusalForgotten) {
            return true;
        }
        // The block was just read, so it is not bad any more; it counts as only one of the two.
        self.remove_bad(block);
        let listed = self.refused.with(|list| {
            if !list.has_room() {
                return None;
            }
            list.error = Some(error.clone());
            list.plan(now);
            Some(list.bad.add(block))
        });
        if listed == Some(true) {
            let Range { start, end } = self.block_range(block);
            tracing::error!(
                volume = self.name,
                offset = start,
                bytes = end - start,
                %error,
                "the origin does not take a dirty block: it stays in the cache and is tried again"
            );
        }
        if listed.is_some() {
            self.writeback.progress.notify_all();
        }
        listed.is_some()
    }

    /// Records that the origin has accepted a write.
    pub(crate) fn origin_takes(&self) {
        if self.refused.succeeded() {
            // Blocks that were refused while the origin accepted nothing may be writable.
            self.try_refused_again();
        }
    }

    /// Returns whether any dirty block is refused by the origin.
    #[inline]
    pub(crate) fn has_refused(&self) -> bool {
        self.refused.any()
    }

    /// Returns whether the origin refuses this dirty block.
    pub(crate) fn is_refused(&self, block: OriginBlock) -> bool {
        self.has_refused() && self.refused.with(|list| list.bad.blocks.contains_key(&block))
    }

    /// Returns whether the origin has refused this dirty block in this round.
    pub(crate) fn is_refused_now(&self, block: OriginBlock) -> bool {
        self.has_refused()
            && self
                .refused
                .with(|list| list.bad.blocks.get(&block) == Some(&Tried::In(list.bad.round)))
    }

    /// Returns how many dirty blocks the origin has refused in this round.
    pub(crate) fn refused_count(&self) -> u64 {
        if self.has_refused() { self.refused.with(|list| list.bad.tried) } else { 0 }
    }

    /// Returns how many dirty blocks the origin refuses.
    pub(crate) fn all_refused(&self) -> u64 {
        if self.has_refused() { self.refused.with(|list| list.bad.blocks.len() as u64) } else { 0 }
    }

    /// Returns the number of dirty blocks that writeback need not wait for, because the origin
    /// refuses them and accepts others.
    pub(crate) fn passed_over(&self) -> u64 {
        // An origin that accepts nothing refuses each block sooner or later, and none of them was
        // passed over.
        if self.refused.takes_nothing() { 0 } else { self.all_refused() }
    }

    /// Begins a round: all refused blocks are tried once more.
    pub(crate) fn try_refused_again(&self) {
        if self.has_refused() {
            self.refused.with(|list| list.begin_round());
            self.writeback.wanted.notify_all();
        }
    }

    /// Begins a round if it is time for the next attempt.
    pub(crate) fn try_refused_in_time(&self, now: Nanos) {
        if self.has_refused() && self.refused.with(|list| list.is_due(now)) {
            self.try_refused_again();
        }
    }

    /// Records that a block is no longer dirty, or that the origin has accepted it. In the latter
    /// case it may stay dirty until the origin is synced, or because others of its ordered group
    /// are refused.
    #[inline]
    pub(crate) fn remove_refused(&self, block: OriginBlock) {
        if self.has_refused() {
            let removed = self.refused.with(|list| {
                let removed = list.bad.remove(block);
                list.rest();
                removed
            });
            if removed {
                let offset = self.block_range(block).start;
                tracing::info!(volume = self.name, offset, "the origin no longer refuses a block");
            }
        }
    }

    /// Returns the dirty blocks that the origin refuses, as byte ranges of it in ascending order.
    pub fn refused_ranges(&self) -> Vec<Range<u64>> {
        if !self.has_refused() {
            return Vec::new();
        }
        let blocks: Vec<_> = self.refused.with(|list| list.bad.blocks.keys().copied().collect());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in blocks {
            let range = self.block_range(block);
            match ranges.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => ranges.push(range),
            }
        }
        ranges
    }

    /// Returns the error that names the refused blocks, if there are any.
    pub(crate) fn refusal(&self) -> Option<WritebackError> {
        let ranges = self.refused_ranges();
        let error = self.refused.with(|list| list.error.clone())?;
        let first = ranges.iter().take(NAMED);
        let mut named: Vec<String> = first
            .map(|range| format!("{} bytes at {}", range.end - range.start, range.start))
            .collect();
        if named.is_empty() {
            return None;
        }
        match ranges.len().saturating_sub(NAMED) {
            0 => (),
            1 => named.push("1 more range".to_owned()),
            more => named.push(format!("{more} more ranges")),
        }
        Some(WritebackError::Refused { ranges: named.join(", ").into(), error })
    }
}
