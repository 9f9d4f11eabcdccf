//! Counts of a run: requests, bytes, latencies, and samples over time.

use forebay_core::Nanos;
use serde::{Deserialize, Serialize};

/// Buckets for each doubling.
const STEPS: u32 = 32;

/// Latencies in buckets that grow by 1/32 of a power of two: exact to about 3 %.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

fn bucket(nanos: u64) -> usize {
    let value = nanos.max(u64::from(STEPS));
    let shift = 63 - value.leading_zeros() - STEPS.trailing_zeros();
    (shift as usize) * STEPS as usize + (value >> shift) as usize - STEPS as usize
}

/// The smallest latency of a bucket, in nanoseconds.
fn lower(bucket: usize) -> u64 {
    let (shift, step) = (bucket / STEPS as usize, bucket % STEPS as usize);
    (step as u64 + u64::from(STEPS)) << shift
}

impl Histogram {
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        let bucket = bucket(nanos);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
    }

    pub(crate) fn add(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    /// The latency that this share of requests does not exceed, in nanoseconds: the middle of its
    /// bucket. 0 if there were none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut sum = 0;
        for (index, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= wanted {
                return (lower(index) + lower(index + 1)) as f64 / 2.0;
            }
        }
        0.0
    }

    /// Returns the filled buckets: lower end in microseconds, and count.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(index, count)| (lower(index) as f64 / 1000.0, *count)).collect()
    }
}

/// Requests of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) nanos: u128,
    pub(crate) latencies: Histogram,
}

impl Tally {
    #[inline]
    pub(crate) fn record(&mut self, bytes: u64, nanos: u64) {
        self.requests += 1;
        self.bytes += bytes;
        self.nanos += u128::from(nanos);
        self.latencies.record(nanos);
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        self.latencies.add(&other.latencies);
    }

    /// Mean latency in nanoseconds; 0 if there was none.
    pub(crate) fn mean(&self) -> f64 {
        self.nanos as f64 / self.requests.max(1) as f64
    }
}

/// State of a server at a moment; the counters only grow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// Requests whose blocks were all cached; with a RAM tier, blocks that were read from RAM.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) ssd_read: u64,
    pub(crate) ssd_written: u64,
    pub(crate) disk_read: u64,
    pub(crate) disk_written: u64,
    pub(crate) disk_busy: Nanos,
    /// The part of that for reads.
    pub(crate) disk_read_busy: Nanos,
    pub(crate) ssd_busy: Nanos,
    /// Present number of dirty bytes.
    pub(crate) dirty_bytes: u64,
}

/// One sample of a run, over the time since the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    /// Seconds since the run began, warm-up included.
    pub(crate) second: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) hit_ratio: f64,
    pub(crate) dirty_bytes: u64,
    /// Shares of the time.
    pub(crate) disk_busy: f64,
    pub(crate) ssd_busy: f64,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) seconds: f64,
    pub(crate) reads: Tally,
    pub(crate) writes: Tally,
    /// Bytes that were answered before and after.
    pub(crate) unmeasured_bytes: u64,
    /// Over the measured time.
    pub(crate) gauges: Gauges,
    pub(crate) series: Vec<Sample>,
}

impl Found {
    pub(crate) fn requests(&self) -> u64 {
        self.reads.requests + self.writes.requests
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reads.bytes + self.writes.bytes
    }

    /// Latencies of both directions.
    pub(crate) fn latencies(&self) -> Histogram {
        let mut all = self.reads.latencies.clone();
        all.add(&self.writes.latencies);
        all
    }

    /// Another run of the same, as if it had come right after this one.
    pub(crate) fn add(&mut self, other: &Found) {
        self.seconds += other.seconds;
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.unmeasured_bytes += other.unmeasured_bytes;
        self.gauges = self.gauges.plus(&other.gauges);
    }
}

impl Gauges {
    fn combine(&self, other: &Gauges, with: fn(u64, u64) -> u64) -> Gauges {
        Gauges {
            hits: with(self.hits, other.hits),
            misses: with(self.misses, other.misses),
            ssd_read: with(self.ssd_read, other.ssd_read),
            ssd_written: with(self.ssd_written, other.ssd_written),
            disk_read: with(self.disk_read, other.disk_read),
            disk_written: with(self.disk_written, other.disk_written),
            disk_busy: Nanos(with(self.disk_busy.0, other.disk_busy.0)),
            disk_read_busy: Nanos(with(self.disk_read_busy.0, other.disk_read_busy.0)),
            ssd_busy: Nanos(with(self.ssd_busy.0, other.ssd_busy.0)),
            dirty_bytes: self.dirty_bytes,
        }
    }

    /// Returns the counts since `earlier`.
    pub(crate) fn since(&self, earlier: &Gauges) -> Gauges {
        self.combine(earlier, u64::saturating_sub)
    }

    fn plus(&self, other: &Gauges) -> Gauges {
        self.combine(other, u64::saturating_add)
    }

    /// Hits among hits and misses, if there were any.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_is_put_into_them() {
        for nanos in [0, 1, 31, 32, 33, 63, 64, 100, 12_345, 1 << 40, (1 << 40) + 12_345] {
            let bucket = bucket(nanos);
            assert!(lower(bucket) <= nanos.max(32) && nanos < lower(bucket + 1), "{nanos}");
        }
    }

    #[test]
    fn quantiles_are_where_they_should_be() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), 0.0);
        for value in 1..=1000u64 {
            histogram.record(value * 1000);
        }
        for (share, expected) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
            let found = histogram.quantile(share);
            assert!((found / expected - 1.0_f64).abs() < 0.03, "{share}: {found}");
        }
        assert_eq!(histogram.buckets().iter().map(|(_, count)| count).sum::<u64>(), 1000);
    }
}
