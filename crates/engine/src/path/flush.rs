//! Flush: makes everything acknowledged before it durable, on all lanes.

use std::sync::atomic::Ordering;

use forebay_core::IoError;
use forebay_core::why::WakeReason;
use forebay_store::planted::{self, PlantedBug};

use crate::io::commit::Commits;
use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use crate::stats::bump;

/// Serves flushes of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Flusher<'a>(pub(crate) &'a LaneVolume);

impl Flusher<'_> {
    /// Makes every write acknowledged before this call durable.
    pub(crate) async fn flush(self) -> Result<(), IoError> {
        bump(&self.0.stats().counters.flushes, 1);
        // Barrier for invariant 1: writes around and through the cache. Done first, because it
        // makes blocks clean that were written through, and without dirty blocks the cache device
        // may fail.
        if !planted::has(PlantedBug::FlushWithoutOrigin) {
            OriginIo(self.0).sync(WakeReason::Flush).await?;
        }
        let volume = &self.0.volume;
        let covered = volume.committed.wanted(&volume.stats);
        let covered = covered.filter(|_| !planted::has(PlantedBug::FlushUncommitted));
        // A flush of an ordered volume ends a group. A cache device that has failed may have lost
        // its data, and one that is distrusted may be trusted again.
        let needed = volume.is_ordered()
            || volume.note.distrusts.load(Ordering::Relaxed)
            || self.0.is_unavailable_to(true);
        if covered.is_none() && !needed {
            return Ok(());
        }
        // Barrier for invariant 1: the records of all lanes.
        Commits(self.0).commit_or_outlive().await?;
        if let Some(covered) = covered {
            volume.committed.ended(&covered);
        }
        Ok(())
    }
}
