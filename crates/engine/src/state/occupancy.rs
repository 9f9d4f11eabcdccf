//! The space of a cache that each volume occupies, including volumes that are not attached.
//!
//! The dirty blocks of a volume that is not attached (stopped, waiting, failed) stay in the cache
//! until it is attached again or deleted. Their number does not change meanwhile, so it is
//! determined once: when the volume is detached, or when the cache is opened.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::VolumeId;
use forebay_store::{Address, Entry, Store, StoreLane};
use parking_lot::Mutex;

/// The space that one volume occupies in the cache, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Cached blocks, clean and dirty.
    pub cached: u64,
    /// Dirty blocks: newer than the origin.
    pub dirty: u64,
    /// Cached blocks that the replacement policy keeps, if it uses ranks.
    pub kept: u64,
    /// Versions held for ordered writeback, whether or not newer ones have replaced them.
    pub held: u64,
}

/// Dirty blocks of the volumes that are not attached.
#[derive(Default)]
pub(crate) struct Detached {
    volumes: Mutex<HashMap<VolumeId, u64>>,
    total: AtomicU64,
}

impl Detached {
    /// Counts the dirty blocks in a store with no volume attached yet.
    pub(crate) async fn count(&self, store: &StoreLane) {
        let spaces = store.store().spaces();
        let mut volumes = HashMap::new();
        let found = |address, _: &Entry| {
            if let Some((space, _)) = spaces.find(address) {
                *volumes.entry(space.id).or_default() += 1;
            }
        };
        store.visit(|entry| entry.dirty, found).await;
        self.change(|own| *own = volumes);
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<VolumeId, u64>)) {
        let mut volumes = self.volumes.lock();
        change(&mut volumes);
        self.total.store(volumes.values().sum(), Ordering::SeqCst);
    }

    /// Counts a loaded dirty block of a volume that is not attached.
    pub(crate) fn loaded(&self, store: &Store, address: Address) {
        if let Some((space, _)) = store.find_space(address) {
            self.change(|volumes| *volumes.entry(space.id).or_default() += 1);
        }
    }

    /// Adds a volume that is no longer attached, with its dirty blocks.
    pub(crate) fn add(&self, id: VolumeId, dirty: u64) {
        self.change(|volumes| _ = volumes.insert(id, dirty));
    }

    /// Removes a volume that is attached again, or deleted.
    pub(crate) fn remove(&self, id: VolumeId) {
        self.change(|volumes| _ = volumes.remove(&id));
    }

    /// Returns the dirty blocks of all volumes that are not attached.
    pub(crate) fn dirty(&self) -> u64 {
        self.total.load(Ordering::SeqCst)
    }
}
