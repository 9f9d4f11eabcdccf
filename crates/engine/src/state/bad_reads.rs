//! Places of the origin where a read that was widened beyond the request failed, although the
//! requested part was readable.
//!
//! Reads at these places are not widened for a while, because a disk may take many seconds to fail
//! one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use parking_lot::Mutex;

/// Maximum number of places that are remembered.
const MOST: usize = 64;

/// Time for which a place is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Why more was read than a client wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widened {
    /// A read that fills blocks.
    Filled,
    /// A read that also fills the neighbourhood.
    Promoted,
}

/// The places of one volume.
#[derive(Default)]
pub(crate) struct BadReads {
    any: AtomicBool,
    /// The oldest first.
    places: Mutex<VecDeque<(Nanos, Widened, Range<u64>)>>,
}

impl BadReads {
    /// Records that a read of this span failed.
    pub(crate) fn note(&self, why: Widened, span: Range<u64>, now: Nanos) {
        let mut places = self.places.lock();
        if places.len() >= MOST {
            places.pop_front();
        }
        places.push_back((now, why, span));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Returns whether a read that is widened to this span for this purpose may fail.
    pub(crate) fn may_fail(&self, why: Widened, span: &Range<u64>, now: Nanos) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut places = self.places.lock();
        while places.front().is_some_and(|(noted, _, _)| now.since(*noted) > REMEMBERED) {
            places.pop_front();
        }
        self.any.store(!places.is_empty(), Ordering::Relaxed);
        places.iter().any(|(_, noted, place)| {
            *noted == why && place.start < span.end && span.start < place.end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_forgotten_by_age_and_number() {
        let (bad, now) = (BadReads::default(), Nanos(1));
        let place = |number: u64| number * 10..number * 10 + 5;
        assert!(!bad.may_fail(Widened::Filled, &place(0), now));
        (0..=MOST as u64).for_each(|number| bad.note(Widened::Filled, place(number), now));
        assert!(!bad.may_fail(Widened::Filled, &place(0), now), "too many came later");
        assert!(bad.may_fail(Widened::Filled, &(14..30), now));
        assert!(!bad.may_fail(Widened::Filled, &(15..20), now));
        assert!(!bad.may_fail(Widened::Promoted, &place(1), now));
        let later = now + REMEMBERED + Duration::from_nanos(1);
        assert!(!bad.may_fail(Widened::Filled, &place(1), later));
    }
}
