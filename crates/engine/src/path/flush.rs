//! Flush: everything that was acknowledged before becomes durable, whichever lane took it.

use forebay_core::IoError;
use forebay_store::planted::{self, PlantedBug};

use crate::lane::LaneVolume;
use crate::stats::bump;

impl LaneVolume {
    /// Makes every write that was acknowledged before this call durable.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        bump(&self.stats().counters.flushes, 1);
        // Barrier for invariant 1: what went round or through the cache. First, because it makes blocks
        // clean that were written through, and without dirty blocks the cache device may fail.
        if !planted::has(PlantedBug::FlushWithoutOrigin) {
            self.sync_origin().await?;
        }
        // Barrier for invariant 1: records of all lanes.
        self.commit_or_outlive().await
    }

    /// Makes what reached the origin durable, and marks what was written through as clean.
    pub(crate) async fn sync_origin(&self) -> Result<(), IoError> {
        let volume = &self.volume;
        if volume.origin_sync_failed() {
            // No later sync proves anything about these: writeback brings them there again.
            volume.through.lock().clear();
            volume.writeback_wanted.notify_all();
            return Err(IoError::Io);
        }
        let writes = volume.origin_unsynced();
        // Taken before the sync starts: it covers what is in here, and nothing that comes later.
        let through = std::mem::take(&mut *volume.through.lock());
        if writes.is_none() && through.is_empty() {
            return Ok(());
        }
        let failures = volume.sync_failures();
        let mut synced = self.origin.sync().await;
        if synced.is_err() && planted::has(PlantedBug::FailedSyncRetried) {
            synced = self.origin.sync().await;
        }
        if let Err(error) = synced {
            tracing::error!(%error, volume = volume.name, "the origin cannot be synced");
            volume.origin_sync_fails();
            return Err(IoError::Io);
        }
        if volume.sync_failures() != failures {
            // Somebody else's sync failed, and may have taken these writes with it.
            return Err(IoError::Io);
        }
        volume.origin_synced(writes.unwrap_or(0));
        // What a volume leaves behind is counted by whoever has it next.
        volume.still_there()?;
        // Invariant 9: only now do the marks say clean.
        for (block, kept) in through {
            if self.store.store().written_back(&volume.space, block, &kept) {
                volume.cleaned(self.lane(), block);
            }
        }
        Ok(())
    }
}
