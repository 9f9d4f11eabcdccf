//! The state of a volume's origin: whether it answers, its last errors, whether it has shrunk, and whether
//! another machine has it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::state::volume::Volume;

impl Volume {
    /// Returns for how long the origin has not answered, if an operator should see that.
    pub fn origin_waits(&self) -> Option<Duration> {
        self.waits.too_long()
    }

    /// Returns for how long the origin has not been accessed now, and how long it has rested in all,
    /// see [`RESTS_AFTER`](crate::RESTS_AFTER).
    pub fn origin_rests(&self) -> (Duration, Duration) {
        let (rest, now) = (&self.stats.rest, self.waits.now());
        (rest.current(now), rest.total(now))
    }

    /// Returns whether distance costs time on the origin, by its own account or the setting's.
    pub fn is_rotational(&self) -> bool {
        self.rotational.load(Ordering::Relaxed)
    }

    /// Returns the error of the last read of the origin, if it failed.
    pub fn origin_read_error(&self) -> Option<String> {
        self.read_error.get()
    }

    /// Returns the error of the last write to the origin for a client, if it failed.
    pub fn origin_write_error(&self) -> Option<String> {
        self.write_error.get()
    }

    /// Returns a message if the origin has shrunk while it was served. The data behind its new end
    /// is lost.
    pub fn origin_shrunk(&self) -> Option<String> {
        let left = self.origin.shrunk_to()?;
        let size = self.origin.size();
        Some(format!("the origin {} has shrunk from {size} to {left} bytes", self.origin_name))
    }

    /// Returns a message if the origin was taken over by another machine. Clients are refused from then on.
    pub fn origin_fenced(&self) -> Option<String> {
        let cause = self.origin.fenced()?;
        let fenced = format!("the origin {} is lost: {cause}", self.origin_name);
        if !self.is_fenced.swap(true, Ordering::Relaxed) {
            tracing::error!(volume = self.name, "every request fails from now on: {fenced}");
        }
        Some(fenced)
    }

    /// Returns whether clients are refused because of that.
    #[inline]
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// Checks whether the origin was taken over or has shrunk, and logs that once. Tells the shadow caches how much
    /// waits to be written to it.
    pub(crate) fn look_at_origin(&self) {
        self.watched.set_dirty(self.dirty_blocks());
        self.origin_fenced();
        if let Some(shrunk) = self.origin_shrunk()
            && !self.shrunk_told.swap(true, Ordering::Relaxed)
        {
            tracing::error!(volume = self.name, "{shrunk}");
        }
    }
}
