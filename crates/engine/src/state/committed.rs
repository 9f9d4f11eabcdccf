//! The durable part of the log, so that a flush with nothing to commit does not use the cache
//! device.
//!
//! Lanes count the versions that they append for writes that end in the log. Fills do not count,
//! nor do writes through the cache: the origin has their data.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stats::Stats;

/// Number of the counted versions of each lane that are durable.
pub(crate) struct Committed(Box<[AtomicU64]>);

/// The versions that a commit that starts now covers.
pub(crate) struct Covered(Vec<u64>);

impl Committed {
    /// Returns a state in which nothing is durable.
    pub(crate) fn new(lanes: usize) -> Self {
        Committed((0..lanes).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the versions that a commit that starts now covers; `None` if all of them are durable
    /// already.
    pub(crate) fn wanted(&self, stats: &Stats) -> Option<Covered> {
        let mut lanes = self.0.iter().zip(stats.logged());
        let is_missing = lanes.any(|(done, logged)| done.load(Ordering::Acquire) < logged);
        is_missing.then(|| Covered(stats.logged().collect()))
    }

    /// Records that a commit has ended that started after `covered` was returned.
    pub(crate) fn ended(&self, covered: &Covered) {
        for (done, covered) in self.0.iter().zip(&covered.0) {
            done.fetch_max(*covered, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::bump;

    #[test]
    fn a_commit_covers_what_was_appended_before_it_began() {
        let (stats, committed) = (Stats::new(2), Committed::new(2));
        let first = committed.wanted(&stats).expect("nothing is known yet");
        bump(&stats.lane(1).logged, 1);
        let second = committed.wanted(&stats).expect("more was appended");
        committed.ended(&first);
        assert!(committed.wanted(&stats).is_some());
        committed.ended(&second);
        committed.ended(&first);
        assert!(committed.wanted(&stats).is_none());
        bump(&stats.lane(0).logged, 1);
        assert!(committed.wanted(&stats).is_some());
    }
}
