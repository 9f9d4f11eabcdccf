//! Turns in which writes to the origin read from the cache device.

use std::cell::Cell;
use std::rc::Rc;

use forebay_lane::Notify;

/// Writes that may read from the cache device at a time. If all could, none would be ready before
/// nearly all were, and the disk would be idle meanwhile.
const READING: u64 = 4;

/// The same limit for an origin without seeks, which accepts many writes at a time: this many reads
/// keep up with it.
const READING_SEEKLESS: u64 = 32;

/// Gives out turns to read, in the order of asking.
pub(crate) struct ReadTurns {
    /// Number of requested turns, and of turns that have ended.
    asked: Cell<u64>,
    have_read: Cell<u64>,
    changed: Rc<Notify>,
}

impl ReadTurns {
    /// Returns turns that notify `changed` when one ends.
    pub(crate) fn new(changed: Rc<Notify>) -> Self {
        ReadTurns { asked: Cell::new(0), have_read: Cell::new(0), changed }
    }

    /// Waits for a turn, in the order of the calls. `rotational`: whether the origin has seeks.
    pub(crate) async fn take(&self, rotational: bool) -> ReadTurn<'_> {
        let most = if rotational { READING } else { READING_SEEKLESS };
        let number = self.asked.get();
        self.asked.set(number + 1);
        let turn = ReadTurn(self);
        loop {
            let changed = self.changed.listen();
            if number < self.have_read.get() + most {
                return turn;
            }
            changed.await;
        }
    }
}

/// A turn to read; it ends when this is dropped.
#[must_use = "the turn ends when this is dropped"]
pub(crate) struct ReadTurn<'a>(&'a ReadTurns);

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        self.0.have_read.set(self.0.have_read.get() + 1);
        self.0.changed.notify_all();
    }
}
