//! The sequential streams of a volume: each lane's part, and the part that lanes share.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{Clock, Laziness, Nanos};
use forebay_policy::sequential::DEFAULT_STREAMS;
use forebay_policy::{Route, SequentialCutoff, SharedStreams, StreamRoute};
use forebay_settings::Settings;
use parking_lot::Mutex;

/// The part of a volume's streams that lanes share.
#[derive(Default)]
pub(crate) struct Streams {
    /// Bytes of a stream from which on its requests belong to a long one; 0 if no stream counts as
    /// long.
    cutoff: AtomicU64,
    /// Whether writeback lets the origin's disk sleep, so that long writes must not wake it either.
    is_lazy: AtomicBool,
    /// Streams over several lanes.
    pub(crate) shared: SharedStreams,
    route: Mutex<StreamRoute>,
    /// Whether long writes go into the cache: a copy that is read without the lock.
    into_cache: AtomicBool,
}

impl Streams {
    pub(crate) fn set(&self, settings: &Settings) {
        self.cutoff.store(settings.sequential_cutoff, Ordering::SeqCst);
        self.is_lazy.store(settings.writeback == Laziness::Lazy, Ordering::SeqCst);
    }

    /// Returns whether writeback lets the origin's disk sleep.
    pub(crate) fn is_lazy(&self) -> bool {
        self.is_lazy.load(Ordering::Relaxed)
    }

    pub(crate) fn cutoff(&self) -> u64 {
        self.cutoff.load(Ordering::Relaxed)
    }

    /// Returns the route of long sequential writes.
    pub(crate) fn route(&self) -> Route {
        if self.into_cache.load(Ordering::Relaxed) { Route::Cache } else { Route::Around }
    }

    /// Records that long sequential writes of `bytes` in total have arrived.
    pub(crate) fn arrived(&self, now: Nanos, bytes: u64) {
        let mut route = self.route.lock();
        route.arrived(now, bytes);
        self.into_cache.store(route.route() == Route::Cache, Ordering::Relaxed);
    }

    /// Records that a long sequential write bypasses the cache.
    pub(crate) fn begin<'a>(&'a self, clock: &'a dyn Clock) -> Around<'a> {
        self.route.lock().begin(clock.now());
        Around { streams: self, clock }
    }
}

/// A long sequential write that bypasses the cache; it ends when this is dropped.
#[must_use = "the write ends when this is dropped"]
pub(crate) struct Around<'a> {
    streams: &'a Streams,
    clock: &'a dyn Clock,
}

impl Drop for Around<'_> {
    fn drop(&mut self) {
        self.streams.route.lock().end(self.clock.now());
    }
}

/// The range of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessRange {
    pub(crate) write: bool,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// One lane's part of a volume's streams.
pub(crate) struct LaneStreams {
    pub(crate) table: RefCell<SequentialCutoff>,
    /// The last request, and whether it belongs to a long stream according to this lane's table.
    pub(crate) last: Cell<(AccessRange, bool)>,
    /// The same for the table of all lanes.
    pub(crate) last_over_lanes: Cell<(AccessRange, bool)>,
    /// Bytes of long writes that were not reported to the shared route yet.
    pub(crate) untold: Cell<u64>,
}

impl LaneStreams {
    pub(crate) fn new() -> Self {
        let none = (AccessRange { write: false, offset: u64::MAX, len: 0 }, false);
        LaneStreams {
            table: RefCell::new(SequentialCutoff::new(DEFAULT_STREAMS)),
            last: Cell::new(none),
            last_over_lanes: Cell::new(none),
            untold: Cell::new(0),
        }
    }
}
