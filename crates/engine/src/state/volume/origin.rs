//! The state of a volume's origin: whether it answers, its last errors, whether it has shrunk or
//! accepts no writes, and whether another machine has taken it over.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_store::planted::{self, PlantedBug};

use crate::state::bad_reads::BadReads;
use crate::state::health::LastError;
use crate::state::read_share::ReadShare;
use crate::state::volume::Volume;

/// Whether the origin may be read and written.
#[derive(Default)]
pub(crate) struct OriginAccess {
    /// Whether clients may not write while the volume is started.
    read_only: bool,
    /// Why the origin accepts no writes at present, although clients may write.
    protection: LastError,
    /// Whether the device itself reports this, and not only a write that it has refused.
    is_protected: AtomicBool,
    /// Number of times that the origin became writable again.
    healed: AtomicU64,
    /// Whether it was logged that the origin has shrunk.
    shrunk_told: AtomicBool,
    /// Whether a stop must not record the content by which the origin is recognised.
    pub(crate) leaves_no_print: AtomicBool,
    /// Whether the origin was taken over by another machine.
    is_fenced: AtomicBool,
}

impl OriginAccess {
    pub(super) fn new(read_only: bool) -> Self {
        OriginAccess { read_only, ..OriginAccess::default() }
    }
}

/// The results of reads of the origin.
#[derive(Default)]
pub(crate) struct OriginReads {
    pub(crate) bad: BadReads,
    /// The time at which the failing part of a read was last located, in nanoseconds.
    pub(crate) located: AtomicU64,
    /// The error of the last read, if it failed.
    pub(crate) error: LastError,
    pub(crate) share: ReadShare,
}

impl Volume {
    /// Returns the time for which the origin has not answered, if it is long enough to be reported.
    pub fn origin_waits(&self) -> Option<Duration> {
        self.waits.too_long()
    }

    /// Returns the time for which the origin has now not been accessed, and the total time of its
    /// rests, see [`RESTS_AFTER`](crate::RESTS_AFTER).
    pub fn origin_rests(&self) -> (Duration, Duration) {
        let (rest, now) = (&self.stats.rest, self.waits.now());
        (rest.current(now), rest.total(now))
    }

    /// Returns whether distance costs time on the origin, according to the device or the setting.
    pub fn is_rotational(&self) -> bool {
        self.in_force.rotational.load(Ordering::Relaxed)
    }

    /// Returns the error of the last read of the origin, if it failed.
    pub fn origin_read_error(&self) -> Option<String> {
        self.reads.error.get()
    }

    /// Returns the error of the last write of a client to the origin, if that failed.
    pub fn origin_write_error(&self) -> Option<String> {
        self.write_error.get()
    }

    /// Returns a message if the origin has shrunk during service. The data beyond its new end is
    /// lost.
    pub fn origin_shrunk(&self) -> Option<String> {
        let left = self.origin.shrunk_to()?;
        let size = self.origin.size();
        Some(format!("the origin {} has shrunk from {size} to {left} bytes", self.origin_name))
    }

    /// Prevents a stop from recording anything by which another device with the same content would
    /// be taken for the origin, because the path of the origin leads to another device.
    pub fn leave_no_print(&self) {
        self.access.leaves_no_print.store(true, Ordering::Relaxed);
    }

    /// Returns a message if the origin was taken over by another machine. Clients are refused from
    /// then on.
    pub fn origin_fenced(&self) -> Option<String> {
        let cause = self.origin.fenced()?;
        let fenced = format!("the origin {} is lost: {cause}", self.origin_name);
        if !self.access.is_fenced.swap(true, Ordering::Relaxed) {
            tracing::error!(volume = self.name, "every request fails from now on: {fenced}");
        }
        Some(fenced)
    }

    /// Returns whether clients are refused because of a take-over.
    #[inline]
    pub(crate) fn is_fenced(&self) -> bool {
        self.access.is_fenced.load(Ordering::Relaxed)
    }

    /// Returns whether clients may not write while the volume is started.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.access.read_only
    }

    /// Returns whether clients' writes are refused, because the volume is read-only or its origin
    /// accepts none: acknowledged data must be able to reach the origin (invariant 36).
    #[inline]
    pub(crate) fn refuses_writes(&self) -> bool {
        (self.access.read_only || self.access.protection.is_set())
            && !planted::has(PlantedBug::ProtectionIgnored)
    }

    /// Returns a message if dirty blocks cannot reach the origin because it accepts no writes, or
    /// if clients are refused for that reason.
    pub fn origin_protected(&self) -> Option<String> {
        if let Some(cause) = self.access.protection.get() {
            return Some(format!("the origin {} cannot be written: {cause}", self.origin_name));
        }
        let dirty = self.dirty_blocks();
        (self.access.read_only && dirty > 0).then(|| {
            format!(
                "the volume is read-only, so {dirty} dirty blocks stay in the cache; 'forebay set {0} read_only=off', and a stop and a start, have them written to the origin",
                self.name
            )
        })
    }

    /// Returns a message if there are dirty blocks and an attempt to write them to the origin would
    /// be pointless.
    pub(crate) fn kept_from_origin(&self) -> Option<String> {
        self.look_at_protection();
        let hopeless = self.access.read_only || self.access.is_protected.load(Ordering::Relaxed);
        self.origin_protected().filter(|_| hopeless && self.dirty_blocks() > 0)
    }

    /// Records that the origin accepts no writes.
    pub(crate) fn protected(&self, cause: &impl Display) {
        if self.access.read_only {
            return;
        }
        if !self.access.protection.is_set() {
            tracing::error!(
                volume = self.name,
                "writes are refused from now on, because the origin takes none: {cause}"
            );
        }
        self.access.protection.set(cause);
    }

    /// Returns the number of times that the origin became writable again, so that a wait for it can
    /// end.
    pub(crate) fn healed(&self) -> u64 {
        self.access.healed.load(Ordering::SeqCst)
    }

    /// Checks whether the origin accepts writes. If only a failed write has shown that it does not,
    /// a successful write must show that it does again.
    fn look_at_protection(&self) {
        if let Some(cause) = self.origin.write_protected() {
            self.access.is_protected.store(true, Ordering::Relaxed);
            return self.protected(&cause);
        }
        let was_protected = self.access.is_protected.swap(false, Ordering::Relaxed);
        let refused = self.writeback_fails()
            && self.writeback_error().is_some_and(|error| error.is_write_protection());
        if self.access.protection.is_set() && (was_protected || !refused) {
            tracing::info!(volume = self.name, "the origin takes writes again");
            self.access.protection.clear();
            self.access.healed.fetch_add(1, Ordering::SeqCst);
            self.writeback_works();
            self.write_error.clear();
            self.writeback.wanted.notify_all();
        }
    }

    /// Checks whether the origin was taken over, has shrunk or accepts no writes, and logs each
    /// once. Tells the shadow caches how much data waits to be written to it.
    pub(crate) fn look_at_origin(&self) {
        self.watched.set_dirty(self.dirty_blocks());
        self.origin_fenced();
        self.look_at_protection();
        if let Some(shrunk) = self.origin_shrunk()
            && !self.access.shrunk_told.swap(true, Ordering::Relaxed)
        {
            tracing::error!(volume = self.name, "{shrunk}");
        }
    }
}
