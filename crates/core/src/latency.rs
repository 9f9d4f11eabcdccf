//! Latencies counted by ranges, as metrics and heat maps show them.

use serde::{Deserialize, Serialize};

/// The upper bounds of the ranges in microseconds, in ascending order. Stable: the counts in
/// reports are in this order.
pub const LATENCY_BOUNDS_US: [u64; 20] = [
    5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// The number of ranges: the last has no upper bound.
pub const LATENCY_RANGES: usize = LATENCY_BOUNDS_US.len() + 1;

/// Numbers of operations by latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyCounts {
    /// Operations by range, each counted once: the first took at most [`LATENCY_BOUNDS_US`]`[0]`,
    /// the last longer than all bounds.
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

    /// Returns the latency in microseconds that a share `share` (0 to 1) of the operations did not
    /// exceed; `None` without operations. Operations are assumed to be spread evenly over their
    /// range on a logarithmic scale; those of the last range count as its lower bound.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let total = self.total();
        let place = (total as f64 * share).ceil().max(1.0);
        let mut before = 0.0;
        for (range, count) in self.ranges.iter().map(|count| *count as f64).enumerate() {
            if count > 0.0 && before + count >= place {
                let lower = range.checked_sub(1).map_or(1, |range| LATENCY_BOUNDS_US[range]) as f64;
                let upper = LATENCY_BOUNDS_US.get(range).map_or(lower, |bound| *bound as f64);
                return Some(lower * (upper / lower).powf((place - before) / count));
            }
            before += count;
        }
        None
    }

    /// Returns the sum of these counts and `others`.
    pub fn with(mut self, others: &LatencyCounts) -> LatencyCounts {
        self.ranges.iter_mut().zip(others.ranges).for_each(|(own, other)| *own += other);
        self.sum_nanos = self.sum_nanos.saturating_add(others.sum_nanos);
        self
    }

    /// Returns the operations counted since `before`, or all if `before` is not earlier, as after a
    /// restart.
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
    fn quantiles_lie_in_the_range_of_their_operation() {
        assert_eq!(LatencyCounts::default().quantile_us(0.5), None);
        let mut counts = LatencyCounts::default();
        counts.count(150_000, 98);
        counts.count(3_000_000, 2);
        let quantile = |share| counts.quantile_us(share).expect("there are some");
        assert!((100.0..200.0).contains(&quantile(0.5)), "{}", quantile(0.5));
        assert_eq!(quantile(0.98), 200.0);
        assert!((2000.0..5000.0).contains(&quantile(0.99)), "{}", quantile(0.99));
        assert_eq!(quantile(1.0), 5000.0);
        let mut slow = LatencyCounts::default();
        slow.count(u64::MAX, 1);
        assert_eq!(slow.quantile_us(0.5), Some(10_000_000.0));
        assert_eq!(slow.with(&counts).total(), 101);
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
