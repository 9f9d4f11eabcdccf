//! How long the cache device takes, so that one that is slower than it should be can be left alone
//! for a while: then it is no longer the fast device.
//!
//! The idea and the usual thresholds, 2 ms for reads and 20 ms for writes, are bcache's
//! (`congested_read_threshold_us`, `congested_write_threshold_us`). bcache lets ever shorter streams
//! go round the cache the longer it is congested; here it is a mean over operations against a
//! threshold.
//!
//! While clean data is read from the origin instead, nothing more is learnt of reads. So the mean
//! halves every [`HALVES`], until some requests are tried on the cache device again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;

/// One part in this many of the mean is the latest operation.
const WEIGHT: u64 = 8;

/// The time in which the mean halves when there are no operations.
pub const HALVES: Duration = Duration::from_millis(128);

/// A mean of how long operations of one kind take, the latest ones most. Shared by all lanes without
/// a lock: what two lanes note at the same moment may count once.
#[derive(Debug, Default)]
pub struct LatencyMean {
    nanos: AtomicU64,
    /// When the last operation ended.
    at: AtomicU64,
}

impl LatencyMean {
    /// Counts an operation that took `took` and ended now.
    pub fn note(&self, now: Nanos, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let (mean, halvings) = self.look(now);
        // What is old counts less than its share: after a long time only the latest is left.
        let old = mean.abs_diff(took) / WEIGHT * (WEIGHT - 1);
        let old = old.checked_shr(halvings).unwrap_or(0);
        let mean = if mean > took { took.saturating_add(old) } else { took - old };
        self.nanos.store(mean, Ordering::Relaxed);
        self.at.store(now.0, Ordering::Relaxed);
    }

    /// The mean as it counts now.
    pub fn at(&self, now: Nanos) -> Duration {
        let (mean, halvings) = self.look(now);
        Duration::from_nanos(mean.checked_shr(halvings).unwrap_or(0))
    }

    /// Whether the mean is above a threshold; zero is none.
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
            // Operations that are seconds apart: each of them is all that is known.
            assert!(close(mean.at(now), US * micros), "{micros}: {:?}", mean.at(now));
        }
    }

    #[test]
    fn a_threshold_is_passed_after_some_slow_operations_and_not_after_one_that_is_a_little_slow() {
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
    fn a_device_that_is_left_alone_is_tried_again_and_judged_by_what_it_does_then() {
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
        // It is well again: nobody waits a second time.
        mean.note(now, US * 80);
        assert!(!mean.exceeds(ms(2), now));
        // It is not: everybody does, at once.
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
