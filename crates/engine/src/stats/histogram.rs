//! A histogram that one lane writes and any thread reads, without a lock.
//!
//! Latencies are counted in ranges whose width is a 32nd of the latency, from 64 ns to 18 minutes;
//! a reported quantile is the middle of its range, and so at most 1.6 % off.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::LatencyCounts;

use super::{LatencySummary, bump};

/// Latencies are counted in units of 64 ns.
const UNIT_BITS: u32 = 6;
/// Number of ranges per power of two, as a power of two.
const PART_BITS: u32 = 5;
const PARTS: u64 = 1 << PART_BITS;
/// Number of powers of two above the first [`PARTS`] units, each of which has a range of its own.
const POWERS: u64 = 29;
const RANGES: usize = (PARTS * (POWERS + 1)) as usize;

/// The latencies of one kind of request on one lane.
#[derive(Debug)]
pub(super) struct Histogram {
    ranges: Box<[AtomicU64]>,
    sum: AtomicU64,
    longest: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            ranges: (0..RANGES).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }
}

fn range_of(nanos: u64) -> usize {
    let units = nanos >> UNIT_BITS;
    if units < PARTS {
        return units as usize;
    }
    let shift = units.ilog2() - PART_BITS;
    let place = (u64::from(shift) << PART_BITS) + (units >> shift);
    (place as usize).min(RANGES - 1)
}

/// Returns the first latency of a range in nanoseconds.
fn start_of(range: usize) -> u64 {
    let range = range as u64;
    let shift = (range >> PART_BITS).saturating_sub(1);
    let units = if range < PARTS { range } else { (PARTS + (range & (PARTS - 1))) << shift };
    units << UNIT_BITS
}

impl Histogram {
    /// Counts `requests` requests with one latency.
    pub(super) fn record(&self, nanos: u64, requests: u64) {
        if let Some(range) = self.ranges.get(range_of(nanos)) {
            bump(range, requests);
        }
        bump(&self.sum, nanos.saturating_mul(requests));
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.store(nanos, Ordering::Relaxed);
        }
    }
}

/// Returns the latencies of several lanes together.
pub(super) fn together<'a>(lanes: impl Iterator<Item = &'a Histogram>) -> LatencySummary {
    let (mut ranges, mut counts) = ([0u64; RANGES], LatencyCounts::default());
    let mut longest = 0;
    for lane in lanes {
        for (sum, own) in ranges.iter_mut().zip(&lane.ranges) {
            *sum += own.load(Ordering::Relaxed);
        }
        counts.sum_nanos = counts.sum_nanos.wrapping_add(lane.sum.load(Ordering::Relaxed));
        longest = longest.max(lane.longest.load(Ordering::Relaxed));
    }
    let middle = |range: usize| u64::midpoint(start_of(range), start_of(range + 1));
    for (range, &requests) in ranges.iter().enumerate().filter(|(_, requests)| **requests > 0) {
        counts.count(middle(range), requests);
    }
    let count = counts.total();
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    let quantile = |share: f64| {
        let place = ((count as f64 * share).ceil() as u64).max(1);
        let mut before = 0;
        let found = ranges.iter().position(|requests| {
            before += requests;
            before >= place
        });
        found.map_or(0.0, |range| micros(middle(range).min(longest)))
    };
    LatencySummary {
        count,
        mean_us: micros(counts.sum_nanos) / (count.max(1) as f64),
        p50_us: quantile(0.50),
        p99_us: quantile(0.99),
        max_us: micros(longest),
        counts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_each_other_without_a_gap() {
        for range in 0..RANGES - 1 {
            let (start, next) = (start_of(range), start_of(range + 1));
            assert_eq!((range_of(start), range_of(next - 1)), (range, range), "{range}");
            let width = next - start;
            assert!(width == 64 || width * PARTS <= start, "range {range} is too wide");
        }
        assert_eq!(range_of(u64::MAX), RANGES - 1);
        assert!(start_of(RANGES - 1) > 1_000_000_000_000, "1000 s have a range");
    }

    #[test]
    fn quantiles_are_at_most_2_percent_off() {
        let histogram = Histogram::default();
        (1..=10_000u64).for_each(|number| histogram.record(number * 1000, 1));
        let all = together([&histogram].into_iter());
        for (found, right) in [(all.p50_us, 5000.0), (all.p99_us, 9900.0), (all.mean_us, 5000.5)] {
            assert!((found - right).abs() < right * 0.02, "{found} instead of {right}");
        }
        assert_eq!((all.count, all.max_us), (10_000, 10_000.0));
        let none = together([&Histogram::default()].into_iter());
        assert_eq!((none.count, none.p99_us, none.mean_us), (0, 0.0, 0.0));
    }
}
