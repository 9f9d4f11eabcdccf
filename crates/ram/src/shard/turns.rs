//! Writes that wait for space in a shard, in the order of their arrival.
//!
//! A write that arrives while others wait would otherwise take space that was made for them: with
//! enough clients, some writes would wait for many times as long as others.

use std::collections::VecDeque;

/// The position of a write in the order of arrival, unique in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(pub(crate) u64);

/// The waiting writes, in order of arrival.
#[derive(Default)]
pub(super) struct Turns(VecDeque<Turn>);

impl Turns {
    /// Adds the last to come.
    pub(super) fn queue(&mut self, turn: Turn) {
        self.0.push_back(turn);
    }

    /// Removes a write that waits no longer.
    pub(super) fn leave(&mut self, turn: Turn) {
        self.0.retain(|waiting| *waiting != turn);
    }

    /// Returns how many wait.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether a write may take space: no earlier write waits.
    pub(super) fn is_next(&self, turn: Option<Turn>) -> bool {
        self.0.front().is_none_or(|first| Some(*first) == turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_come_is_next_until_it_leaves() {
        let mut turns = Turns::default();
        assert!(turns.len() == 0 && turns.is_next(None) && turns.is_next(Some(Turn(7))));
        (1..4).for_each(|number| turns.queue(Turn(number)));
        let next = |turns: &Turns| [1, 2, 3].map(|number| turns.is_next(Some(Turn(number))));
        assert_eq!((next(&turns), turns.is_next(None)), ([true, false, false], false));
        turns.leave(Turn(2));
        turns.leave(Turn(1));
        assert_eq!((next(&turns), turns.is_next(None)), ([false, false, true], false));
        turns.leave(Turn(3));
        turns.leave(Turn(3));
        assert!(turns.len() == 0 && turns.is_next(None));
    }
}
