//! The state of a volume's origin: whether it answers, its last errors, whether it has shrunk or
//! takes no writes, and whether another machine has it.

use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_store::planted::{self, PlantedBug};

use crate::state::volume::Volume;

impl Volume {
    /// Returns for how long the origin has not answered, if an operator should see that.
    pub fn origin_waits(&self) -> Option<Duration> {
        self.waits.too_long()
    }

    /// Returns for how long the origin has not been accessed now, and how long it has rested in
    /// all, see [`RESTS_AFTER`](crate::RESTS_AFTER).
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

    /// Prevents a stop from recording anything by which another device with the same content would
    /// be taken for the origin: the path of the origin leads to another device.
    pub fn leave_no_print(&self) {
        self.leaves_no_print.store(true, Ordering::Relaxed);
    }

    /// Returns a message if the origin was taken over by another machine. Clients are refused from
    /// then on.
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

    /// Returns whether clients may not write as long as the volume is started.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether clients' writes are refused, because the volume is read-only or its origin
    /// takes none: acknowledged data must have a way to the origin (invariant 36).
    #[inline]
    pub(crate) fn refuses_writes(&self) -> bool {
        (self.read_only || self.protection.is_set()) && !planted::has(PlantedBug::ProtectionIgnored)
    }

    /// Returns a message if dirty blocks have no way to the origin, because it takes no writes; and
    /// if clients are refused for that reason.
    pub fn origin_protected(&self) -> Option<String> {
        if let Some(cause) = self.protection.get() {
            return Some(format!("the origin {} cannot be written: {cause}", self.origin_name));
        }
        let dirty = self.dirty_blocks();
        (self.read_only && dirty > 0).then(|| {
            format!(
                "the volume is read-only, so {dirty} dirty blocks stay in the cache; 'forebay set {0} read_only=off', and a stop and a start, have them written to the origin",
                self.name
            )
        })
    }

    /// Returns a message if there are dirty blocks and an attempt to write them to the origin is
    /// pointless.
    pub(crate) fn kept_from_origin(&self) -> Option<String> {
        self.look_at_protection();
        let hopeless = self.read_only || self.is_protected.load(Ordering::Relaxed);
        self.origin_protected().filter(|_| hopeless && self.dirty_blocks() > 0)
    }

    /// Records that the origin takes no writes.
    pub(crate) fn protected(&self, cause: &impl Display) {
        if self.read_only {
            return;
        }
        if !self.protection.is_set() {
            tracing::error!(
                volume = self.name,
                "writes are refused from now on, because the origin takes none: {cause}"
            );
        }
        self.protection.set(cause);
    }

    /// Returns how often the origin has become writable again, so that waiting for that can end.
    pub(crate) fn healed(&self) -> u64 {
        self.healed.load(Ordering::SeqCst)
    }

    /// Checks whether the origin takes writes. If only a write shows that it takes none, a write
    /// has to show that it takes them again.
    fn look_at_protection(&self) {
        if let Some(cause) = self.origin.write_protected() {
            self.is_protected.store(true, Ordering::Relaxed);
            return self.protected(&cause);
        }
        let was_protected = self.is_protected.swap(false, Ordering::Relaxed);
        let refused = self.writeback_fails()
            && self.writeback_error().is_some_and(|error| error.is_write_protection());
        if self.protection.is_set() && (was_protected || !refused) {
            tracing::info!(volume = self.name, "the origin takes writes again");
            self.protection.clear();
            self.healed.fetch_add(1, Ordering::SeqCst);
            self.writeback_works();
            self.write_error.clear();
            self.writeback_wanted.notify_all();
        }
    }

    /// Checks whether the origin was taken over, has shrunk or takes no writes, and logs that once.
    /// Tells the shadow caches how much waits to be written to it.
    pub(crate) fn look_at_origin(&self) {
        self.watched.set_dirty(self.dirty_blocks());
        self.origin_fenced();
        self.look_at_protection();
        if let Some(shrunk) = self.origin_shrunk()
            && !self.shrunk_told.swap(true, Ordering::Relaxed)
        {
            tracing::error!(volume = self.name, "{shrunk}");
        }
    }
}
