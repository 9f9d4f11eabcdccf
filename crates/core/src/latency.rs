//! Latencies counted by ranges, as metrics and heat maps show them.

use serde::{Deserialize, Serialize};

/// The upper bounds of the ranges in microseconds, in ascending order. Stable: the counts in reports are in this order.
pub const LATENCY_BOUNDS_US: [u64; 20] = [
    5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// The number of ranges: the last has no upper bound.
pub const LATENCY_RANGES: usize = LATENCY_BOUNDS_US.len() + 1;

/// How many operations took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyCounts {
    /// Operations by range, each counted once: the first took at most [`LATENCY_BOUNDS_US`]`[0]`, the last longer
    /// than all bounds.
    pub ranges: [u64; LATENCY_RANGES],
    /// The sum of their latencies in nanoseconds.
    pub sum_nanos: u64,
}

impl LatencyCounts {
    /// Returns the range of a latency.
    pub fn range_of(nanos: u64) -> usize {
        LATENCY_BOUNDS_US.partition_point(|bound| bound * 1000 < nanos)
    }

    /// Counts `operations` with one latency.
    pub fn count(&mut self, nanos: u64, operations: u64) {
        if let Some(range) = self.ranges.get_mut(Self::range_of(nanos)) {
            *range += operations;
        }
    }

    /// Returns the number of operations.
    pub fn total(&self) -> u64 {
        self.ranges.iter().sum()
    }

    /// Returns what was counted since `before`; everything if `before` is not earlier, as after a restart.
    pub fn since(&self, before: &LatencyCounts) -> LatencyCounts {
        let mut since = *self;
        for (now, then) in since.ranges.iter_mut().zip(before.ranges) {
            match now.checked_sub(then) {
                Some(more) => *now = more,
                None => return *self,
            }
        }
        since.sum_nanos = self.sum_nanos.saturating_sub(before.sum_nanos);
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_range_and_the_last_range_has_none() {
        for (range, bound) in LATENCY_BOUNDS_US.iter().enumerate() {
            assert_eq!(LatencyCounts::range_of(bound * 1000), range);
            assert_eq!(LatencyCounts::range_of(bound * 1000 + 1), range + 1);
        }
        assert_eq!(LatencyCounts::range_of(0), 0);
        let mut counts = LatencyCounts::default();
        counts.count(u64::MAX, 3);
        assert_eq!((counts.ranges[LATENCY_RANGES - 1], counts.total()), (3, 3));
    }

    #[test]
    fn a_restart_does_not_make_differences_negative() {
        let (mut before, mut now) = (LatencyCounts::default(), LatencyCounts::default());
        before.count(1, 5);
        now.count(1, 7);
        now.count(1_000_000, 1);
        assert_eq!(now.since(&before).total(), 3);
        assert_eq!(before.since(&now), before);
    }
}
