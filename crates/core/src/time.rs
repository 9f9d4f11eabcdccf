//! Time values, and the interface of clocks.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds since a start that is arbitrary, but fixed for one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time elapsed since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Nanos;

    fn add(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Nanos {
    type Output = Duration;

    fn sub(self, earlier: Nanos) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}

/// A source of time: the machine's monotonic clock, or a virtual one.
pub trait Clock: Send + Sync {
    /// Returns the current time. Never goes backwards.
    fn now(&self) -> Nanos;

    /// Returns the time since midnight, local time, for decisions that depend on nothing finer than
    /// the hour of the day. It jumps when the machine's clock is set. The default, for a clock
    /// without a calendar, takes the clock's start as midnight.
    fn time_of_day(&self) -> Duration {
        const DAY: u64 = 24 * 3600 * 1_000_000_000;
        Duration::from_nanos(self.now().0 % DAY)
    }
}

/// A clock that advances only when it is told to, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Creates a clock that starts at `now`.
    pub fn at(now: Nanos) -> Self {
        ManualClock(AtomicU64::new(now.0))
    }

    /// Advances the clock by `time`.
    pub fn pass(&self, time: Duration) {
        self.advance_to(self.now() + time);
    }

    /// Advances the clock to `to`; an earlier time has no effect.
    pub fn advance_to(&self, to: Nanos) {
        self.0.fetch_max(to.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }
}
