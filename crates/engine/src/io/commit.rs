//! Commits of the log, and continued service when the cache device has failed or hangs.
//!
//! A failed or hung log can no longer record that a cached block was removed because the origin got
//! newer data, or that a dirty block was written back. If the device worked again after a restart,
//! its old copy would be served, or written back over the newer data. So before the origin gets
//! data that the log does not know of, a note in the [`Ledger`](crate::state::ledger::Ledger) lists
//! the blocks that are dirty now. The next attach of the volume keeps only these blocks of the
//! device and drops all others (invariants 5, 6, 9 and 15).

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use forebay_core::why::WakeReason;
use forebay_core::{IoError, Survives};
use forebay_lane::either;

use forebay_store::planted::{self, PlantedBug};

use crate::io::notes::{CommitError, NoteKeeper};
use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use crate::plan::keeps_dirty;
use crate::state::cache::hang::CacheWork;

/// Longest time that a flush waits for the origin to make writes durable that went through a failed
/// cache.
const THROUGH_PATIENCE: Duration = Duration::from_secs(5);

/// Changes of the log that must be durable before the origin gets newer data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// Removals of blocks: a removed block must not return after a crash.
    Removals,
    /// Also marks of blocks that were written back: such a block must not become dirty again.
    Marks,
    /// Also all appended records: their versions replace older ones, which must not return.
    WithRecords,
}

/// Makes writes durable, on the cache device or without it.
#[derive(Clone, Copy)]
pub(crate) struct Commits<'a>(pub(crate) &'a LaneVolume);

impl Commits<'_> {
    /// Makes every write acknowledged before this call durable: on the cache device, or on the
    /// origin alone if nothing is dirty.
    pub(crate) async fn commit_or_outlive(self) -> Result<(), IoError> {
        let Some(this) = self.0.shared() else { return Err(IoError::ShuttingDown) };
        let mut commit: CacheWork<Result<(), CommitError>> =
            Box::pin(async move { Commits(&this).commit().await });
        loop {
            match self.0.cache.unless_it_can_be_noted(&mut commit).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error))
                    if self.0.volume.dirty.total() > 0 && !self.is_all_through().await =>
                {
                    return Err(self.failed(&error));
                }
                // This total is kept by region. A block is added to and subtracted from the same
                // counter, and it is added before another lane can write it back, so the total
                // never misses a dirty block. The totals by lane may.
                None if self.0.volume.dirty.total() > 0 => {
                    let changed = self.0.cache.health.changed.listen();
                    let timer = self.0.lane().sleep(Duration::from_millis(100));
                    either(changed, timer).await;
                }
                end => {
                    if end.is_none() {
                        self.0.lane().spawn(async move { drop(commit.await) });
                    }
                    // Barrier for invariant 1: everything is durable on the origin. Marks make sure
                    // that no block of the cache device is written back over it later.
                    return self.sync_forgotten(&(0..self.0.volume.size()), Forgotten::Marks).await;
                }
            }
        }
    }

    /// Waits, in a mode that keeps no dirty blocks, until the origin has all writes durably and no
    /// block is dirty; returns whether that succeeded. Blocks of unacknowledged writes in flight
    /// are dirty too: these writes end soon, and no new ones start once the cache device has
    /// failed.
    async fn is_all_through(self) -> bool {
        let (volume, began) = (&self.0.volume, self.0.now());
        while !keeps_dirty(volume.mode()) && OriginIo(self.0).sync(WakeReason::Flush).await.is_ok()
        {
            let progress = volume.writeback.progress.listen();
            if volume.dirty.total() == 0 {
                return true;
            }
            let stays = volume.has_bad() || volume.has_refused();
            if stays || self.0.now().since(began) >= THROUGH_PATIENCE {
                return false;
            }
            either(progress, self.0.lane().sleep(Duration::from_millis(20))).await;
        }
        false
    }

    /// Makes the forgetting of a range durable, so that after a crash none of its removed blocks
    /// returns and replaces the newer data that the origin may get.
    ///
    /// # Errors
    /// Neither the log nor the ledger could record it.
    pub(crate) async fn sync_forgotten(
        self,
        range: &Range<u64>,
        what: Forgotten,
    ) -> Result<(), IoError> {
        let store = self.0.store.store();
        let done = match what {
            Forgotten::Removals => store.gone_durable(),
            Forgotten::Marks => store.marks_durable(),
            Forgotten::WithRecords => false,
        };
        if done {
            return Ok(());
        }
        if !store.health.failed() {
            let lane = self.0.store.clone();
            let settled = self.0.unless_hung(async move {
                if what == Forgotten::WithRecords {
                    lane.commit().await?;
                }
                lane.sync_marks().await
            });
            match settled.await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if !store.health.failed() => return Err(self.failed(&error)),
                Some(Err(_)) | None => {}
            }
        }
        NoteKeeper(self.0).note_dirty(range).await.map_err(|error| {
            tracing::warn!(%error, volume = self.0.volume.name, "neither the log nor the ledger can record that the origin has newer data");
            IoError::Io
        })
    }

    /// Makes everything appended before this call survive the failures that the request names.
    pub(crate) async fn secure(self, survives: Survives) -> Result<(), IoError> {
        let secured = match survives {
            Survives::Nothing => Ok(()),
            Survives::Daemon => self.write_out().await,
            Survives::PowerLoss => self.commit().await,
        };
        secured.map_err(|error| self.failed(&error))
    }

    /// Writes everything appended before this call to the cache device. Because no client has
    /// flushed, this ends no group of an ordered volume.
    async fn write_out(self) -> Result<(), CommitError> {
        self.0.store.write_out().await?;
        NoteKeeper(self.0).note_regions().await;
        NoteKeeper(self.0).trust_again().await
    }

    /// Makes everything appended before this call durable. This ends a group of an ordered volume.
    ///
    /// # Errors
    /// The cache device failed.
    pub(crate) async fn commit(self) -> Result<(), CommitError> {
        let store = self.0.store.store();
        let boundary = self.0.volume.is_ordered() && !planted::has(PlantedBug::FlushIsNoBoundary);
        let cut = if boundary { store.cut(self.0.volume.id, self.0.now()) } else { None };
        self.0.store.commit().await?;
        if let Some(cut) = cut {
            store.confirm_cut(self.0.volume.id, cut);
        }
        NoteKeeper(self.0).note_regions().await;
        NoteKeeper(self.0).trust_again().await
    }

    pub(crate) fn failed(self, error: &impl Display) -> IoError {
        tracing::debug!(%error, volume = self.0.volume.name, "a request fails");
        IoError::Io
    }
}
