//! Whether blocks that are not cached may enter the cache, and why a request goes round it.
//!
//! Admission is asked once per miss, after the mode and the sequential cut-off have had their
//! say. [`Always`] is what bcache, dm-writeboost and EnhanceIO do: every miss enters. A filter
//! that saves SSD writes (second hit, ghost list, frequency sketch) is one more file beside this
//! one, an implementation of [`Admission`], and nothing else.

use std::fmt;

use forebay_core::{Op, OriginBlock};

/// Why a request, or a part of it, went round the cache. Each reason has a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BypassReason {
    /// It continues a stream that has run for longer than the sequential cut-off.
    Sequential,
    /// The mode sends requests of this kind to the origin.
    Mode,
    /// There was no room for it and it was better not to wait for some.
    Full,
}

impl BypassReason {
    /// Every reason, in the order in which statistics print them.
    pub const ALL: [BypassReason; 3] =
        [BypassReason::Sequential, BypassReason::Mode, BypassReason::Full];

    /// The word for this reason in statistics.
    pub fn name(self) -> &'static str {
        match self {
            BypassReason::Sequential => "sequential",
            BypassReason::Mode => "mode",
            BypassReason::Full => "full",
        }
    }

    /// Position in [`BypassReason::ALL`], for arrays of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for BypassReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What becomes of blocks that are not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdmissionVerdict {
    /// They may enter.
    Admit,
    /// The request goes round the cache.
    Bypass(BypassReason),
}

/// Decides on every miss whether its blocks may enter the cache.
///
/// One instance per volume and lane, so that no lock is needed. A call must be cheap: it is made
/// once per missing request.
pub trait Admission: Send {
    /// Whether the `blocks` blocks from `first` on, missed by an operation `op`, may enter.
    fn admit(&mut self, op: Op, first: OriginBlock, blocks: u32) -> AdmissionVerdict;
}

/// Admits every miss.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl Admission for Always {
    fn admit(&mut self, _op: Op, _first: OriginBlock, _blocks: u32) -> AdmissionVerdict {
        AdmissionVerdict::Admit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_they_are_listed() {
        for (position, reason) in BypassReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), position);
        }
    }

    #[test]
    fn always_admits_every_operation() {
        for op in [Op::Read, Op::Write, Op::Prefetch] {
            assert_eq!(Always.admit(op, OriginBlock(u64::MAX), u32::MAX), AdmissionVerdict::Admit);
        }
    }
}
