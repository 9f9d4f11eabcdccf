//! Long sequential streams: which requests belong to one, and which of these bypass the cache.

use forebay_policy::{AWAKE_FOR, Route, SharedStreams};

use crate::lane::LaneVolume;
use crate::plan::keeps_dirty;
use crate::state::streams::AccessRange;

/// Bytes of long writes after which a lane reports them to the other lanes.
const TOLD_AFTER: u64 = 256 << 10;

/// Least number of requests of a stream: two large ones may follow each other by chance.
const LEAST_REQUESTS: u64 = 3;

/// Returns the bytes after which a request of `len` bytes belongs to a long stream.
fn least_run(cutoff: u64, len: u64) -> u64 {
    cutoff.max(len.saturating_mul(LEAST_REQUESTS))
}

/// Follows the streams of a volume on one lane.
#[derive(Clone, Copy)]
pub(crate) struct StreamControl<'a>(pub(crate) &'a LaneVolume);

impl StreamControl<'_> {
    /// Observes a request. Returns whether it belongs to a long stream, as far as the lane can tell
    /// without writing to shared memory, which a small request that is answered at once does not
    /// justify.
    #[inline]
    pub(crate) fn observe(self, write: bool, offset: u64, len: u64) -> bool {
        let request = AccessRange { write, offset, len };
        self.is_long(request) || (len >= SharedStreams::LEAST && self.is_long_over_lanes(request))
    }

    /// Returns whether a request bypasses the cache because it belongs to a long stream.
    pub(crate) fn bypasses(self, write: bool, offset: u64, len: u64) -> bool {
        let request = AccessRange { write, offset, len };
        if !self.is_long(request) && !self.is_long_over_lanes(request) {
            return false;
        }
        if write { self.writes_bypass() } else { !self.has_unused_space() }
    }

    /// Returns whether a request belongs to a long stream on this lane.
    #[inline]
    fn is_long(self, request: AccessRange) -> bool {
        let cutoff = self.0.volume.streams.cutoff();
        if cutoff == 0 {
            return false;
        }
        // A request that could not be answered at once is passed here a second time, and must count
        // once.
        let (last, long) = self.0.streams.last.get();
        if last == request {
            return long;
        }
        let AccessRange { write, offset, len } = request;
        let verdict = self.0.streams.table.borrow_mut().observe(write, offset, len);
        let long = verdict.bypass(least_run(cutoff, len));
        self.0.streams.last.set((request, long));
        if long && write {
            self.tell_route(len);
        }
        long
    }

    /// Returns whether a request belongs to a long stream that is spread over lanes.
    fn is_long_over_lanes(self, request: AccessRange) -> bool {
        let streams = &self.0.volume.streams;
        let cutoff = streams.cutoff();
        if cutoff == 0 || self.0.store.store().options().lanes == 1 {
            return false;
        }
        let (last, long) = self.0.streams.last_over_lanes.get();
        if last == request {
            return long;
        }
        let AccessRange { write, offset, len } = request;
        let long = streams.shared.observe(write, offset, len) >= least_run(cutoff, len);
        self.0.streams.last_over_lanes.set((request, long));
        if long && write {
            self.tell_route(len);
        }
        long
    }

    fn tell_route(self, len: u64) {
        let untold = self.0.streams.untold.get() + len;
        let tell = untold >= TOLD_AFTER;
        self.0.streams.untold.set(if tell { 0 } else { untold });
        if tell {
            self.0.volume.streams.arrived(self.0.now(), untold);
        }
    }

    /// Returns whether long writes bypass the cache: while the origin keeps up with them and need
    /// not be woken, and when the write budget is spent. In modes that write to the origin in any
    /// case, a bypass is never slower.
    pub(crate) fn writes_bypass(self) -> bool {
        let volume = &self.0.volume;
        let written = || volume.stats.cache_written();
        (volume.streams.route() == Route::Around && !self.lets_sleep())
            || !keeps_dirty(volume.mode())
            || volume.admission.is_over_budget(self.0.now(), written)
    }

    /// Returns whether lazy writeback lets the origin rest at present. Occasional appends to a log
    /// form a long stream too, and would wake the disk each time.
    fn lets_sleep(self) -> bool {
        let volume = &self.0.volume;
        let is_awake = |used| self.0.now().since(used) < AWAKE_FOR;
        volume.streams.is_lazy() && !volume.stats.rest.used().is_some_and(is_awake)
    }

    /// Returns whether so much of the cache is free that fills evict nothing.
    fn has_unused_space(self) -> bool {
        self.0.store.store().segments.free_count() > 2 * self.0.cache.free_target()
    }
}
