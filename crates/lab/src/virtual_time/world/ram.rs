//! The RAM tier in front of the volume, if its settings name one.

use forebay_core::Op;
use forebay_ram::TierCounts;

use crate::error::LabResult;

use super::World;

impl World {
    /// Bytes that only the RAM tier has.
    pub(super) fn deferred_bytes(&self) -> u64 {
        self.ram_counts().map_or(0, |counts| counts.deferred_bytes)
    }

    /// Returns the counts of the RAM tier, if there is one.
    pub(crate) fn ram_counts(&self) -> Option<TierCounts> {
        self.tier.as_ref().map(|tier| tier.counts())
    }

    /// Writes down what is deferred, and makes everything durable.
    pub(crate) fn flush(&mut self) -> LabResult<()> {
        self.plain(Op::Flush, 0, 0)
    }
}
