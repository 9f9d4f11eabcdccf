//! Operations under way on one queue, and how long the oldest has been.
//!
//! A device that hangs answers neither well nor badly, so nobody who waits for it can tell. The
//! lane looks once in a while instead, and an operation counts from the first look that sees it: it
//! need not look at the clock itself.

use std::cell::RefCell;

use forebay_core::Nanos;

/// What a place says: it is free, or its operation has not been looked at.
const FREE: u64 = 0;
const NEW: u64 = 1;

/// What is under way on one queue; see the module.
#[derive(Default)]
pub struct UnderWay {
    /// When operations were first looked at that have not ended, by their places.
    seen: RefCell<Vec<u64>>,
    free: RefCell<Vec<u32>>,
}

impl UnderWay {
    /// An operation begins; gives it a place.
    pub(crate) fn begin(&self) -> u32 {
        let mut seen = self.seen.borrow_mut();
        if let Some(place) = self.free.borrow_mut().pop() {
            seen[place as usize] = NEW;
            return place;
        }
        seen.push(NEW);
        seen.len() as u32 - 1
    }

    /// The operation at a place has ended, or nobody waits for it any more.
    pub(crate) fn end(&self, place: u32) {
        self.seen.borrow_mut()[place as usize] = FREE;
        self.free.borrow_mut().push(place);
    }

    /// Looks at the operations: when the oldest was first looked at, which is now for those that are
    /// new; `None` without any.
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
        let under_way = UnderWay::default();
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
