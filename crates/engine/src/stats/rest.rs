//! Rests of a volume's origin: their lengths, and the accesses that end them.
//!
//! Only accesses through the volume are seen. Whether a disk really sleeps during a rest depends on
//! the disk and on its other users.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_core::why::{Reason, WakeReason};

/// Time without an access after which an origin counts as resting, so that the next access is a
/// wake-up. Disks need minutes; shorter gaps are not worth distinguishing.
pub const RESTS_AFTER: Duration = Duration::from_secs(60);

/// Precision of the times, so that lanes that access the origin at once rarely write to the same
/// cache line.
const GRAIN: Duration = Duration::from_millis(1);

/// The rests of one origin.
#[derive(Default, Debug)]
pub struct Rest {
    /// The time at which an access last began or ended, in nanoseconds; 0 if the origin has not
    /// been accessed.
    last: AtomicU64,
    /// The same time for accesses whose moment background writeback did not choose.
    used: AtomicU64,
    wakes: [AtomicU64; WakeReason::COUNT],
    /// The sum of all rests that have ended, in nanoseconds.
    rested: AtomicU64,
}

fn advance(time: &AtomicU64, now: Nanos) -> Nanos {
    let before = Nanos(time.load(Ordering::Relaxed));
    if before.0 == 0 || now.since(before) >= GRAIN {
        return Nanos(time.fetch_max(now.0, Ordering::Relaxed));
    }
    before
}

/// Returns whether background writeback did not choose the moment of an access, so that the disk is
/// awake anyway.
fn is_given(cause: WakeReason) -> bool {
    use WakeReason::{Flush, Read, Reclaim, Write};
    matches!(cause, Read | Write | Flush | Reclaim)
}

impl Rest {
    /// Sets the time from which the first rest counts.
    pub(crate) fn start(&self, now: Nanos) {
        self.last.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Records that an access begins. `busy`: whether another one is in progress.
    pub(crate) fn begin(&self, now: Nanos, cause: WakeReason, busy: impl FnOnce() -> bool) {
        let rested = now.since(advance(&self.last, now));
        if is_given(cause) {
            advance(&self.used, now);
        }
        if rested >= RESTS_AFTER && !busy() {
            let nanos = u64::try_from(rested.as_nanos()).unwrap_or(u64::MAX / 2);
            self.rested.fetch_add(nanos, Ordering::Relaxed);
            if let Some(wakes) = self.wakes.get(cause.index()) {
                wakes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Records that an access has ended.
    pub(crate) fn end(&self, now: Nanos, cause: WakeReason) {
        advance(&self.last, now);
        if is_given(cause) {
            advance(&self.used, now);
        }
    }

    /// Returns the time of the last access whose moment background writeback did not choose.
    pub(crate) fn used(&self) -> Option<Nanos> {
        Some(Nanos(self.used.load(Ordering::Relaxed))).filter(|used| used.0 > 0)
    }

    /// Returns how many rests this has ended.
    pub(crate) fn wakes(&self, cause: WakeReason) -> u64 {
        self.wakes.get(cause.index()).map_or(0, |wakes| wakes.load(Ordering::Relaxed))
    }

    /// Returns for how long the origin has not been accessed.
    pub fn current(&self, now: Nanos) -> Duration {
        now.since(Nanos(self.last.load(Ordering::Relaxed)))
    }

    /// Returns the total time for which the origin has rested, including the present rest.
    pub fn total(&self, now: Nanos) -> Duration {
        let ended = Duration::from_nanos(self.rested.load(Ordering::Relaxed));
        let current = self.current(now);
        if current >= RESTS_AFTER { ended + current } else { ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_rest_ends_with_the_first_access_after_a_minute() {
        let at = |seconds: u64| Nanos(seconds * SECOND);
        let rest = Rest::default();
        rest.start(at(100));
        assert_eq!((rest.total(at(159)).as_secs(), rest.used()), (0, None));
        rest.begin(at(159), WakeReason::Idle, || false);
        rest.end(at(170), WakeReason::Idle);
        assert_eq!((rest.total(at(200)).as_secs(), rest.used()), (0, None));
        assert_eq!((rest.total(at(240)).as_secs(), rest.current(at(240)).as_secs()), (70, 70));
        rest.begin(at(250), WakeReason::Read, || false);
        rest.begin(at(250), WakeReason::Write, || false);
        assert_eq!((rest.total(at(251)).as_secs(), rest.used()), (80, Some(at(250))));
        // An access that takes long is no rest.
        rest.begin(at(400), WakeReason::Idle, || true);
        let wakes: Vec<u64> = WakeReason::ALL.iter().map(|why| rest.wakes(*why)).collect();
        assert_eq!(wakes.iter().sum::<u64>(), 1);
        assert_eq!(rest.wakes(WakeReason::Read), 1);
        assert_eq!(rest.total(at(401)).as_secs(), 80);
    }
}
