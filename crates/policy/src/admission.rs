//! Admission: whether a block that is not cached may enter. One file per rule.
//!
//! - [`ghost`]: remembers blocks that are not cached, for admission on the second miss and for the
//!   reason of a miss
//! - [`budget`]: a daily limit on the bytes written to the cache device
//! - [`congestion`]: bypass of a cache device that is slower than its threshold
//!
//! [`crate::sequential`] handles sequential streams.
//!
//! Every rule is O(1) and allocates nothing after setup. Rules are not asked about cached blocks,
//! and none refuses dirty data, which must be stored somewhere.

pub mod budget;
pub mod congestion;
pub mod ghost;

use forebay_core::settings::Admission;

pub use budget::WriteBudget;
pub use congestion::LatencyMean;
pub use ghost::{Ghost, Past, Recall};

/// Returns whether a block that is not cached may enter under `rule`. A block that ghosts cannot
/// remember may always enter.
///
/// Second-hit admission is LARC ("Improving Flash-based Disk Cache with Lazy Adaptive Replacement",
/// MSST 2013) with a memory of a fixed size. As in LARC, an evicted block has to be missed twice
/// again: otherwise the blocks of a loop too large for the cache would enter in every round.
pub fn admits(rule: Admission, recall: Recall) -> bool {
    match rule {
        Admission::Always => true,
        Admission::Ghost(_) => !matches!(recall, Recall::Nothing | Recall::Past(Past::Evicted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_always_admits_blocks_without_an_earlier_miss() {
        let known = Past::ALL.map(Recall::Past);
        for recall in [Recall::Nothing, Recall::NotKept].into_iter().chain(known) {
            assert!(admits(Admission::Always, recall));
            for times in [1, Admission::MOST] {
                let admitted = admits(Admission::Ghost(times), recall);
                let missed = ![Recall::Nothing, Recall::Past(Past::Evicted)].contains(&recall);
                assert_eq!(admitted, missed, "{recall:?}");
            }
        }
    }
}
