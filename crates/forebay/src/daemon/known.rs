//! What the daemon knows of caches whether they are open or not: how far each was, and which volumes
//! are not to come back. Shared between the state, which keeps it, and the host, which acts on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_format::Uuid;
use serde::{Deserialize, Serialize};

/// How far a cache device was when that was durable there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The generation of its superblock.
    pub(crate) generation: u64,
    /// The number of its last log record.
    pub(crate) record: u64,
}

impl Position {
    /// Whether a device that is here has lost something that was durable at `other`. One generation is
    /// no loss: the newest copy of the superblock may be damaged, and the one before it is as good.
    pub(crate) fn is_behind(self, other: Position) -> bool {
        self.generation.saturating_add(1) < other.generation || self.record < other.record
    }
}

/// What is kept in the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The caches, by their UUIDs.
    pub(crate) caches: BTreeMap<Uuid, Position>,
    /// UUIDs of volumes that are deleted, or were never finished, and that their cache devices may
    /// still hold.
    pub(crate) deleted: BTreeSet<Uuid>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Known(Mutex<Facts>);

impl Known {
    /// What was kept.
    pub(crate) fn new(facts: Facts) -> Self {
        Known(Mutex::new(facts))
    }

    /// The facts, to be looked at or changed.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the cache was at least.
    pub(crate) fn position(&self, cache: Uuid) -> Option<Position> {
        self.facts().caches.get(&cache).copied()
    }

    /// The cache is durably here. Positions only grow.
    pub(crate) fn reached(&self, cache: Uuid, position: Position) {
        let mut facts = self.facts();
        let known = facts.caches.entry(cache).or_insert(position);
        known.generation = known.generation.max(position.generation);
        known.record = known.record.max(position.record);
    }

    /// Whether a volume is not to come back.
    pub(crate) fn is_deleted(&self, volume: Uuid) -> bool {
        self.facts().deleted.contains(&volume)
    }
}
