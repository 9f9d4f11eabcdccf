//! Timers of a lane.

use std::collections::BTreeMap;
use std::task::Waker;

use forebay_core::Nanos;

/// The sleepers of one lane by deadline; those with equal deadlines are in order of arrival, so
/// that runs are reproducible.
#[derive(Default)]
pub(crate) struct Timers {
    sleepers: BTreeMap<(Nanos, u64), Waker>,
    order: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, deadline: Nanos, waker: Waker) -> u64 {
        self.order += 1;
        self.sleepers.insert((deadline, self.order), waker);
        self.order
    }

    pub(crate) fn remove(&mut self, deadline: Nanos, order: u64) {
        self.sleepers.remove(&(deadline, order));
    }

    /// Wakes all sleepers whose deadline has passed.
    pub(crate) fn fire(&mut self, now: Nanos) {
        while let Some(first) = self.sleepers.first_entry().filter(|first| first.key().0 <= now) {
            first.remove().wake();
        }
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.sleepers.keys().next().map(|(deadline, _)| *deadline)
    }
}
