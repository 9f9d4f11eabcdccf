//! Writes to one volume's origin, read-modify-write of partial logical blocks, and syncs.

use std::fmt::Display;

use forebay_core::why::{WakeReason, WritebackReason};
use forebay_core::{IoError, OriginBlock};
use forebay_device::{DeviceError, DeviceErrorKind, DeviceOp, IoBuf, IoData};
use forebay_lane::GateGuard;
use forebay_store::VersionId;
use forebay_store::planted::{self, PlantedBug};

use crate::error::WritebackError;
use crate::io::first_write::FirstWrite;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::stats::bump;

/// Writes to and syncs a volume's origin.
#[derive(Clone, Copy)]
pub(crate) struct OriginIo<'a>(pub(crate) &'a LaneVolume);

impl OriginIo<'_> {
    /// Writes a client's data to the origin and returns the buffer. The caller holds the range
    /// exclusively.
    pub(crate) async fn write(self, offset: u64, data: IoBuf) -> (Result<(), IoError>, IoBuf) {
        let volume = &self.0.volume;
        let failures = volume.syncs.failures();
        let _measured = volume.origin_latency.begin(&**self.0.lane().clock());
        let logical = volume.origin.logical_block();
        let is_aligned = |at: u64| at.is_multiple_of(logical);
        let (result, data) = match is_aligned(offset) && is_aligned(data.len() as u64) {
            true => self.write_aligned(offset, data).await,
            false => (self.write_unaligned(offset, &data).await, data),
        };
        (result.and_then(|()| self.unless_lost(failures)), data)
    }

    /// Fails a change of the origin if a sync has failed since `failures` were counted, which was
    /// before the change. That sync may have lost the change, and the kernel reports such a loss
    /// only once (invariant 18).
    pub(crate) fn unless_lost(self, failures: u64) -> Result<(), IoError> {
        if self.0.volume.syncs.failures() == failures {
            return Ok(());
        }
        self.write_failed(&"a sync has failed that may have lost a write");
        Err(IoError::Io)
    }

    /// Like [`OriginIo::write`], for whole logical blocks of the origin.
    async fn write_aligned(self, offset: u64, data: IoBuf) -> (Result<(), IoError>, IoBuf) {
        let volume = &self.0.volume;
        let len = data.len();
        FirstWrite(self.0).before_origin_write(offset..offset + len as u64).await;
        let done = self
            .0
            .origin
            .run(DeviceOp::Write { offset, data: IoData::Owned(data) }, WakeReason::Write)
            .await;
        // A failed write may also have changed data.
        volume.origin_changed(offset..offset + len as u64);
        let data = done.buf.unwrap_or_else(|| IoBuf::zeroed(len));
        match done.result {
            Ok(()) => {
                bump(&self.0.stats().counters.origin_written_bytes, len as u64);
                volume.write_error.clear();
                (Ok(()), data)
            }
            Err(error) => (Err(self.refused(&error)), data),
        }
    }

    /// Writes like [`OriginIo::write`], for whole sectors that are not whole logical blocks of the
    /// origin.
    async fn write_unaligned(self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let volume = &self.0.volume;
        let (start, whole) =
            self.merge_logical(offset, data, WakeReason::Write).await.map_err(|error| {
                volume.reads.error.set(&error);
                tracing::warn!(%error, volume = volume.name, "the origin cannot be read");
                IoError::Io
            })?;
        let end = start + whole.len() as u64;
        FirstWrite(self.0).before_origin_write(start..end).await;
        let written = self.0.origin.write(start, whole, WakeReason::Write).await;
        volume.origin_changed(start..end);
        bump(&self.0.stats().counters.origin_written_bytes, end - start);
        written.map_err(|error| self.refused(&error))?;
        volume.write_error.clear();
        Ok(())
    }

    /// Writes whole sectors of dirty blocks to the origin. The caller holds the range exclusively.
    ///
    /// # Errors
    /// The origin cannot be read or written.
    pub(crate) async fn write_back(
        self,
        offset: u64,
        bytes: IoBuf,
        why: WritebackReason,
    ) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let logical = volume.origin.logical_block();
        let end = offset + bytes.len() as u64;
        let (start, data) = match offset.is_multiple_of(logical) && end.is_multiple_of(logical) {
            true => (offset, bytes),
            false => self.merge_logical(offset, &bytes, why.into()).await?,
        };
        let end = start + data.len() as u64;
        FirstWrite(self.0).before_origin_write(start..end).await;
        let write = DeviceOp::Write { offset: start, data: IoData::Owned(data) };
        let write = self.0.origin.run(write, why.into());
        let done = volume.writeback.cost.of(&**self.0.lane().clock(), write).await;
        bump(&self.0.stats().counters.origin_written_bytes, end - start);
        let refused = || done.result.as_ref().is_err_and(|it| it.kind == DeviceErrorKind::ReadOnly);
        if planted::has(PlantedBug::FailedWritebackCleans)
            || (planted::has(PlantedBug::ProtectedWriteDone) && refused())
        {
            return Ok(());
        }
        Ok(done.result?)
    }

    /// Reads the origin's logical blocks that contain a range of sectors, and copies `data` over
    /// the range. Returns their offset and new content.
    async fn merge_logical(
        self,
        offset: u64,
        data: &[u8],
        cause: WakeReason,
    ) -> Result<(u64, IoBuf), DeviceError> {
        let origin = &self.0.volume.origin;
        let logical = origin.logical_block();
        let start = offset / logical * logical;
        let end = (offset + data.len() as u64).next_multiple_of(logical).min(origin.size());
        let buf = IoBuf::for_overwrite((end - start) as usize);
        let read = self.0.origin.read(start, buf, cause).await;
        let mut whole =
            read.inspect_err(|_| bump(&self.0.stats().counters.origin_read_errors, 1))?;
        let at = (offset - start) as usize;
        whole[at..at + data.len()].copy_from_slice(data);
        Ok((start, whole))
    }

    /// Records that a client's write to the origin failed. Returns the error for the client.
    pub(crate) fn refused(self, error: &DeviceError) -> IoError {
        self.write_failed(error);
        match error.kind {
            DeviceErrorKind::NoSpace => IoError::NoSpace,
            DeviceErrorKind::ReadOnly => IoError::ReadOnly,
            _ => IoError::Io,
        }
    }

    pub(crate) fn write_failed(self, error: &impl Display) {
        tracing::warn!(%error, volume = self.0.volume.name, "the origin cannot be written");
        self.0.volume.write_error.set(error);
    }

    /// Makes all writes of clients to the origin durable that ended before this call, and marks
    /// blocks that were written through as clean. Callers share syncs: a caller that arrives during
    /// one waits for it, and the next one covers all that wait.
    pub(crate) async fn sync(self, cause: WakeReason) -> Result<(), IoError> {
        let volume = &self.0.volume;
        if volume.origin_sync_failed() {
            // No later sync proves that these are durable; writeback writes them again.
            volume.through.clear();
            volume.writeback.wanted.notify_all();
            return Err(IoError::Io);
        }
        let last = volume.syncs.last_unsynced();
        let is_done = || match last {
            Some(write) => volume.syncs.is_durable(write),
            None => volume.through.unsynced() == 0,
        };
        if is_done() {
            return Ok(());
        }
        let failures = volume.syncs.failures();
        let joins =
            planted::has(PlantedBug::FlushJoinsSync) && volume.syncs.turn.try_enter().is_none();
        let over = || {
            if volume.syncs.failures() != failures || volume.origin_sync_failed() {
                // Another task's sync failed, and may have lost these writes.
                return Some(Err(IoError::Io));
            }
            is_done().then_some(Ok(()))
        };
        let turn = match volume.syncs.turn.enter_unless(over).await {
            Ok(_) if joins => return Ok(()),
            Ok(turn) => turn,
            Err(over) => return over,
        };
        // Taken before the sync starts: the sync covers these writes and no later ones.
        let (through, under_way) = volume.through.sync();
        if let Err(error) = self.sync_in_turn(&turn, cause).await {
            tracing::error!(%error, volume = volume.name, "the origin cannot be synced");
            drop(under_way);
            volume.writeback.wanted.notify_all();
            return Err(IoError::Io);
        }
        // A removed volume's dirty blocks are counted by its next attachment; mark none here.
        volume.still_there()?;
        // Invariant 9: marked clean only after the sync.
        for (block, kept) in through {
            let stays = || volume.is_being_zeroed(block);
            if self.0.store.store().written_back(&volume.space, block, &kept, stays) {
                Policy(self.0).cleaned(block, &kept);
                volume.cleaned(self.0.lane(), block);
            }
        }
        Ok(())
    }

    /// Waits for a sync of the origin that begins after this call.
    ///
    /// # Errors
    /// This sync, or another one that ended meanwhile, has failed.
    pub(crate) async fn sync_device(self, cause: WakeReason) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let (failures, begun) = (volume.syncs.failures(), volume.syncs.begun());
        let over = || {
            if volume.syncs.failures() != failures {
                return Some(Err(WritebackError::SyncLost));
            }
            volume.syncs.has_ended_since(begun).then_some(Ok(()))
        };
        match volume.syncs.turn.enter_unless(over).await {
            Ok(turn) => Ok(self.sync_in_turn(&turn, cause).await?),
            Err(over) => over,
        }
    }

    /// Syncs the origin, one sync at a time. The kernel reports a failure only once, so a failure
    /// must be known before a later sync, which may have lost the same writes, succeeds (invariant
    /// 18).
    async fn sync_in_turn(
        self,
        _turn: &GateGuard<'_>,
        cause: WakeReason,
    ) -> Result<(), DeviceError> {
        let volume = &self.0.volume;
        // Counted before the sync starts, because the sync does not cover later changes.
        let sync = volume.syncs.begin();
        let mut synced = self.0.origin.sync(cause).await;
        if synced.is_err() && planted::has(PlantedBug::FailedSyncRetried) {
            synced = self.0.origin.sync(cause).await;
        }
        match synced {
            Ok(()) => volume.syncs.end(sync),
            Err(_) => volume.origin_sync_fails(),
        }
        synced
    }

    /// Records blocks that have been written through to the origin; the next sync makes them
    /// durable there.
    pub(crate) fn note_through(self, blocks: impl Iterator<Item = (OriginBlock, VersionId)>) {
        self.0.volume.through.written(blocks, self.most_through());
    }

    /// Returns the number of written-through blocks that triggers a sync. Until the sync they take
    /// log space like dirty blocks.
    pub(crate) fn most_through(self) -> usize {
        const MOST: u64 = 16384;
        (self.0.cache.store.capacity_blocks() / 16).min(MOST) as usize
    }
}
