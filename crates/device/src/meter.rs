//! Counts a device's operations, their bytes and their latencies, per lane.
//!
//! A reader never delays a lane: the counters are atomics that only the lane writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Clock, LATENCY_RANGES, LatencyCounts, Nanos};

/// The kinds of operations that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Reads.
    Read,
    /// Writes, of zeroes as well.
    Write,
    /// Syncs.
    Sync,
    /// Discards.
    Discard,
}

impl OpKind {
    /// Every kind.
    pub const ALL: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Sync, OpKind::Discard];
}

/// Counts of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Bytes of successful operations.
    pub bytes: u64,
    /// Number of failed operations.
    pub errors: u64,
    /// Latencies of all ended operations, including failed ones.
    pub latency: LatencyCounts,
}

#[derive(Default)]
struct OpMeter {
    bytes: AtomicU64,
    errors: AtomicU64,
    ranges: [AtomicU64; LATENCY_RANGES],
    sum_nanos: AtomicU64,
}

/// The counters of one lane, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct LaneMeter([OpMeter; OpKind::ALL.len()]);

/// The counters of one device.
pub struct Meter {
    lanes: Box<[LaneMeter]>,
}

impl Meter {
    /// Creates a meter for this number of lanes.
    pub fn new(lanes: usize) -> Arc<Self> {
        Arc::new(Meter { lanes: (0..lanes.max(1)).map(|_| LaneMeter::default()).collect() })
    }

    /// Returns the counts, in the order of [`OpKind::ALL`].
    pub fn counts(&self) -> [OpCounts; OpKind::ALL.len()] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut sums = [OpCounts::default(); OpKind::ALL.len()];
        for lane in &self.lanes {
            for (sum, own) in sums.iter_mut().zip(&lane.0) {
                sum.bytes += of(&own.bytes);
                sum.errors += of(&own.errors);
                sum.latency.sum_nanos += of(&own.sum_nanos);
                for (range, own) in sum.latency.ranges.iter_mut().zip(&own.ranges) {
                    *range += of(own);
                }
            }
        }
        sums
    }
}

/// The part of a meter that one queue writes.
pub(crate) struct QueueMeter {
    pub(crate) meter: Arc<Meter>,
    pub(crate) lane: usize,
    pub(crate) clock: Arc<dyn Clock>,
}

/// An operation that is being measured.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    kind: OpKind,
    bytes: u64,
    began: Nanos,
}

impl QueueMeter {
    pub(crate) fn begin(&self, kind: OpKind, bytes: u64) -> Measured {
        Measured { kind, bytes, began: self.clock.now() }
    }

    pub(crate) fn end(&self, measured: Measured, succeeded: bool) {
        let Measured { kind, bytes, began } = measured;
        let took = self.clock.now().since(began).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX / 2);
        let Some(own) = self.meter.lanes.get(self.lane % self.meter.lanes.len()) else { return };
        let own = &own.0[kind as usize];
        match succeeded {
            true => bump(&own.bytes, bytes),
            false => bump(&own.errors, 1),
        }
        bump(&own.sum_nanos, took);
        if let Some(range) = own.ranges.get(LatencyCounts::range_of(took)) {
            bump(range, 1);
        }
    }
}

/// Adds to a counter that only the calling lane writes, so no locked instruction is needed.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_core::ManualClock;

    use super::*;

    #[test]
    fn operations_are_counted_by_kind_over_all_lanes() {
        let (meter, clock) = (Meter::new(2), Arc::new(ManualClock::at(Nanos(1))));
        for lane in 0..2 {
            let own = QueueMeter { meter: meter.clone(), lane, clock: clock.clone() };
            let discard = own.begin(OpKind::Discard, 4096);
            let sync = own.begin(OpKind::Sync, 0);
            clock.pass(Duration::from_micros(300));
            own.end(discard, true);
            own.end(sync, false);
        }
        let counts = meter.counts();
        let of = |kind: OpKind| counts[kind as usize];
        let discards = of(OpKind::Discard);
        assert_eq!((discards.bytes, discards.errors), (8192, 0));
        assert_eq!((discards.latency.total(), discards.latency.sum_nanos), (2, 600_000));
        assert_eq!(discards.latency.ranges[LatencyCounts::range_of(300_000)], 2);
        assert_eq!((of(OpKind::Sync).errors, of(OpKind::Sync).latency.total()), (2, 2));
        assert_eq!(of(OpKind::Read), OpCounts::default());
    }
}
