//! Syncs of an origin, numbered: one that began after a task came has covered all that the task did before.

use std::sync::atomic::{AtomicU64, Ordering};

/// The syncs of one origin. They are made one after the other.
#[derive(Default)]
pub(crate) struct Syncs {
    begun: AtomicU64,
    /// The last one that succeeded.
    ended: AtomicU64,
}

impl Syncs {
    /// Returns the number of the last sync that has begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns whether a sync has succeeded that began later than the one with this number.
    pub(crate) fn has_ended_since(&self, begun: u64) -> bool {
        self.ended.load(Ordering::SeqCst) > begun
    }

    /// Begins a sync and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records that a sync has succeeded.
    pub(crate) fn end(&self, number: u64) {
        self.ended.store(number, Ordering::SeqCst);
    }
}
