//! Flush: makes everything acknowledged before it durable, on all lanes.

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
        // Barrier for invariant 1: the records of all lanes.
        Commits(self.0).commit_or_outlive().await
    }
}
