//! The state of a volume's writeback: its sweeps, its errors, and whether it can proceed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::Nanos;
use forebay_lane::Notify;
use parking_lot::Mutex;

use crate::error::WritebackError;
use crate::state::drains::Drains;
use crate::state::origin_latency::WriteCost;
use crate::state::volume::{Volume, VolumeState};

/// See the module.
#[derive(Default)]
pub(crate) struct WritebackState {
    /// Notified when something that writeback depends on has changed.
    pub(crate) wanted: Notify,
    /// Dirty blocks have become fewer, or writeback has failed.
    pub(crate) progress: Notify,
    pub(crate) drains: Drains,
    /// The cost of writes to the origin.
    pub(crate) cost: WriteCost,
    /// Sweeps over the whole origin in which every write succeeded.
    sweeps: AtomicU64,
    /// Sweeps over the whole origin in which a write failed.
    failed_sweeps: AtomicU64,
    /// Whether only ordered writeback may write to the origin.
    ordered: AtomicBool,
    /// Whether reclaim has waited too long for the origin; reset when the writeback that it
    /// requested ends.
    overdue: AtomicBool,
    /// The last error, until nothing is dirty or a sweep has written everything.
    error: Mutex<Option<WritebackError>>,
    /// Whether the last attempt failed.
    fails: AtomicBool,
}

impl Volume {
    /// Returns whether only ordered writeback may write to the origin: while the setting is on, and
    /// until the order has ended.
    #[inline]
    pub(crate) fn is_ordered(&self) -> bool {
        self.writeback.ordered.load(Ordering::SeqCst)
    }

    /// See [`Volume::is_ordered`].
    pub(crate) fn set_ordered(&self, ordered: bool) {
        self.writeback.ordered.store(ordered, Ordering::SeqCst);
    }

    /// Counts a sweep: everything that was dirty at `since` has been written back.
    pub(crate) fn swept(&self, since: Nanos) {
        self.writeback.sweeps.fetch_add(1, Ordering::SeqCst);
        self.dirty_count.swept(since);
    }

    /// Like [`Volume::swept`], but does not count as a sweep.
    pub(crate) fn clean_since(&self, since: Nanos) {
        self.dirty_count.swept(since);
    }

    /// Returns the number of sweeps over the whole origin in which every write succeeded.
    pub(crate) fn sweeps(&self) -> u64 {
        self.writeback.sweeps.load(Ordering::SeqCst)
    }

    /// Counts a sweep in which a write failed.
    pub(crate) fn sweep_failed(&self) {
        self.writeback.failed_sweeps.fetch_add(1, Ordering::SeqCst);
        self.writeback.progress.notify_all();
    }

    /// Returns the number of sweeps over the whole origin in which a write failed.
    pub(crate) fn failed_sweeps(&self) -> u64 {
        self.writeback.failed_sweeps.load(Ordering::SeqCst)
    }

    /// Records how the last writeback ended. Errors of a volume that is being removed are no
    /// failures, because its dirty blocks stay in the cache.
    pub(crate) fn set_writeback_error(&self, error: Option<WritebackError>) {
        let error = error.filter(|_| self.state() != VolumeState::Removed);
        let mut slot = self.writeback.error.lock();
        if let (Some(error), None) = (&error, slot.as_ref()) {
            tracing::error!(
                volume = self.name,
                %error,
                "writing back to the origin fails; the data stays dirty and is tried again"
            );
        }
        match &error {
            None => self.write_error.clear(),
            Some(error) if error.is_write_protection() => self.protected(error),
            Some(_) => {}
        }
        self.writeback.fails.store(error.is_some(), Ordering::SeqCst);
        *slot = error;
        drop(slot);
        self.writeback.progress.notify_all();
    }

    /// Records that the origin accepts writes again. The last error stays until nothing is dirty or
    /// a sweep has written everything, because the blocks that it names may still be dirty
    /// (invariant 18).
    pub(crate) fn writeback_works(&self) {
        self.writeback.fails.store(false, Ordering::SeqCst);
        self.writeback.progress.notify_all();
    }

    /// Returns whether the last attempt to write back failed.
    pub(crate) fn writeback_fails(&self) -> bool {
        self.writeback.fails.load(Ordering::SeqCst)
    }

    /// Returns whether the volume is bound: its dirty blocks cannot be written back at present,
    /// because its origin does not answer or must not be written, or because writeback fails.
    pub(crate) fn is_bound(&self) -> bool {
        self.writeback_fails() || self.waits.is_hung() || self.is_read_only()
    }

    /// Returns whether the volume's writers must not take the last free space in the cache, because
    /// the volume is bound or may turn out to be.
    pub(crate) fn may_be_bound(&self) -> bool {
        self.is_bound() || self.waits.is_late()
    }

    /// Returns whether reclaim may wait for the origin to accept dirty blocks.
    pub(crate) fn can_be_emptied(&self) -> bool {
        !self.is_bound() && !self.writeback.overdue.load(Ordering::SeqCst)
    }

    pub(crate) fn set_overdue(&self, overdue: bool) {
        self.writeback.overdue.store(overdue, Ordering::SeqCst);
    }

    /// Returns why dirty blocks cannot be written back at present: all of them, or those that the
    /// origin refuses.
    pub fn writeback_error(&self) -> Option<WritebackError> {
        let error = self.writeback.error.lock().clone();
        error.or_else(|| self.refusal())
    }

    /// Returns whether an error of writeback as a whole is shown.
    pub(crate) fn shows_writeback_error(&self) -> bool {
        self.writeback.error.lock().is_some()
    }
}
