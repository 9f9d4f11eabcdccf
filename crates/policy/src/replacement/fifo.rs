//! First in, first out: the segment that was opened first, and nothing is kept.
//!
//! The natural policy of a log, and dm-writeboost's. A block that is overwritten is appended
//! again and so starts a new life, which it would not do in a cache that overwrites in place.

use forebay_core::{ReplacementKind, SegmentId};

use super::{Age, ReinsertBudget, Replacement, SegmentInfo, entirely_dead};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Replacement for Fifo {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Fifo
    }

    fn choose_victim(&mut self, candidates: &[SegmentInfo]) -> Option<SegmentId> {
        entirely_dead(candidates).or_else(|| {
            let first = candidates.iter().min_by_key(|segment| segment.sequence_opened)?;
            Some(first.id)
        })
    }

    fn keep(&mut self, _age: Age, _now: Age, _budget: &mut ReinsertBudget) -> bool {
        false
    }
}
