//! The monotonic clock of the control plane.

use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::time::Duration;

use crate::scheduler::Here;

/// A point in time on the monotonic clock, or, in a simulation, on the simulation's clock. Sums and
/// differences saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the current moment.
    pub fn now() -> Self {
        /// The first call in this process.
        static BEGIN: OnceLock<std::time::Instant> = OnceLock::new();
        match Here::get() {
            Some(here) => Instant(here.now()),
            None => Instant(BEGIN.get_or_init(std::time::Instant::now).elapsed()),
        }
    }

    /// Returns the time that has passed since this point in time.
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Like [`Instant::saturating_duration_since`].
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the point in time `time` later. `None` if the clock cannot represent it.
    pub fn checked_add(&self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, time: Duration) -> Instant {
        Instant(self.0.saturating_sub(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
