//! Limits of a volume's requests and bytes per second, over all lanes.
//!
//! Each limit is a virtual schedule (the generic cell rate algorithm of ITU-T I.371): a request
//! occupies the time that it takes at the limited rate, and waits until the time of earlier
//! requests has passed. Requests are admitted in the order of arrival. Up to [`BURST`] of unused
//! time is kept.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_lane::Notify;

/// Unused time that a volume may use later: enough for requests that arrive together, too little to
/// disturb others.
const BURST: Duration = Duration::from_millis(50);

const SECOND: u64 = 1_000_000_000;

/// Maximum number of requests and bytes that are admitted ahead of time.
const AHEAD: [u64; 2] = [32, 1 << 20];

/// One rate.
#[derive(Default)]
struct Rate {
    /// Units per second; 0: no limit.
    limit: AtomicU64,
    /// The time at which everything that was admitted will have passed.
    passed: AtomicU64,
}

impl Rate {
    /// Returns the time that `units` may occupy, in nanoseconds.
    fn time_of(&self, units: u64) -> u64 {
        match self.limit.load(Ordering::Relaxed) {
            0 => 0,
            limit => units.saturating_mul(SECOND) / limit,
        }
    }

    /// Returns how many units to admit at once if `needed` units are requested: those of a
    /// millisecond, up to `most`.
    fn ahead(&self, needed: u64, most: u64) -> u64 {
        match self.limit.load(Ordering::Relaxed) {
            0 => most.max(needed),
            limit => (limit / 1000).min(most).max(needed),
        }
    }

    /// Admits `units`, and returns when they may begin.
    fn take(&self, now: Nanos, units: u64) -> Nanos {
        let time = self.time_of(units);
        if time == 0 {
            return now;
        }
        let earliest = now.0.saturating_sub(BURST.as_nanos() as u64);
        let next = |passed: u64| Some(passed.max(earliest).saturating_add(time));
        let before = self.passed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Nanos(before.unwrap_or_else(|before| before).max(now.0))
    }

    fn is_free(&self, now: Nanos) -> bool {
        self.limit.load(Ordering::Relaxed) == 0 || self.passed.load(Ordering::Relaxed) <= now.0
    }

    /// Sets the limit. Returns whether it has changed; if so, requests that were admitted under the
    /// old limit no longer count.
    fn set(&self, limit: u64) -> bool {
        let changed = self.limit.swap(limit, Ordering::Relaxed) != limit;
        if changed {
            self.passed.store(0, Ordering::Relaxed);
        }
        changed
    }
}

/// Quota admitted ahead of time for the requests of one lane, so that not every request reads the
/// clock and cache lines that other lanes write.
#[derive(Default)]
pub(crate) struct Admitted {
    /// The [`Limits::version`] under which the quota was admitted; a change of the limits withdraws
    /// the rest.
    version: Cell<u64>,
    requests: Cell<u64>,
    bytes: Cell<u64>,
}

impl Admitted {
    fn covers(&self, version: u64, bytes: u64) -> bool {
        self.version.get() == version && self.requests.get() > 0 && self.bytes.get() >= bytes
    }

    /// Drops quota that was admitted under older limits.
    fn forget_older(&self, version: u64) {
        if self.version.replace(version) != version {
            self.requests.set(0);
            self.bytes.set(0);
        }
    }

    /// Counts a request for which [`Limits::admit`] returned true.
    #[inline]
    pub(crate) fn spend(&self, bytes: u64) {
        self.requests.set(self.requests.get().saturating_sub(1));
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }
}

/// The limits of a volume.
#[derive(Default)]
pub(crate) struct Limits {
    /// Odd while there are limits; changes with each change of them.
    version: AtomicU64,
    requests: Rate,
    bytes: Rate,
    /// Notified when requests that wait should ask again.
    pub(crate) changed: Notify,
}

impl Limits {
    /// Sets the limits, in requests and bytes per second; 0 for no limit.
    pub(crate) fn set(&self, requests: u64, bytes: u64) {
        let changed = [self.requests.set(requests), self.bytes.set(bytes)];
        if changed.contains(&true) {
            let any = u64::from(requests > 0 || bytes > 0);
            let next = (self.version.load(Ordering::Relaxed) | 1) + 1 + any;
            // Set after the rates, so that a lane that sees the version admits nothing more at the
            // old ones.
            self.version.store(next, Ordering::Release);
            self.changed.notify_all();
        }
    }

    /// Returns whether there are any limits.
    #[inline]
    pub(crate) fn are_set(&self) -> bool {
        self.version.load(Ordering::Relaxed) % 2 == 1
    }

    /// Returns whether a request of this many bytes may begin now. If so, admits it, and possibly
    /// some quota for later requests.
    #[inline]
    pub(crate) fn admit(
        &self,
        admitted: &Admitted,
        bytes: u64,
        now: impl FnOnce() -> Nanos,
    ) -> bool {
        let version = self.version.load(Ordering::Acquire);
        if admitted.covers(version, bytes) {
            return true;
        }
        admitted.forget_older(version);
        self.admit_ahead(admitted, bytes, now())
    }

    fn admit_ahead(&self, admitted: &Admitted, bytes: u64, now: Nanos) -> bool {
        if !self.requests.is_free(now) || !self.bytes.is_free(now) {
            return false;
        }
        let wanted =
            [(&self.requests, &admitted.requests, 1), (&self.bytes, &admitted.bytes, bytes)];
        for ((rate, left, needed), most) in wanted.into_iter().zip(AHEAD) {
            if left.get() < needed {
                let units = rate.ahead(needed - left.get(), most);
                rate.take(now, units);
                left.set(left.get() + units);
            }
        }
        true
    }

    /// Admits a request of this many bytes, and returns when it may begin.
    pub(crate) fn take(&self, now: Nanos, bytes: u64) -> Nanos {
        self.requests.take(now, 1).max(self.bytes.take(now, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Admits requests like a client that sends the next one as soon as one has begun, and returns
    /// the time at which the last one began.
    fn last_of(limits: &Limits, count: u64, bytes: u64) -> u64 {
        let begin = 1000 * MS;
        (0..count).fold(Nanos(begin), |now, _| limits.take(now, bytes)).0 - begin
    }

    #[test]
    fn requests_begin_at_the_limited_rate_after_a_short_burst() {
        let limits = Limits::default();
        assert!(!limits.are_set());
        assert_eq!(last_of(&limits, 1000, 4096), 0);
        limits.set(1000, 0);
        assert!(limits.are_set());
        // 50 of them begin at once.
        assert_eq!(last_of(&limits, 1050, 1 << 20), 999 * MS);
        assert!(!limits.admit(&Admitted::default(), 512, || Nanos(1000 * MS)));
        limits.set(0, 1 << 20);
        assert_eq!(last_of(&limits, 257, 4096), 1000 * MS - 50 * MS);
    }

    #[test]
    fn requests_admitted_ahead_count_and_save_clock_reads() {
        for (limit, most_looks) in [(100, 10_000), (1_000_000, 400)] {
            let limits = Limits::default();
            limits.set(limit, 0);
            let (mut lanes, mut looks) = ([(); 2].map(|()| Admitted::default()), 0);
            let mut begun = 0u64;
            // Ten milliseconds after an idle time, during which both lanes request continuously.
            for micros in 0..10_000u64 {
                for lane in &mut lanes {
                    let now = || {
                        looks += 1;
                        Nanos(1000 * MS + micros * 1000)
                    };
                    if limits.admit(lane, 4096, now) {
                        lane.spend(4096);
                        begun += 1;
                    }
                }
            }
            let allowed = limit * 60 / 1000;
            assert!(begun <= allowed + 64 && begun + 64 >= allowed.min(20_000), "{limit}: {begun}");
            assert!(looks <= most_looks * 2, "{limit}: {looks}");
        }
    }

    #[test]
    fn a_changed_limit_takes_back_what_was_admitted_ahead() {
        let limits = Limits::default();
        let lane = Admitted::default();
        let at_once = |limits: &Limits| {
            let admit = || limits.admit(&lane, 4096, || Nanos(1000 * MS));
            std::iter::from_fn(|| admit().then(|| lane.spend(4096))).count()
        };
        limits.set(1 << 20, 0);
        assert!(limits.admit(&lane, 4096, || Nanos(1000 * MS)));
        // The requests of 50 ms and one more are admitted; bytes from before the change of the
        // limit do not count.
        limits.set(1 << 20, 4096 * 100);
        assert_eq!(at_once(&limits), 6);
        limits.set(100, 0);
        assert_eq!(at_once(&limits), 6);
        // The same limit is set again, with no limit in between.
        limits.set(0, 0);
        limits.set(100, 0);
        assert_eq!(at_once(&limits), 6);
    }

    #[test]
    fn of_two_limits_the_lower_one_decides() {
        let limits = Limits::default();
        limits.set(100, 1 << 20);
        assert_eq!(last_of(&limits, 106, 512), 1000 * MS);
        limits.set(101, 2 << 20);
        assert_eq!(last_of(&limits, 3, 1 << 20), 950 * MS);
    }

    #[test]
    fn another_limit_forgets_what_was_admitted_by_the_former() {
        let limits = Limits::default();
        limits.set(1, 0);
        assert_eq!(last_of(&limits, 10, 0), 8950 * MS);
        limits.set(1, 0);
        let may_begin =
            |limits: &Limits| limits.admit(&Admitted::default(), 0, || Nanos(1000 * MS));
        assert!(!may_begin(&limits));
        limits.set(1000, 0);
        assert!(may_begin(&limits));
        limits.set(0, 0);
        assert!(!limits.are_set());
    }

    #[test]
    fn no_number_overflows() {
        let limits = Limits::default();
        limits.set(1, 1);
        assert_eq!(limits.take(Nanos(u64::MAX - 1), u64::MAX).0, u64::MAX - 1);
        assert_eq!(limits.take(Nanos(u64::MAX), u64::MAX).0, u64::MAX);
    }
}
