//! A segment drawn by lot, every one with the same chance, and nothing is kept.
//!
//! Needs no history and cannot be led astray by a pattern: a loop that is a little larger than
//! the cache leaves FIFO and LRU without a hit, and this with nearly as many as can be had.

use forebay_core::{ReplacementKind, SegmentId};

use super::{Age, ReinsertBudget, Replacement, SegmentInfo, entirely_dead};

/// See the module.
#[derive(Clone, Debug)]
pub struct Random {
    rng: fastrand::Rng,
}

impl Random {
    /// Draws from `rng`.
    pub fn new(rng: fastrand::Rng) -> Self {
        Random { rng }
    }
}

impl Replacement for Random {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Random
    }

    fn choose_victim(&mut self, candidates: &[SegmentInfo]) -> Option<SegmentId> {
        entirely_dead(candidates).or_else(|| self.rng.choice(candidates).map(|segment| segment.id))
    }

    fn keep(&mut self, _age: Age, _now: Age, _budget: &mut ReinsertBudget) -> bool {
        false
    }
}
