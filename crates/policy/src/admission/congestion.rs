//! Tracks the latency of the cache device. A device above its threshold is bypassed for a while,
//! because it is then no faster than the origin.
//!
//! The idea and the usual thresholds, 2 ms for reads and 20 ms for writes, are bcache's
//! (`congested_read_threshold_us`, `congested_write_threshold_us`). bcache bypasses ever shorter
//! streams the longer it is congested; here a mean over operations is compared with a threshold.
//!
//! While reads of clean data go to the origin instead, the cache device's read latency is not
//! measured. So the mean halves every [`HALVES`], until some requests are tried on the cache device
//! again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;

/// The latest operation has a weight of one part in this many.
const WEIGHT: u64 = 8;

/// The mean halves in this time if there are no operations.
pub const HALVES: Duration = Duration::from_millis(128);

/// A moving mean of the latency of one kind of operation, weighted towards recent ones. Lanes share
/// it without a lock; of two operations noted at the same moment one may be lost.
#[derive(Debug, Default)]
pub struct LatencyMean {
    nanos: AtomicU64,
    /// When the last operation ended.
    at: AtomicU64,
}

impl LatencyMean {
    /// Adds an operation that took `took` and ended at `now`.
    pub fn note(&self, now: Nanos, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let (mean, halvings) = self.look(now);
        // The old mean loses weight with age: after a long pause only the latest operation counts.
        let old = mean.abs_diff(took) / WEIGHT * (WEIGHT - 1);
        let old = old.checked_shr(halvings).unwrap_or(0);
        let mean = if mean > took { took.saturating_add(old) } else { took - old };
        self.nanos.store(mean, Ordering::Relaxed);
        self.at.store(now.0, Ordering::Relaxed);
    }

    /// Returns the mean, decayed to `now`.
    pub fn at(&self, now: Nanos) -> Duration {
        let (mean, halvings) = self.look(now);
        Duration::from_nanos(mean.checked_shr(halvings).unwrap_or(0))
    }

    /// Whether the mean exceeds `threshold`; a zero threshold is never exceeded.
    pub fn exceeds(&self, threshold: Duration, now: Nanos) -> bool {
        !threshold.is_zero() && self.at(now) > threshold
    }

    fn look(&self, now: Nanos) -> (u64, u32) {
        let since = now.since(Nanos(self.at.load(Ordering::Relaxed)));
        let halvings = u32::try_from(since.as_nanos() / HALVES.as_nanos()).unwrap_or(u32::MAX);
        (self.nanos.load(Ordering::Relaxed), halvings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const US: Duration = Duration::from_micros(1);

    fn close(mean: Duration, expected: Duration) -> bool {
        mean.abs_diff(expected) <= expected / 50 + US
    }

    #[test]
    fn a_steady_device_has_its_own_latency_as_the_mean() {
        for micros in [1u32, 80, 5_000, 1_000_000] {
            let mean = LatencyMean::default();
            let mut now = Nanos(7);
            for _ in 0..60 {
                now = now + US * micros;
                mean.note(now, US * micros);
            }
            // Operations seconds apart: only the latest one counts.
            assert!(close(mean.at(now), US * micros), "{micros}: {:?}", mean.at(now));
        }
    }

    #[test]
    fn only_several_slow_operations_pass_the_threshold() {
        for (slow, least, most) in [(3, 5, 12), (20, 1, 2), (1, usize::MAX, usize::MAX)] {
            let mean = LatencyMean::default();
            let mut now = Nanos(0);
            for _ in 0..100 {
                now = now + US * 80;
                mean.note(now, US * 80);
            }
            assert!(!mean.exceeds(ms(2), now));
            let passed = (1..100).find(|_| {
                now = now + US * 80;
                mean.note(now, ms(slow));
                mean.exceeds(ms(2), now)
            });
            let passed = passed.unwrap_or(usize::MAX);
            assert!((least..=most).contains(&passed), "{slow} ms: after {passed}");
        }
    }

    #[test]
    fn no_threshold_is_never_passed() {
        let mean = LatencyMean::default();
        mean.note(Nanos(5), Duration::from_secs(100));
        assert!(!mean.exceeds(Duration::ZERO, Nanos(5)));
        assert!(mean.exceeds(ms(2), Nanos(5)));
    }

    #[test]
    fn an_avoided_device_is_tried_again_and_judged_anew() {
        let mean = LatencyMean::default();
        let mut now = Nanos(0);
        for _ in 0..60 {
            now = now + ms(16);
            mean.note(now, ms(16));
        }
        assert!(mean.exceeds(ms(2), now));
        let pause = (1..).find(|step| !mean.exceeds(ms(2), now + ms(10) * *step));
        assert!(pause.is_some_and(|step| (38..60).contains(&step)), "{pause:?}");
        now = now + Duration::from_secs(1);
        // The device has recovered: one fast operation ends the congestion.
        mean.note(now, US * 80);
        assert!(!mean.exceeds(ms(2), now));
        // Still slow: one operation restores the congestion at once.
        mean.note(now + Duration::from_secs(1), ms(16));
        assert!(mean.exceeds(ms(2), now + Duration::from_secs(1)));
    }

    #[test]
    fn absurd_times_do_no_harm() {
        let mean = LatencyMean::default();
        for now in [0, u64::MAX, 3, u64::MAX / 2] {
            for took in [0, u64::MAX, 1] {
                mean.note(Nanos(now), Duration::from_nanos(took));
                mean.at(Nanos(0));
                mean.at(Nanos(u64::MAX));
            }
        }
    }
}
