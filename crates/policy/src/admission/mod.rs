//! Whether blocks that are not cached may enter the cache: one file for each rule.
//!
//! - [`ghost`]: a memory of blocks that are not cached, for admission on the second miss, and for
//!   telling why a read was a miss
//! - [`budget`]: a limit on the bytes that are written to the cache device in a day
//! - [`congestion`]: a cache device that is slower than it should be is left alone
//!
//! Sequential streams are looked after in [`crate::sequential`].
//!
//! Every rule is O(1) and allocates nothing once it is set up. None is asked about blocks that are
//! cached, and none keeps dirty data out: that has to land somewhere.

pub mod budget;
pub mod congestion;
pub mod ghost;

use forebay_core::settings::Admission;

pub use budget::WriteBudget;
pub use congestion::LatencyMean;
pub use ghost::{Ghost, Past, Recall};

/// Whether a block that is not cached may enter under `rule`, given what is remembered of it. Where
/// nothing of it could be remembered it may.
///
/// Second-hit admission is what LARC does ("Improving Flash-based Disk Cache with Lazy Adaptive
/// Replacement", MSST 2013) with a memory of a fixed size. As there, a block that was evicted has to be
/// missed twice again: what is used in a loop too large for the cache would come in each time round.
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
    fn always_admits_what_nobody_remembers_and_the_others_what_was_missed_before() {
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
