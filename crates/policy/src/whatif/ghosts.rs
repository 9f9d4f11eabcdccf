//! The ghosts of a shadow cache: which absent blocks it remembers.

use crate::{Ghost, Past, Recall};

/// See the module.
pub(super) struct Ghosts {
    now: Ghost,
    /// Ghosts of the previous sample, which had more blocks. A ghost does not identify its block,
    /// so ghosts cannot be thinned: they stay until as many new ghosts were noted as ghosts reach
    /// back.
    before: Option<(Ghost, u64)>,
}

impl Ghosts {
    /// Creates a memory of this many absent blocks.
    pub(super) fn new(entries: u64) -> Self {
        Ghosts { now: Ghost::new(entries), before: None }
    }

    /// Replaces the ghosts by this many for a thinner sample.
    pub(super) fn thin(&mut self, entries: u64) {
        let before = std::mem::replace(&mut self.now, Ghost::new(entries));
        self.before = Some((before, entries));
    }

    pub(super) fn recall(&self, key: u64) -> Recall {
        match (self.now.recall(key), &self.before) {
            (Recall::Nothing, Some((before, _))) => before.recall(key),
            (found, _) => found,
        }
    }

    pub(super) fn note(&mut self, key: u64, past: Past) {
        self.now.note(key, past);
        match &mut self.before {
            Some((_, left @ 1..)) => *left -= 1,
            _ => self.before = None,
        }
    }

    pub(super) fn forget(&self, key: u64) {
        self.now.forget(key);
        if let Some((before, _)) = &self.before {
            before.forget(key);
        }
    }

    /// Returns the most bytes that the ghosts take from now on. Those of the previous sample add
    /// half as many.
    pub(super) fn most_bytes(&self) -> u64 {
        self.now.bytes() * 2
    }
}
