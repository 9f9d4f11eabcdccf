//! Latency of the cache device, measured on request.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Nanos;
use forebay_lane::Lane;
use forebay_policy::LatencyMean;

/// Mean latencies of the cache device, over all lanes.
#[derive(Debug, Default)]
pub struct DeviceLatency {
    wanted: AtomicBool,
    /// Mean latency of reads.
    pub reads: LatencyMean,
    /// Mean latency of record writes, without syncs.
    pub writes: LatencyMean,
}

impl DeviceLatency {
    /// Switches measuring on or off. Measuring takes two clock readings for each operation.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Returns the start time of an operation, if it is to be measured.
    pub(crate) fn start(&self, lane: &Lane) -> Option<Nanos> {
        self.wanted.load(Ordering::Relaxed).then(|| lane.now())
    }
}

/// Notes the end of an operation that began at `started`.
pub(crate) fn note(mean: &LatencyMean, lane: &Lane, started: Option<Nanos>) {
    if let Some(started) = started {
        let now = lane.now();
        mean.note(now, now.since(started));
    }
}
