//! Everything that is counted, per volume and lane.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Declares counters once: the per-lane atomics and their sum.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one volume on one lane.
        #[derive(Default, Debug)]
        pub struct LaneCounters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// Counters of one volume, all lanes together.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterTotals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl CounterTotals {
            fn add(&mut self, lane: &LaneCounters) {
                $(self.$name += lane.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Reads answered from the cache alone.
    read_hits,
    /// Reads answered from cache and origin.
    read_partial,
    /// Reads answered from the origin alone.
    read_misses,
    /// Writes that replaced cached blocks only.
    write_hits,
    /// Writes of which a block was not cached.
    write_misses,
    /// Requests that went round the cache.
    bypassed,
    /// Of those: because they were part of a sequential stream.
    bypassed_sequential,
    /// Of those: because of the mode.
    bypassed_mode,
    /// Flushes.
    flushes,
    /// Discards.
    discards,
    /// Bytes read by clients.
    user_read_bytes,
    /// Bytes written by clients.
    user_written_bytes,
    /// Bytes of this volume read from the cache device.
    cache_read_bytes,
    /// Bytes of payload of this volume appended to the log.
    cache_written_bytes,
    /// Bytes read from the origin.
    origin_read_bytes,
    /// Bytes written to the origin.
    origin_written_bytes,
    /// Blocks filled from the origin.
    filled_blocks,
    /// Blocks written back.
    written_back_blocks,
    /// Requests that failed.
    errors,
    /// Reads of the origin that failed.
    origin_read_errors,
    /// Reads of the cache device that failed; what was read and is wrong is counted elsewhere.
    cache_read_errors,
}

/// Adds to a counter that only this lane writes.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    // No other thread writes it, so no locked instruction is needed.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// What latencies are kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes, discards and write zeroes.
    Write,
    /// Flushes.
    Flush,
}

/// One volume's numbers on one lane, on cache lines of their own.
#[repr(align(128))]
pub(crate) struct LaneStats {
    pub(crate) counters: LaneCounters,
    latencies: [Mutex<Histogram<u64>>; 3],
    /// Requests between their start and their end.
    pub(crate) in_flight: AtomicU64,
    /// Counts requests that were answered at once, for sampling.
    pub(crate) quick: AtomicU64,
}

/// One in this many requests that are answered at once has its latency measured.
pub(crate) const QUICK_SAMPLE: u64 = 16;

fn histogram() -> Histogram<u64> {
    // 100 ns to 1000 s with two digits; the bounds are constants that the library accepts.
    let mut histogram = Histogram::new_with_bounds(100, 1_000_000_000_000, 2)
        .unwrap_or_else(|_| Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits exist")));
    histogram.auto(true);
    histogram
}

impl LaneStats {
    fn new() -> Self {
        LaneStats {
            counters: LaneCounters::default(),
            latencies: [(); 3].map(|()| Mutex::new(histogram())),
            in_flight: AtomicU64::new(0),
            quick: AtomicU64::new(0),
        }
    }

    pub(crate) fn latency(&self, kind: Kind, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latencies[kind as usize].lock().saturating_record(nanos);
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Requests that were measured.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Half of the requests took at most this.
    pub p50_us: f64,
    /// 99 % of the requests took at most this.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// One volume's numbers.
pub struct Stats {
    lanes: Box<[LaneStats]>,
}

impl Stats {
    pub(crate) fn new(lanes: usize) -> Self {
        Stats { lanes: (0..lanes).map(|_| LaneStats::new()).collect() }
    }

    pub(crate) fn lane(&self, lane: usize) -> &LaneStats {
        &self.lanes[lane % self.lanes.len()]
    }

    /// The counters of all lanes together.
    pub fn totals(&self) -> CounterTotals {
        let mut totals = CounterTotals::default();
        for lane in &self.lanes {
            totals.add(&lane.counters);
        }
        totals
    }

    /// Requests between their start and their end.
    pub fn in_flight(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.in_flight.load(Ordering::SeqCst)).sum()
    }

    /// The latencies of all lanes together.
    pub fn latency(&self, kind: Kind) -> Latency {
        let mut all = histogram();
        for lane in &self.lanes {
            // Both have the same digits, so nothing can be lost.
            let _ = all.add(&*lane.latencies[kind as usize].lock());
        }
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        Latency {
            count: all.len(),
            mean_us: all.mean() / 1000.0,
            p50_us: micros(all.value_at_quantile(0.50)),
            p99_us: micros(all.value_at_quantile(0.99)),
            max_us: micros(all.max()),
        }
    }
}
