//! Writes: to the log, through the log to the origin, or around the log.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use forebay_core::why::{BypassReason, InvalidationReason, RefusalReason, WakeReason};
use forebay_core::{Durability, IoError, OriginBlock, Survives};
use forebay_device::IoBuf;
use forebay_lane::either;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Version};

use crate::io::admission::AdmissionControl;
use crate::io::commit::{Commits, Forgotten};
use crate::io::counted::CountedAppends;
use crate::io::origin::OriginIo;
use crate::io::policy::Policy;
use crate::io::space::Space;
use crate::io::streams::StreamControl;
use crate::io::writeback::put_on_origin;
use crate::lane::LaneVolume;
use crate::path::append::Appender;
use crate::path::append::{AppendProgress, Room};
use crate::path::turns::Turns;
use crate::plan::{
    BlockState, WriteStep, asks_admission, keeps_dirty, mode_in_order, write_bypass, write_step,
    write_steps,
};
use crate::state::volume::VolumeState;
use crate::stats::bump;

/// The result of one attempt to route a write.
enum WriteEnd {
    Done(Result<(), IoError>),
    /// Conditions have changed meanwhile: choose the route again.
    Again,
}

/// Serves writes of a volume on one lane.
#[derive(Clone, Copy)]
pub(crate) struct VolumeWriter<'a>(pub(crate) &'a LaneVolume);

impl VolumeWriter<'_> {
    /// Completes a write at once if it goes to the log and there is free space.
    pub(crate) fn write_quickly(self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        let volume = &self.0.volume;
        let len = data.len() as u64;
        let direct = write_step(volume.mode(), BlockState::Absent, None) == WriteStep::Cache;
        let checked = volume.check_range(offset, len, true).is_ok() && len > 0;
        let waits = self.0.cache.throttle.is_engaged();
        let room = Space(self.0).has_room_in_order();
        if !direct || !checked || waits || !room || volume.durability() == Durability::Strict {
            return None;
        }
        // Only one whole block: a write of several could find space for some of them, and no part
        // of a write may be done twice.
        let mut pieces = volume.pieces(offset, len);
        let piece = pieces.next().filter(|piece| piece.bytes.len() == volume.block.as_usize())?;
        let streams = StreamControl(self.0);
        if pieces.next().is_some()
            || (streams.observe(true, offset, len) && streams.writes_bypass())
        {
            return None;
        }
        if volume.is_frozen() && !self.is_cached(piece.block) {
            return None;
        }
        let rank = Policy(self.0).rank_of_write(piece.block);
        let version = Version {
            space: &volume.space,
            block: piece.block,
            dirty: true,
            mask: None,
            rank: rank.bits(),
            condition: Condition::Always,
        };
        match CountedAppends(self.0).append_whole(
            version,
            Policy(self.0).class_of_write(rank),
            data,
        ) {
            Appended::Done { old, .. } => {
                Appender(self.0).note_appended(piece.block, old.as_ref());
                Appender(self.0).count_write(old.is_some(), len, 1);
                bump(&self.0.stats().logged, 1);
                Some(Ok(()))
            }
            Appended::NoSpace | Appended::NoMask | Appended::Refused => None,
        }
    }

    /// Writes a checked range and returns the buffer.
    pub(crate) async fn write(
        self,
        offset: u64,
        data: IoBuf,
        survives: Survives,
    ) -> (Result<(), IoError>, IoBuf) {
        let (mut rest, mut done) = (data, IoBuf::empty());
        loop {
            let at = offset + done.len() as u64;
            let Some(seam) = self.seam(at, rest.len() as u64) else {
                let (result, part) = self.write_one_way(at, rest, survives).await;
                return (result, done.join(part));
            };
            let behind = rest.split_off(seam as usize);
            let (result, part) = self.write_one_way(at, rest, survives).await;
            (rest, done) = (behind, done.join(part));
            if result.is_err() {
                return (result, done.join(rest));
            }
        }
    }

    /// Returns the length of the first part of a write that has to be split, because the volume is
    /// frozen: cached blocks must be updated, and other blocks must not enter.
    fn seam(self, offset: u64, len: u64) -> Option<u64> {
        let volume = &self.0.volume;
        if !volume.is_frozen() || volume.is_ordered() {
            return None;
        }
        let mut pieces = volume.pieces(offset, len);
        let first = self.is_cached(pieces.next()?.block);
        let seam = pieces.find(|piece| self.is_cached(piece.block) != first)?;
        Some(seam.bytes.start as u64)
    }

    fn is_cached(self, block: OriginBlock) -> bool {
        self.0.store.store().peek(&self.0.volume.space, block).is_some()
    }

    /// Writes a range on one route, or on another one if conditions change.
    async fn write_one_way(
        self,
        offset: u64,
        mut data: IoBuf,
        survives: Survives,
    ) -> (Result<(), IoError>, IoBuf) {
        let len = data.len() as u64;
        let mut refused = None;
        loop {
            if let Err(error) = self.0.volume.still_there() {
                return (Err(error), data);
            }
            let (route, bypass) = self.route(offset, len, &mut refused);
            let failed = || self.bypasses_failed_cache();
            let goes_around = || failed() || Space(self.0).is_starved();
            if route != WriteStep::Around && goes_around() {
                // Dirty blocks in the range are written back first; then the write bypasses the
                // cache.
                let range = offset..offset + len;
                if let Err(error) = self.until_written_back(range, goes_around).await {
                    return (Err(error), data);
                }
                continue;
            }
            let end = match route {
                WriteStep::Cache => {
                    let mut progress = AppendProgress::default();
                    let mut result = self.write_cache(offset, &data, survives, &mut progress).await;
                    if matches!(result, Ok(Room::Found)) && !self.may_leave_dirty() {
                        // The mode may have changed during the wait, and a drain for that may have
                        // ended.
                        let range = offset..offset + len;
                        let put = self.put_through(range, survives, &progress).await;
                        result = put.map(|()| Room::Found);
                    }
                    WriteEnd::Done(
                        self.end_in_log(result, offset, &data, survives, &progress).await,
                    )
                }
                WriteStep::Through => {
                    let (end, buf) = self.write_through(offset, data, survives).await;
                    data = buf;
                    end
                }
                WriteStep::Around => {
                    let streams = &self.0.volume.streams;
                    let _measured = (bypass == Some(BypassReason::Sequential))
                        .then(|| streams.begin(&**self.0.lane().clock()));
                    let (end, buf) = self.write_around(offset, data, survives).await;
                    data = buf;
                    end
                }
            };
            if let WriteEnd::Done(result) = end {
                if route == WriteStep::Around {
                    self.count_bypass(offset, len, bypass);
                }
                return (result, data);
            }
        }
    }

    fn count_bypass(self, offset: u64, len: u64, bypass: Option<BypassReason>) {
        let reason = write_bypass(self.0.volume.mode(), bypass);
        self.0.stats().why.bypass.count(reason, 1);
        let refusal = match reason {
            BypassReason::NotAdmitted => RefusalReason::NotAdmitted,
            BypassReason::WriteBudget => RefusalReason::WriteBudget,
            BypassReason::Sequential
            | BypassReason::Congested
            | BypassReason::Unavailable
            | BypassReason::NoRoom
            | BypassReason::Frozen
            | BypassReason::Mode => return,
        };
        for block in self.0.volume.blocks(offset..offset + len) {
            AdmissionControl(self.0).refused(OriginBlock(block), false, refusal);
        }
    }

    /// Returns the route of a whole write, and the reason to bypass the cache, if any. `refused`
    /// caches the replacement policy's answer, because the policy counts each question as a miss.
    fn route(
        self,
        offset: u64,
        len: u64,
        refused: &mut Option<bool>,
    ) -> (WriteStep, Option<BypassReason>) {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        // Writes of an ordered volume never bypass the log (invariant 28).
        let ordered = volume.is_ordered();
        let mode = if ordered { mode_in_order(volume.mode()) } else { volume.mode() };
        let mut bypass = match Space(self.0).is_starved() {
            true => Some(BypassReason::NoRoom),
            false => AdmissionControl(self.0).bypass(true, offset, len).filter(|_| !ordered),
        };
        let absent = |block| store.peek(&volume.space, OriginBlock(block)).is_none();
        if bypass.is_none() && asks_admission(mode) {
            let mut blocks = volume.blocks(offset..offset + len);
            bypass = AdmissionControl(self.0)
                .bypass_of_write(blocks.clone())
                .filter(|_| blocks.clone().all(absent));
            if bypass.is_none() && !self.0.cache.ranks() && blocks.clone().all(absent) {
                let refused = refused.get_or_insert_with(|| {
                    !blocks.any(|block| Policy(self.0).admits(OriginBlock(block)))
                });
                bypass = refused.then_some(BypassReason::NotAdmitted);
            }
        }
        let route = write_steps(volume.pieces(offset, len).map(|piece| {
            let found = store.peek(&volume.space, piece.block);
            write_step(mode, BlockState::of(found.as_ref().map(|found| &found.entry)), bypass)
        }));
        (route, bypass)
    }

    /// Returns whether writes meant for the log bypass it because the cache device has failed.
    /// Writes of an ordered volume never do (invariant 28).
    fn bypasses_failed_cache(self) -> bool {
        self.0.store.store().health.failed() && !self.0.volume.is_ordered()
    }

    /// Returns whether a write whose blocks are in the log may be acknowledged before the origin
    /// has the data.
    fn may_leave_dirty(self) -> bool {
        // Either a drain for another mode sees the dirty blocks, or this thread sees the new mode.
        fence(Ordering::SeqCst);
        keeps_dirty(self.0.volume.mode()) || self.0.volume.is_ordered()
    }

    /// Ends a write to the log; the part that did not fit into the log bypasses it.
    async fn end_in_log(
        self,
        result: Result<Room, IoError>,
        offset: u64,
        data: &[u8],
        survives: Survives,
        progress: &AppendProgress,
    ) -> Result<(), IoError> {
        match result {
            Ok(Room::Never) => self.finish_around(offset, data, survives, progress).await,
            Err(_) if self.bypasses_failed_cache() => {
                self.finish_around(offset, data, survives, progress).await
            }
            result => result.map(drop),
        }
    }

    /// Ends a write of which only the beginning is in the log, because the cache device failed or
    /// no space will become free. The beginning may have been read already, so it must not be
    /// written again: that could overwrite later writes (invariant 6). The rest bypasses the cache.
    async fn finish_around(
        self,
        offset: u64,
        data: &[u8],
        survives: Survives,
        progress: &AppendProgress,
    ) -> Result<(), IoError> {
        let volume = &self.0.volume;
        let pieces = volume.pieces(offset, data.len() as u64).take(progress.written.len());
        let logged = pieces.map(|piece| piece.bytes.len()).sum::<usize>();
        let seam = offset + logged as u64;
        if let Some(rest) = data.get(logged..).filter(|rest| !rest.is_empty()) {
            let mut buf = IoBuf::for_overwrite(rest.len());
            buf.copy_from_slice(rest);
            Box::pin(self.write(seam, buf, survives)).await.0?;
        }
        let buffered = self.promised(survives) == Survives::Nothing;
        if logged == 0 || (buffered && keeps_dirty(volume.mode())) {
            return Ok(());
        }
        if !self.bypasses_failed_cache() {
            let result = match keeps_dirty(volume.mode()) {
                true => Commits(self.0).secure(Survives::PowerLoss).await,
                false => self.put_through(offset..seam, survives, progress).await,
            };
            if result.is_ok() || !self.bypasses_failed_cache() {
                return result;
            }
        }
        // Barrier for invariants 2 and 31: the data is durable on the origin, and nothing in the
        // log may overwrite it.
        self.until_written_back(offset..seam, || true).await?;
        Commits(self.0).sync_forgotten(&(offset..seam), Forgotten::Marks).await
    }

    /// Waits until no block in a range is dirty, as long as that is `needed`: the cache device
    /// accepts no new data.
    async fn until_written_back(
        self,
        range: Range<u64>,
        needed: impl Fn() -> bool,
    ) -> Result<(), IoError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        while needed() {
            let changed = volume.writeback.progress.listen();
            let is_dirty = |block: &OriginBlock| {
                store.peek(&volume.space, *block).is_some_and(|found| found.entry.dirty)
            };
            let mut dirty = volume.blocks(range.clone()).map(OriginBlock).filter(is_dirty);
            let Some(first) = dirty.next() else { return Ok(()) };
            let stays = |block| volume.is_bad(block) || volume.is_refused(block);
            let bad = stays(first) || dirty.any(stays);
            if volume.state() != VolumeState::Running {
                return Err(IoError::ShuttingDown);
            }
            if bad || volume.is_ordered() || volume.writeback_fails() {
                return Err(IoError::Io);
            }
            volume.writeback.wanted.notify_all();
            either(changed, self.0.lane().sleep(Duration::from_millis(20))).await;
        }
        Ok(())
    }

    /// Writes to the log. [`Room::Never`] means that only the part for which there was free space
    /// was written.
    async fn write_cache(
        self,
        offset: u64,
        data: &[u8],
        survives: Survives,
        progress: &mut AppendProgress,
    ) -> Result<Room, IoError> {
        Turns(self.0).wait_for_turn(offset, data.len() as u64).await;
        if Appender(self.0).append_patiently(offset, data, progress).await? == Room::Never {
            return Ok(Room::Never);
        }
        let ignored = survives == Survives::PowerLoss && planted::has(PlantedBug::FuaIgnored);
        // Barrier for invariants 2 and 31: the write's own record is durable, or written, before
        // the write is acknowledged.
        let promised = self.promised(if ignored { Survives::Nothing } else { survives });
        Commits(self.0).secure(promised).await?;
        Ok(Room::Found)
    }

    /// Writes to the log and to the origin. The blocks stay dirty until the origin is synced.
    async fn write_through(
        self,
        offset: u64,
        data: IoBuf,
        survives: Survives,
    ) -> (WriteEnd, IoBuf) {
        let volume = &self.0.volume;
        let len = data.len() as u64;
        let range = volume.ranges.exclusive(volume.widen(offset..offset + len)).await;
        if let Err(error) = volume.still_there() {
            return (WriteEnd::Done(Err(error)), data);
        }
        if volume.is_ordered() {
            return (WriteEnd::Again, data);
        }
        let mut progress = AppendProgress::default();
        match Appender(self.0).append_rest(offset, &data, &mut progress).await {
            Ok(None) => bump(&self.0.stats().counters.write_through, 1),
            Ok(Some(_)) => {
                drop(range);
                // Release the range while waiting, so that it does not keep writeback from freeing
                // space.
                let result =
                    match Appender(self.0).append_patiently(offset, &data, &mut progress).await {
                        Ok(Room::Found) => {
                            bump(&self.0.stats().counters.write_through, 1);
                            let put =
                                self.put_through(offset..offset + len, survives, &progress).await;
                            put.map(|()| Room::Found)
                        }
                        other => other,
                    };
                let result = self.end_in_log(result, offset, &data, survives, &progress).await;
                volume.writeback.wanted.notify_all();
                return (WriteEnd::Done(result), data);
            }
            Err(error) => {
                self.left_in_log(progress.written.len());
                return (WriteEnd::Done(Err(error)), data);
            }
        }
        let AppendProgress { mut written, cached } = progress;
        let (replaced, blocks) = (cached > 0, written.len());
        // Blocks that were dirty before will not be wholly on the origin: writeback completes them.
        written.retain(|written| written.complete);
        let under_way = volume.through.begin(written.len());
        // Barrier for invariant 6: no older copy may come back after a crash once the origin has
        // begun to change.
        let what = if replaced { Forgotten::WithRecords } else { Forgotten::Removals };
        let bytes = offset..offset + len;
        if let Err(error) = Commits(self.0).sync_forgotten(&bytes, what).await {
            drop(under_way);
            self.left_in_log(blocks);
            return (WriteEnd::Done(Err(error)), data);
        }
        let (result, data) = OriginIo(self.0).write(offset, data).await;
        if result.is_ok() {
            let versions = written.iter().map(|written| (written.block, written.version));
            OriginIo(self.0).note_through(versions);
        }
        drop(under_way);
        // The next step may wait for writeback, or for a sync that also covers writes of other
        // clients to the range.
        drop(range);
        if result.is_err() {
            self.left_in_log(blocks);
        } else if self.promised(survives) != Survives::PowerLoss || written.len() < blocks {
            volume.writeback.wanted.notify_all();
        }
        (WriteEnd::Done(self.end_on_origin(survives, &bytes, result).await), data)
    }

    /// Leaves blocks to writeback whose write through the cache has failed. Only the log has them,
    /// and clients may have read them.
    fn left_in_log(self, blocks: usize) {
        bump(&self.0.stats().logged, blocks as u64);
        self.0.volume.writeback.wanted.notify_all();
    }

    /// Writes the blocks of a write that are in the log to the origin: used when the log was full
    /// at first.
    async fn put_through(
        self,
        range: Range<u64>,
        survives: Survives,
        progress: &AppendProgress,
    ) -> Result<(), IoError> {
        let blocks = progress.written.iter().map(|written| written.block).collect();
        // Blocks that were replaced meanwhile are written in their newer version.
        let put = put_on_origin(self.0, blocks).await;
        // A sync that began before this write does not cover it.
        self.0.volume.origin_changed(range.clone());
        let result = put.map_err(|error| {
            OriginIo(self.0).write_failed(&error);
            IoError::Io
        });
        if self.0.volume.is_ordered() {
            // Ordered writeback has been switched on meanwhile, and writes this to the origin in
            // its turn.
            result?;
            return Commits(self.0).secure(self.promised(survives)).await;
        }
        self.end_on_origin(survives, &range, result).await
    }

    /// Writes to the origin only.
    async fn write_around(self, offset: u64, data: IoBuf, survives: Survives) -> (WriteEnd, IoBuf) {
        let volume = &self.0.volume;
        let len = data.len() as u64;
        let range = offset..offset + len;
        let lock = volume.ranges.exclusive(volume.widen(range.clone())).await;
        let lock = Some(lock).filter(|_| !planted::has(PlantedBug::AroundUnlocked));
        if let Err(error) = volume.still_there() {
            return (WriteEnd::Done(Err(error)), data);
        }
        if volume.is_ordered() {
            return (WriteEnd::Again, data);
        }
        let Some(cached) = self.forget_clean(&range) else {
            // A block became dirty during the wait; its copy would hide this write.
            return (WriteEnd::Again, data);
        };
        bump(&self.0.stats().counters.user_written_bytes, len);
        bump(
            if cached {
                &self.0.stats().counters.write_hits
            } else {
                &self.0.stats().counters.write_misses
            },
            1,
        );
        bump(&self.0.stats().counters.write_through, 1);
        // Barrier for invariants 5 and 6: copies that were forgotten stay forgotten, before the
        // origin has anything newer.
        if let Err(error) = Commits(self.0).sync_forgotten(&range, Forgotten::Removals).await {
            return (WriteEnd::Done(Err(error)), data);
        }
        let (result, data) = OriginIo(self.0).write(offset, data).await;
        drop(lock);
        (WriteEnd::Done(self.end_on_origin(survives, &range, result).await), data)
    }

    /// Returns the failures that a change must survive: those in `survives`, or more if the
    /// volume's durability demands it.
    pub(crate) fn promised(self, survives: Survives) -> Survives {
        match self.0.volume.durability() {
            Durability::Strict if !planted::has(PlantedBug::StrictIgnored) => Survives::PowerLoss,
            Durability::Strict | Durability::Flush | Durability::Deferred => survives,
        }
    }

    /// Ends a write to the origin whose result is known.
    async fn end_on_origin(
        self,
        survives: Survives,
        range: &Range<u64>,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        result?;
        match self.promised(survives) {
            Survives::Nothing => return Ok(()),
            // The origin has the write.
            Survives::Daemon => (),
            Survives::PowerLoss => OriginIo(self.0).sync(WakeReason::Flush).await?,
        }
        if !self.0.is_unavailable_to(true) && !self.0.volume.note.distrusts.load(Ordering::Relaxed)
        {
            return Ok(());
        }
        // Barrier for invariants 2 and 31: the log may not have recorded the change before the
        // origin did, so its older data must not return now, nor after a hang until the log has
        // recorded the noted ranges.
        let store = self.0.store.store();
        let dirty = |block| {
            let found = store.peek(&self.0.volume.space, OriginBlock(block));
            found.is_some_and(|found| found.entry.dirty)
        };
        match self.0.volume.blocks(range.clone()).any(dirty) {
            true => Commits(self.0).commit_or_outlive().await,
            false => Commits(self.0).sync_forgotten(range, Forgotten::Marks).await,
        }
    }

    /// Forgets the clean copies in a range and returns whether there were any. Overtakes fills.
    /// Returns `None` if a block is dirty.
    fn forget_clean(self, range: &Range<u64>) -> Option<bool> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let mut any = false;
        for number in volume.blocks(range.clone()) {
            let block = OriginBlock(number);
            if let Some(entry) = store.forget(&volume.space, block, |entry| !entry.dirty) {
                Policy(self.0).gone(&entry);
                AdmissionControl(self.0).invalidated(block, InvalidationReason::WriteAround);
                any = true;
            }
            if store.peek(&volume.space, block).is_some() {
                return None;
            }
        }
        Some(any)
    }
}
