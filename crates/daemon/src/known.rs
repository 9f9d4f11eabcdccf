//! The daemon's knowledge of caches, open or not: their positions, and deleted volumes. Shared
//! between the state, which stores it, and the host, which uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay_format::{Superblock, Uuid};
use forebay_store::Store;
use forebay_threads::{Mutex, MutexGuard};
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
    /// The record number of a cache whose log has not been read.
    const ANY_RECORD: u64 = u64::MAX;

    /// Returns whether a device at this position has lost something that was durable at `other`. A
    /// difference of one generation is not a loss: the newest copy of the superblock may be
    /// damaged, and the previous copy is equivalent.
    pub(crate) fn is_behind(self, other: Position) -> bool {
        self.generation.saturating_add(1) < other.generation || self.record < other.record
    }
}

impl From<&Superblock> for Position {
    fn from(superblock: &Superblock) -> Self {
        // The end of the log beyond this is known only after recovery.
        let record = match superblock.clean_shutdown {
            true => superblock.last_record.0,
            false => Self::ANY_RECORD,
        };
        Position { generation: superblock.generation, record }
    }
}

impl From<&Store> for Position {
    fn from(store: &Store) -> Self {
        let (generation, record) = store.position();
        Position { generation, record: record.0 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            Self::ANY_RECORD => write!(f, "generation {}", self.generation),
            record => write!(f, "record {record} of generation {}", self.generation),
        }
    }
}

/// The stored facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Positions of caches, by the UUIDs of their volumes, because the volumes of an adopted copy
    /// have new UUIDs while its cache has that of the original. States of earlier programs have
    /// them by the UUIDs of caches.
    pub(crate) caches: BTreeMap<Uuid, Position>,
    /// UUIDs of volumes that were deleted, or never completed, and that may still be on their cache
    /// devices.
    pub(crate) deleted: BTreeSet<Uuid>,
    /// UUIDs of volumes for which an older copy of their cache device has not been accepted yet: it
    /// was accepted for another volume.
    pub(crate) behind: BTreeSet<Uuid>,
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
        self.0.lock()
    }

    /// Returns the last known position of the cache that holds a volume.
    pub(crate) fn position(&self, volume: Option<Uuid>, cache: Uuid) -> Option<Position> {
        let facts = self.facts();
        let own = volume.and_then(|volume| facts.caches.get(&volume));
        own.or_else(|| facts.caches.get(&cache)).copied()
    }

    /// Records a durable position of a cache with these volumes. Positions only grow.
    pub(crate) fn reached(
        &self,
        cache: Uuid,
        volumes: impl IntoIterator<Item = Uuid>,
        position: Position,
    ) {
        let mut facts = self.facts();
        let earlier = facts.caches.remove(&cache).unwrap_or(position);
        for volume in volumes {
            let known = facts.caches.entry(volume).or_insert(earlier);
            known.generation = known.generation.max(position.generation);
            known.record = known.record.max(position.record);
        }
    }

    /// Returns whether an older copy of the cache device was accepted for another volume, and not
    /// for this one.
    pub(crate) fn is_behind(&self, volume: Option<Uuid>) -> bool {
        volume.is_some_and(|volume| self.facts().behind.contains(&volume))
    }

    /// Whether a volume was deleted.
    pub(crate) fn is_deleted(&self, volume: Uuid) -> bool {
        self.facts().deleted.contains(&volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_positions_of_a_cache_and_of_its_copy_are_apart() {
        let [cache, volume, copied] = [1, 2, 3].map(Uuid::from_u128);
        let at = |number| Position { generation: number, record: number };
        // These facts have the form in which an earlier program stored them.
        let facts = Facts { caches: [(cache, at(50))].into(), ..Facts::default() };
        let known = Known::new(facts);
        assert_eq!(known.position(Some(volume), cache), Some(at(50)));
        known.reached(cache, [volume], at(40));
        assert_eq!(known.position(Some(volume), cache), Some(at(50)), "positions only grow");
        known.reached(cache, [copied], at(7));
        assert_eq!(known.position(Some(copied), cache), Some(at(7)));
        assert_eq!(known.position(Some(volume), cache), Some(at(50)));
        assert_eq!(known.position(None, cache), None);
    }
}
