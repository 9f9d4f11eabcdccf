//! How long operations on the cache device take, where somebody wants to know.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Nanos;
use forebay_lane::Lane;
use forebay_policy::LatencyMean;

/// Means of the latencies of the cache device, over all lanes.
#[derive(Debug, Default)]
pub struct DeviceLatency {
    wanted: AtomicBool,
    /// Of reads.
    pub reads: LatencyMean,
    /// Of writes of records; syncs are not in it.
    pub writes: LatencyMean,
}

impl DeviceLatency {
    /// Whether operations are measured from now on: it takes a look at the clock before and after
    /// each of them.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// The time at which an operation starts, if it is to be measured.
    pub(crate) fn start(&self, lane: &Lane) -> Option<Nanos> {
        self.wanted.load(Ordering::Relaxed).then(|| lane.now())
    }
}

/// An operation that started at `started` has ended.
pub(crate) fn note(mean: &LatencyMean, lane: &Lane, started: Option<Nanos>) {
    if let Some(started) = started {
        let now = lane.now();
        mean.note(now, now.since(started));
    }
}
