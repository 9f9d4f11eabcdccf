//! How long the origin of a volume has not answered.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::state::volume::Volume;

impl Volume {
    /// For how long the origin has not answered, if that is too long.
    pub fn origin_waits(&self) -> Option<Duration> {
        self.waits.too_long()
    }

    /// Why the origin cannot be read, if the last read failed.
    pub fn origin_read_error(&self) -> Option<String> {
        self.read_error.get()
    }

    /// Why the origin cannot be written, if the last write on behalf of a client failed.
    pub fn origin_write_error(&self) -> Option<String> {
        self.write_error.get()
    }

    /// That the origin has become smaller while it was served, if so. What lay behind its end is lost.
    pub fn origin_shrunk(&self) -> Option<String> {
        let left = self.origin.shrunk_to()?;
        let size = self.origin.size();
        Some(format!("the origin {} has shrunk from {size} to {left} bytes", self.origin_name))
    }

    /// Looks whether the origin has become smaller, and logs it once.
    pub(crate) fn look_at_origin(&self) {
        if let Some(shrunk) = self.origin_shrunk()
            && !self.shrunk_told.swap(true, Ordering::Relaxed)
        {
            tracing::error!(volume = self.name, "{shrunk}");
        }
    }
}
