//! The daemon's knowledge of caches, open or not: their positions, and deleted volumes. Shared
//! between the state, which stores it, and the host, which uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_format::Uuid;
use serde::{Deserialize, Serialize};

/// A position in the log of a cache that was durable on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Generation of its superblock.
    pub(crate) generation: u64,
    /// Number of its last log record.
    pub(crate) record: u64,
}

impl Position {
    /// Whether a device at this position has lost something that was durable at `other`. One
    /// generation is not a loss: the newest copy of the superblock may be damaged, and the previous
    /// copy is as good.
    pub(crate) fn is_behind(self, other: Position) -> bool {
        self.generation.saturating_add(1) < other.generation || self.record < other.record
    }
}

/// The stored facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Positions of caches, by their UUIDs.
    pub(crate) caches: BTreeMap<Uuid, Position>,
    /// UUIDs of volumes that were deleted, or never completed, and that may still be on their cache
    /// devices.
    pub(crate) deleted: BTreeSet<Uuid>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Known(Mutex<Facts>);

impl Known {
    /// Starts with stored facts.
    pub(crate) fn new(facts: Facts) -> Self {
        Known(Mutex::new(facts))
    }

    /// Locks the facts, for reading or changing.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last known position of a cache.
    pub(crate) fn position(&self, cache: Uuid) -> Option<Position> {
        self.facts().caches.get(&cache).copied()
    }

    /// Records a durable position of a cache. Positions only grow.
    pub(crate) fn reached(&self, cache: Uuid, position: Position) {
        let mut facts = self.facts();
        let known = facts.caches.entry(cache).or_insert(position);
        known.generation = known.generation.max(position.generation);
        known.record = known.record.max(position.record);
    }

    /// Whether a volume was deleted.
    pub(crate) fn is_deleted(&self, volume: Uuid) -> bool {
        self.facts().deleted.contains(&volume)
    }
}
