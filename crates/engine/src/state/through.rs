//! Blocks being written through the cache: they are dirty in the log until the write that put them
//! there has reached the origin and the origin has been synced. They do not count as work for
//! writeback.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::OriginBlock;
use forebay_lane::Notify;
use forebay_store::VersionId;
use parking_lot::Mutex;

use crate::state::syncs::BlockMap;

/// The blocks of one volume that are being written through.
#[derive(Default)]
pub(crate) struct Through {
    /// Versions that are on the origin and not synced there yet.
    unsynced: Mutex<BlockMap<VersionId>>,
    /// Number of blocks whose write to the origin, or the sync that covers it, has not ended.
    under_way: AtomicU64,
    /// Notified when the waiting writes should be synced.
    pub(crate) many: Notify,
}

/// Counts blocks as in flight until it is dropped.
pub(crate) struct WriteThroughGuard<'a> {
    through: &'a Through,
    blocks: u64,
}

impl Drop for WriteThroughGuard<'_> {
    fn drop(&mut self) {
        self.through.under_way.fetch_sub(self.blocks, Ordering::Relaxed);
    }
}

impl Through {
    /// Counts blocks that are dirty and about to be written to the origin.
    pub(crate) fn begin(&self, blocks: usize) -> WriteThroughGuard<'_> {
        let blocks = blocks as u64;
        self.under_way.fetch_add(blocks, Ordering::Relaxed);
        WriteThroughGuard { through: self, blocks }
    }

    /// Records versions that are on the origin; the next sync makes them durable there. Notifies
    /// `many` once `most` of them wait for a sync.
    pub(crate) fn written(
        &self,
        blocks: impl Iterator<Item = (OriginBlock, VersionId)>,
        most: usize,
    ) {
        let mut unsynced = self.unsynced.lock();
        unsynced.extend(blocks);
        if unsynced.len() >= most {
            self.many.notify_all();
        }
    }

    /// Takes the versions that a sync starting now covers. They count as in progress until the
    /// guard is dropped.
    pub(crate) fn sync(&self) -> (BlockMap<VersionId>, WriteThroughGuard<'_>) {
        let mut unsynced = self.unsynced.lock();
        let under_way = self.begin(unsynced.len());
        (std::mem::take(&mut *unsynced), under_way)
    }

    /// Forgets the versions that wait for a sync: no sync will prove that the origin has them.
    pub(crate) fn clear(&self) {
        self.unsynced.lock().clear();
    }

    /// Returns the number of versions that wait for a sync.
    pub(crate) fn unsynced(&self) -> usize {
        self.unsynced.lock().len()
    }

    /// Returns the number of dirty blocks that writeback need not write. It may be too high for a
    /// moment, if a block is overwritten while its last version is being written.
    pub(crate) fn count(&self) -> u64 {
        let unsynced = self.unsynced.lock();
        unsynced.len() as u64 + self.under_way.load(Ordering::Relaxed)
    }
}
