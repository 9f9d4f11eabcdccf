//! The drains of a volume: while one is in progress, everything is written back.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a volume's drains.
#[derive(Default)]
pub(crate) struct Drains {
    under_way: AtomicU64,
    begun: AtomicU64,
}

impl Drains {
    /// Returns whether any drain is in progress.
    pub(crate) fn any(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    /// Returns the number of drains that have begun. It never decreases, so a new drain can be
    /// distinguished from one that has ended.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }
}

/// A request to drain a volume, withdrawn when this is dropped, so a caller may stop waiting.
pub(crate) struct Draining<'a>(&'a Drains);

impl<'a> Draining<'a> {
    pub(crate) fn begin(drains: &'a Drains) -> Self {
        drains.under_way.fetch_add(1, Ordering::SeqCst);
        drains.begun.fetch_add(1, Ordering::SeqCst);
        Draining(drains)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}
