//! Operations in flight on one queue, and the age of the oldest.
//!
//! A device that hangs returns neither success nor an error, so its waiters cannot notice. Instead
//! the lane checks periodically, and an operation's age counts from the first check that sees it,
//! so that starting an operation does not read the clock.

use std::cell::RefCell;

use forebay_core::Nanos;

/// States of a place: free, or with an operation that no check has seen.
const FREE: u64 = 0;
const NEW: u64 = 1;

/// The operations in flight on one queue.
#[derive(Default)]
pub struct OpsInFlight {
    /// For each place, the time at which a check first saw its operation.
    seen: RefCell<Vec<u64>>,
    free: RefCell<Vec<u32>>,
}

impl OpsInFlight {
    /// Registers an operation; returns its place.
    pub(crate) fn begin(&self) -> u32 {
        let mut seen = self.seen.borrow_mut();
        if let Some(place) = self.free.borrow_mut().pop() {
            seen[place as usize] = NEW;
            return place;
        }
        seen.push(NEW);
        seen.len() as u32 - 1
    }

    /// Removes an operation that has ended or was abandoned.
    pub(crate) fn end(&self, place: u32) {
        self.seen.borrow_mut()[place as usize] = FREE;
        self.free.borrow_mut().push(place);
    }

    /// Checks the operations. Returns the time at which the oldest was first seen by a check, which
    /// is `now` for new ones; `None` without operations.
    pub fn look(&self, now: Nanos) -> Option<Nanos> {
        let mut seen = self.seen.borrow_mut();
        for place in seen.iter_mut().filter(|place| **place == NEW) {
            *place = now.0.max(NEW + 1);
        }
        seen.iter().copied().filter(|seen| *seen != FREE).min().map(Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_counts_until_it_ends_and_places_are_used_again() {
        let under_way = OpsInFlight::default();
        assert_eq!(under_way.look(Nanos(5)), None);
        let first = under_way.begin();
        assert_eq!(under_way.look(Nanos(10)), Some(Nanos(10)));
        let second = under_way.begin();
        assert_eq!(under_way.look(Nanos(20)), Some(Nanos(10)));
        under_way.end(first);
        assert_eq!(under_way.look(Nanos(30)), Some(Nanos(20)));
        assert_eq!(under_way.begin(), first);
        under_way.end(second);
        assert_eq!(under_way.look(Nanos(40)), Some(Nanos(40)));
    }
}
