//! Counters, reasons and latencies, per volume and lane.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use forebay_core::CounterTotals;
use forebay_core::why::{
    BypassCounts, BypassReason, EvictionCounts, EvictionReason, InvalidationCounts,
    InvalidationReason, MissCounts, MissReason, Reason, RefusalCounts, RefusalReason, WakeCounts,
    Why, WritebackCounts, WritebackReason,
};
use forebay_core::{LatencyCounts, Nanos};

mod histogram;
pub(crate) mod rest;

use histogram::Histogram;
use rest::Rest;

macro_rules! lane_counters {
    ($($name:ident $help:literal,)*) => {
        /// Counters of one volume on one lane.
        #[derive(Default, Debug)]
        pub struct LaneCounters {
            $(#[doc = $help] pub $name: AtomicU64,)*
        }

        impl LaneCounters {
            fn add_to(&self, totals: &mut CounterTotals) {
                $(totals.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

forebay_core::for_each_counter!(lane_counters);

/// Adds to a counter that only the calling lane writes.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    // A single writer needs no locked instruction.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Counts per reason of one kind, on one lane.
#[derive(Debug)]
pub(crate) struct Tally<R, const N: usize>([AtomicU64; N], PhantomData<R>);

impl<R, const N: usize> Default for Tally<R, N> {
    fn default() -> Self {
        Tally(std::array::from_fn(|_| AtomicU64::new(0)), PhantomData)
    }
}

impl<R: Reason, const N: usize> Tally<R, N> {
    /// Counts a reason `by` times.
    pub(crate) fn count(&self, reason: R, by: u64) {
        if let Some(counter) = self.0.get(reason.index()) {
            bump(counter, by);
        }
    }

    fn of(&self, reason: R) -> u64 {
        self.0.get(reason.index()).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Reason counters of one volume on one lane: see [`forebay_core::why`].
#[derive(Default, Debug)]
pub(crate) struct LaneWhy {
    pub(crate) miss: Tally<MissReason, { MissReason::COUNT }>,
    pub(crate) bypass: Tally<BypassReason, { BypassReason::COUNT }>,
    pub(crate) refused: Tally<RefusalReason, { RefusalReason::COUNT }>,
    pub(crate) evicted: Tally<EvictionReason, { EvictionReason::COUNT }>,
    pub(crate) invalidated: Tally<InvalidationReason, { InvalidationReason::COUNT }>,
    pub(crate) written_back: Tally<WritebackReason, { WritebackReason::COUNT }>,
}

/// The request kinds that have latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads and prefetches.
    Read,
    /// Writes, and zeroes that are written as data.
    Write,
    /// Flushes.
    Flush,
    /// Discards, and write zeroes of more than is written as data.
    Discard,
}

/// One volume's counters on one lane, on cache lines of their own.
#[repr(align(128))]
pub(crate) struct LaneStats {
    pub(crate) counters: LaneCounters,
    pub(crate) why: LaneWhy,
    latencies: [Histogram; 4],
    /// Requests in flight; one that is being answered at once counts [`AT_ONCE`].
    pub(crate) in_flight: AtomicU64,
    /// Attempts to answer a request at once; selects every [`QUICK_SAMPLE`]th for a latency sample.
    pub(crate) quick: AtomicU64,
    /// End of the last request whose time was taken.
    last_foreground: AtomicU64,
    /// Versions appended whose data a flush has to make durable on the cache device. Starts at 1,
    /// so that the first flush of a run commits in any case.
    pub(crate) logged: AtomicU64,
    /// Blocks read and written by clients; repeated accesses count each time.
    pub(crate) read_blocks: AtomicU64,
    pub(crate) written_blocks: AtomicU64,
}

/// One in this many requests that are answered at once has its latency measured; the sample is
/// recorded with this weight. Without the weight, requests that had to wait would dominate the
/// histogram.
pub(crate) const QUICK_SAMPLE: u64 = 16;

/// A request that is being answered at once, beside those in flight: there is one on a lane at
/// most.
const AT_ONCE: u64 = 1 << 48;

/// A request that is being answered at once, until this is dropped: also if it panics, because
/// drains wait for its end.
pub(crate) struct Answering<'a> {
    in_flight: &'a AtomicU64,
    before: u64,
}

impl Drop for Answering<'_> {
    #[inline]
    fn drop(&mut self) {
        self.in_flight.store(self.before, Ordering::Release);
    }
}

impl LaneStats {
    /// Begins to answer a request at once. Called by the lane itself.
    #[inline]
    pub(crate) fn answer(&self) -> Answering<'_> {
        let before = self.in_flight.load(Ordering::Relaxed);
        self.in_flight.swap(before + AT_ONCE, Ordering::SeqCst);
        Answering { in_flight: &self.in_flight, before }
    }
}

impl LaneStats {
    fn new() -> Self {
        LaneStats {
            counters: LaneCounters::default(),
            why: LaneWhy::default(),
            latencies: Default::default(),
            in_flight: AtomicU64::new(0),
            quick: AtomicU64::new(0),
            last_foreground: AtomicU64::new(0),
            logged: AtomicU64::new(1),
            read_blocks: AtomicU64::new(0),
            written_blocks: AtomicU64::new(0),
        }
    }

    /// Records the time at which a foreground request ended.
    pub(crate) fn foreground(&self, now: Nanos) {
        self.last_foreground.store(now.0, Ordering::Relaxed);
    }

    /// Records a latency for `requests` requests: 1, or the number that a sample represents.
    pub(crate) fn latency(&self, kind: Kind, took: Duration, requests: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latencies[kind as usize].record(nanos, requests);
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// Requests represented by samples.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Half of the requests took at most this.
    pub p50_us: f64,
    /// 99 % of the requests took at most this.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// By ranges.
    pub counts: LatencyCounts,
}

/// One volume's counters, per lane.
pub struct Stats {
    lanes: Box<[LaneStats]>,
    /// The rests of the origin.
    pub rest: Arc<Rest>,
}

impl Stats {
    pub(crate) fn new(lanes: usize) -> Self {
        Stats { lanes: (0..lanes).map(|_| LaneStats::new()).collect(), rest: Arc::default() }
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn lane(&self, lane: usize) -> &LaneStats {
        // Checked before dividing: requests come here several times, and a division is slower.
        match self.lanes.get(lane) {
            Some(stats) => stats,
            None => &self.lanes[lane % self.lanes.len()],
        }
    }

    /// Returns the counters summed over all lanes.
    pub fn totals(&self) -> CounterTotals {
        let mut totals = CounterTotals::default();
        for lane in &self.lanes {
            lane.counters.add_to(&mut totals);
        }
        totals
    }

    /// Returns the bytes of payload appended to the log, summed over all lanes.
    pub(crate) fn cache_written(&self) -> u64 {
        let of = |lane: &LaneStats| lane.counters.cache_written_bytes.load(Ordering::Relaxed);
        self.lanes.iter().map(of).sum()
    }

    /// Returns, for each lane, how many versions have been appended that a flush has to commit.
    pub(crate) fn logged(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|lane| lane.logged.load(Ordering::Relaxed))
    }

    /// Returns the blocks that clients have read and written.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let sum = |of: fn(&LaneStats) -> &AtomicU64| {
            self.lanes.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum()
        };
        (sum(|lane| &lane.read_blocks), sum(|lane| &lane.written_blocks))
    }

    /// Returns when the last request on any lane ended whose time was taken.
    pub(crate) fn last_foreground(&self) -> Nanos {
        let last = self.lanes.iter().map(|lane| lane.last_foreground.load(Ordering::Relaxed)).max();
        Nanos(last.unwrap_or(0))
    }

    /// Returns the reasons summed over all lanes.
    pub fn why(&self) -> Why {
        let lanes = || self.lanes.iter().map(|lane| &lane.why);
        Why {
            miss: MissCounts::collect(|why| lanes().map(|lane| lane.miss.of(why)).sum()),
            bypass: BypassCounts::collect(|why| lanes().map(|lane| lane.bypass.of(why)).sum()),
            refused: RefusalCounts::collect(|why| lanes().map(|lane| lane.refused.of(why)).sum()),
            evicted: EvictionCounts::collect(|why| lanes().map(|lane| lane.evicted.of(why)).sum()),
            invalidated: InvalidationCounts::collect(|why| {
                lanes().map(|lane| lane.invalidated.of(why)).sum()
            }),
            written_back: WritebackCounts::collect(|why| {
                lanes().map(|lane| lane.written_back.of(why)).sum()
            }),
            wake: WakeCounts::collect(|why| self.rest.wakes(why)),
        }
    }

    /// Returns the requests in flight.
    pub fn in_flight(&self) -> u64 {
        let all = self.lanes.iter().map(|lane| lane.in_flight.load(Ordering::SeqCst));
        all.map(|count| count % AT_ONCE + count / AT_ONCE).sum()
    }

    /// Returns whether a lane is answering a request at once. If not, all effects of such a request
    /// are visible.
    pub(crate) fn is_answering(&self, lane: usize) -> bool {
        self.lanes[lane].in_flight.load(Ordering::SeqCst) >= AT_ONCE
    }

    /// Returns the latencies of all lanes together.
    pub fn latency(&self, kind: Kind) -> LatencySummary {
        histogram::together(self.lanes.iter().map(|lane| &lane.latencies[kind as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_stands_for_others_counts_as_many_times() {
        let stats = Stats::new(2);
        for lane in 0..2 {
            stats.lane(lane).latency(Kind::Read, Duration::from_micros(2), QUICK_SAMPLE);
            stats.lane(lane).latency(Kind::Read, Duration::from_millis(5), 1);
        }
        let read = stats.latency(Kind::Read);
        assert_eq!(read.count, 2 * (QUICK_SAMPLE + 1));
        assert!(read.p50_us < 3.0 && read.max_us > 4_900.0, "{read:?}");
        assert_eq!(stats.latency(Kind::Write).count, 0);
    }

    #[test]
    fn a_request_that_is_being_answered_is_one_of_those_in_flight() {
        let stats = Stats::new(2);
        assert!(!stats.is_answering(1));
        stats.lanes[1].in_flight.store(3, Ordering::SeqCst);
        let answering = stats.lanes[1].answer();
        assert_eq!(
            (stats.in_flight(), stats.is_answering(0), stats.is_answering(1)),
            (4, false, true)
        );
        drop(answering);
        assert_eq!((stats.in_flight(), stats.is_answering(1)), (3, false));
        let panics = std::panic::AssertUnwindSafe(|| {
            let _answering = stats.lanes[1].answer();
            panic!("over a request");
        });
        std::panic::catch_unwind(panics).expect_err("it panics");
        assert_eq!((stats.in_flight(), stats.is_answering(1)), (3, false), "drains go on");
    }
}
