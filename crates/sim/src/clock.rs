//! The simulator's clock. Its days last 24 s, so that a run spans several.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Clock, Nanos};

/// Virtual time, shared by all lanes and disks of one world.
#[derive(Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Advances the time to `to`; earlier times are ignored.
    pub fn advance_to(&self, to: Nanos) {
        self.0.fetch_max(to.0, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }

    /// Returns the time of day. One second of virtual time is one hour.
    fn time_of_day(&self) -> Duration {
        Duration::from_nanos(self.now().0 % (24 * 1_000_000_000)) * 3600
    }
}
