//! Operations under way on one queue, and how long the oldest has been.
//!
//! A device that hangs answers neither well nor badly, so nobody who waits for it can tell. The
//! lane looks once in a while instead. In between, an operation costs two stores: its beginning is
//! the time of the lane's last look, not a look at the clock.

use std::cell::{Cell, RefCell};

use forebay_core::Nanos;

/// What is under way on one queue; see the module.
#[derive(Default)]
pub struct UnderWay {
    /// When operations began that have not ended, by their places; 0: the place is free.
    began: RefCell<Vec<u64>>,
    free: RefCell<Vec<u32>>,
    looked: Cell<u64>,
}

impl UnderWay {
    /// An operation begins; gives it a place.
    pub(crate) fn begin(&self) -> u32 {
        let now = self.looked.get().max(1);
        let mut began = self.began.borrow_mut();
        if let Some(place) = self.free.borrow_mut().pop() {
            began[place as usize] = now;
            return place;
        }
        began.push(now);
        began.len() as u32 - 1
    }

    /// The operation at a place has ended, or nobody waits for it any more.
    pub(crate) fn end(&self, place: u32) {
        self.began.borrow_mut()[place as usize] = 0;
        self.free.borrow_mut().push(place);
    }

    /// Looks at the operations: when the oldest began, at the earliest one look before it really
    /// did; `None` without any.
    pub fn look(&self, now: Nanos) -> Option<Nanos> {
        self.looked.set(now.0);
        self.began.borrow().iter().copied().filter(|began| *began > 0).min().map(Nanos)
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
        assert_eq!(under_way.look(Nanos(10)), Some(Nanos(5)));
        let second = under_way.begin();
        assert_eq!(under_way.look(Nanos(20)), Some(Nanos(5)));
        under_way.end(first);
        assert_eq!(under_way.look(Nanos(30)), Some(Nanos(10)));
        assert_eq!(under_way.begin(), first);
        under_way.end(second);
        assert_eq!(under_way.look(Nanos(40)), Some(Nanos(30)));
    }
}
