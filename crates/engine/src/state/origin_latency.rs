//! Latency of an origin: of foreground requests, which writeback yields to, and of writeback.
//!
//! All lanes share the counters, because an origin is far slower than contention on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Clock, Nanos};

/// The latency of one volume's foreground requests on its origin.
#[derive(Default)]
pub(crate) struct OriginLatency {
    nanos: AtomicU64,
    ended: AtomicU64,
    /// Number of requests in progress, and the sum of their start times in microseconds. A request
    /// that does not end is the strongest evidence.
    waiting: AtomicU64,
    began: AtomicU64,
    cost: Cost,
}

/// A request on the origin; it ends when this is dropped.
#[must_use = "the request ends when this is dropped"]
pub(crate) struct OnOrigin<'a> {
    latency: &'a OriginLatency,
    began: Nanos,
    clock: &'a dyn Clock,
}

impl OriginLatency {
    /// Records the start of a request.
    pub(crate) fn begin<'a>(&'a self, clock: &'a dyn Clock) -> OnOrigin<'a> {
        let began = clock.now();
        self.began.fetch_add(began.0 / 1000, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        OnOrigin { latency: self, began, clock }
    }

    /// Returns the mean latency of the requests that ended since the last call. If none ended,
    /// returns the mean time for which those in progress have waited; `None` if there are none.
    pub(crate) fn take(&self, now: Nanos) -> Option<Duration> {
        let ended = self.ended.swap(0, Ordering::Relaxed);
        let nanos = self.nanos.swap(0, Ordering::Relaxed);
        if let Some(mean) = nanos.checked_div(ended) {
            return Some(Duration::from_nanos(mean));
        }
        let waiting = self.waiting.load(Ordering::Relaxed);
        let began = self.began.load(Ordering::Relaxed).checked_div(waiting)?;
        Some(now.since(Nanos(began.saturating_mul(1000))))
    }

    /// Returns the recent mean cost of a request.
    pub(crate) fn cost(&self) -> Duration {
        self.cost.mean()
    }
}

impl Drop for OnOrigin<'_> {
    fn drop(&mut self) {
        let took = self.clock.now().since(self.began);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.latency.ended.fetch_add(1, Ordering::Relaxed);
        self.latency.cost.add(took, self.latency.waiting.fetch_sub(1, Ordering::Relaxed));
        self.latency.began.fetch_sub(self.began.0 / 1000, Ordering::Relaxed);
    }
}

/// The recent mean cost of requests of one kind. Requests that run concurrently share the time.
#[derive(Default)]
struct Cost(AtomicU64);

impl Cost {
    /// Each new request has a weight of `1 / SHARE` in the mean.
    const SHARE: u64 = 16;

    fn add(&self, took: Duration, together: u64) {
        let took = took.as_nanos() / u128::from(together.max(1));
        let took = u64::try_from(took).unwrap_or(u64::MAX / 2);
        let before = self.0.load(Ordering::Relaxed);
        // A race between lanes loses a sample, which is harmless.
        let mean =
            if before == 0 { took } else { before - before / Self::SHARE + took / Self::SHARE };
        self.0.store(mean.max(1), Ordering::Relaxed);
    }

    /// Returns the mean; zero before the first request.
    fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The cost of writeback's writes on an origin.
#[derive(Default)]
pub(crate) struct WriteCost {
    under_way: AtomicU64,
    cost: Cost,
}

impl WriteCost {
    /// Runs a write and records its duration.
    pub(crate) async fn of<T>(&self, clock: &dyn Clock, write: impl Future<Output = T>) -> T {
        let began = clock.now();
        let together = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        let result = write.await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.cost.add(clock.now().since(began), together);
        result
    }

    /// Returns the mean; zero before the first write.
    pub(crate) fn mean(&self) -> Duration {
        self.cost.mean()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use forebay_core::ManualClock;

    use super::*;

    #[test]
    fn ended_requests_count_before_waiting_ones() {
        let (latency, clock) = (OriginLatency::default(), ManualClock::at(Nanos(1_000_000)));
        let take = || latency.take(clock.now()).map(|time| time.as_micros());
        let pass = |micros| clock.pass(Duration::from_micros(micros));
        assert_eq!(take(), None);
        let (one, other) = (latency.begin(&clock), latency.begin(&clock));
        pass(500);
        assert_eq!(take(), Some(500));
        drop(one);
        pass(500);
        assert_eq!(take(), Some(500));
        assert_eq!(take(), Some(1000));
        let third = latency.begin(&clock);
        drop(other);
        drop(third);
        assert_eq!(take(), Some(500));
        assert_eq!(take(), None);
    }

    #[test]
    fn writes_that_are_under_way_together_share_the_time() {
        let clock = ManualClock::at(Nanos(1));
        let mut context = Context::from_waker(Waker::noop());
        let (alone, together) = (WriteCost::default(), WriteCost::default());
        let mut other = pin!(together.of(&clock, std::future::pending::<()>()));
        assert!(other.as_mut().poll(&mut context).is_pending());
        let mut write = |cost: &WriteCost, nanos| {
            let write = async { clock.pass(Duration::from_nanos(nanos)) };
            assert!(pin!(cost.of(&clock, write)).poll(&mut context).is_ready());
            cost.mean().as_nanos()
        };
        assert_eq!(write(&alone, 1600), 1600);
        assert_eq!(write(&alone, 3200), 1600 - 100 + 200);
        assert_eq!(write(&together, 1600), 800);
    }
}
