//! Limits of a volume's requests and bytes per second, over all lanes.
//!
//! Each limit is a virtual schedule (the generic cell rate algorithm of ITU-T I.371): a request takes
//! the time that it may occupy at the limited rate, and waits until the time before it has passed.
//! Requests are admitted in the order of asking. Up to [`BURST`] of unused time is kept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_lane::Notify;

/// How long a volume may have been idle and still make up for it: enough for requests that arrive
/// together, too little to disturb others.
const BURST: Duration = Duration::from_millis(50);

const SECOND: u128 = 1_000_000_000;

/// One rate.
#[derive(Default)]
struct Rate {
    /// Units per second; 0: no limit.
    limit: AtomicU64,
    /// When everything that was admitted will have passed.
    passed: AtomicU64,
}

impl Rate {
    /// Returns the time that `units` may occupy, in nanoseconds.
    fn time_of(&self, units: u64) -> u64 {
        match u128::from(self.limit.load(Ordering::Relaxed)) {
            0 => 0,
            limit => u64::try_from(u128::from(units) * SECOND / limit).unwrap_or(u64::MAX),
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

    /// Returns whether the limit has changed. Requests that were admitted count by the limit of then
    /// no more.
    fn set(&self, limit: u64) -> bool {
        let changed = self.limit.swap(limit, Ordering::Relaxed) != limit;
        if changed {
            self.passed.store(0, Ordering::Relaxed);
        }
        changed
    }
}

/// The limits of a volume.
#[derive(Default)]
pub(crate) struct Limits {
    any: AtomicBool,
    requests: Rate,
    bytes: Rate,
    /// Notified when requests that wait should ask again.
    pub(crate) changed: Notify,
}

impl Limits {
    /// Sets the limits, in requests and bytes per second; 0 is none.
    pub(crate) fn set(&self, requests: u64, bytes: u64) {
        let changed = [self.requests.set(requests), self.bytes.set(bytes)];
        self.any.store(requests > 0 || bytes > 0, Ordering::Relaxed);
        if changed.contains(&true) {
            self.changed.notify_all();
        }
    }

    /// Returns whether there are any.
    #[inline]
    pub(crate) fn are_set(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Returns whether a request could begin now.
    pub(crate) fn are_free(&self, now: Nanos) -> bool {
        self.requests.is_free(now) && self.bytes.is_free(now)
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

    /// Admits requests as a client does that asks again as soon as one has begun, and returns when
    /// the last one began.
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
        assert!(limits.are_set() && limits.are_free(Nanos(1000 * MS)));
        // 50 of them at once.
        assert_eq!(last_of(&limits, 1050, 1 << 20), 999 * MS);
        assert!(!limits.are_free(Nanos(1000 * MS)));
        limits.set(0, 1 << 20);
        assert_eq!(last_of(&limits, 257, 4096), 1000 * MS - 50 * MS);
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
        assert!(!limits.are_free(Nanos(1000 * MS)));
        limits.set(1000, 0);
        assert!(limits.are_free(Nanos(1000 * MS)));
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
