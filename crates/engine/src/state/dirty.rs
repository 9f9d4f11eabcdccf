//! The number of dirty blocks of a volume, and a time since which at least one block is dirty.
//!
//! Every write may change the number, so each lane counts on a cache line of its own: a shared
//! counter would make lanes wait for each other at every write. Only the sum is meaningful; a
//! single lane's count may be negative.

use forebay_core::Nanos;
use forebay_core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use forebay_lane::LaneId;
use forebay_policy::sweep::DirtyMap;

#[repr(align(64))]
struct PaddedCounter(AtomicI64);

/// The number of dirty blocks of a volume, and the age of the oldest.
pub(crate) struct DirtyCount {
    lanes: Box<[PaddedCounter]>,
    /// No dirty block became dirty before this time; 0 if no block is dirty.
    since: AtomicU64,
}

impl DirtyCount {
    /// Returns a count of zero.
    pub(crate) fn new(lanes: usize) -> Self {
        let lanes = (0..lanes.max(1)).map(|_| PaddedCounter(AtomicI64::new(0))).collect();
        DirtyCount { lanes, since: AtomicU64::new(0) }
    }

    fn of(&self, lane: LaneId) -> &AtomicI64 {
        &self.lanes[usize::from(lane.0) % self.lanes.len()].0
    }

    /// Counts a block that became dirty. Returns `true` if no block was dirty before.
    #[inline]
    pub(crate) fn add(&self, lane: LaneId, now: impl FnOnce() -> Nanos) -> bool {
        self.of(lane).fetch_add(1, Ordering::SeqCst);
        // Checked after the addition: either this sees the zero that a concurrent
        // [`DirtyCount::sub`] stored, or that call sees the addition when it checks the total
        // again.
        self.since.load(Ordering::SeqCst) == 0 && self.begin(now().0.max(1))
    }

    fn begin(&self, at: u64) -> bool {
        self.since.compare_exchange(0, at, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Counts a block that is no longer dirty.
    pub(crate) fn sub(&self, lane: LaneId) {
        self.of(lane).fetch_sub(1, Ordering::SeqCst);
        if self.total() == 0 {
            self.since.store(0, Ordering::SeqCst);
            if self.total() > 0 {
                // A block became dirty at this moment. Too high an age is harmless.
                self.begin(1);
            }
        }
    }

    /// Returns the number of dirty blocks. A result of 0 means that no single block stayed dirty
    /// for the whole call. `regions` count the same blocks.
    pub(crate) fn total_beside(&self, regions: &DirtyMap) -> u64 {
        match self.total() {
            // The lanes are not read at one instant, so that the count may miss that one block
            // became dirty but include that it became clean. A region counts both in one variable.
            0 => regions.total(),
            dirty => dirty,
        }
    }

    /// Returns the number of dirty blocks, which may be too low for a moment.
    fn total(&self) -> u64 {
        let sum: i64 = self.lanes.iter().map(|lane| lane.0.load(Ordering::SeqCst)).sum();
        // The sum is negative for a moment if one lane's subtraction is seen before another's
        // addition.
        u64::try_from(sum).unwrap_or(0)
    }

    /// Returns a time before which no dirty block became dirty; `None` if no block is dirty.
    pub(crate) fn since(&self) -> Option<Nanos> {
        let since = self.since.load(Ordering::SeqCst);
        (since != 0).then_some(Nanos(since))
    }

    /// Records that everything dirty at `since` has been written back.
    pub(crate) fn swept(&self, since: Nanos) {
        let before = self.since.load(Ordering::SeqCst);
        if before != 0 && self.total() > 0 {
            // The exchange fails if another lane has cleaned the last dirty block meanwhile: then
            // the next dirty block starts the clock.
            let exchanged = Ordering::SeqCst;
            _ = self.since.compare_exchange(before, since.0.max(1), exchanged, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[expect(clippy::disallowed_methods, reason = "what threads share is tried with threads")]
mod tests {
    use super::*;

    #[test]
    fn the_first_starts_the_clock_and_the_last_stops_it() {
        let count = DirtyCount::new(2);
        assert_eq!((count.total(), count.since()), (0, None));
        assert!(count.add(LaneId(0), || Nanos(7)));
        assert!(!count.add(LaneId(1), || panic!("nobody looks at it")));
        assert_eq!((count.total(), count.since()), (2, Some(Nanos(7))));
        // A block may be subtracted on another lane than the one that added it.
        count.sub(LaneId(1));
        count.sub(LaneId(1));
        assert_eq!((count.total(), count.since()), (0, None));
        count.swept(Nanos(9));
        assert_eq!(count.since(), None);
        assert!(count.add(LaneId(1), || Nanos(0)));
        assert_eq!(count.since(), Some(Nanos(1)));
        count.swept(Nanos(9));
        assert_eq!(count.since(), Some(Nanos(9)));
        // Another lane cleans the last block after the number was read and before the new time is
        // set.
        count.since.store(0, Ordering::SeqCst);
        count.swept(Nanos(9));
        assert_eq!(count.since(), None);
    }

    #[test]
    fn dirty_blocks_have_a_time_under_any_concurrency_of_lanes() {
        let count = DirtyCount::new(2);
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            std::thread::scope(|scope| {
                for lane in 0..2 {
                    let count = &count;
                    scope.spawn(move || {
                        for _ in 0..20 {
                            count.add(LaneId(lane), || Nanos(5));
                            // The time may be missing until another lane has checked again.
                            count.sub(LaneId(lane));
                        }
                        count.add(LaneId(lane), || Nanos(5));
                    });
                }
            });
            assert_eq!(count.total(), 2);
            assert!(count.since().is_some());
            count.sub(LaneId(0));
            count.sub(LaneId(0));
            assert_eq!((count.total(), count.since()), (0, None));
        }
    }
}
