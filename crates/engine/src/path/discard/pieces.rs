//! Zeroes whole blocks of the origin, and removes them from the cache, in pieces.
//!
//! Clean copies are durably forgotten before the origin changes: until then the origin has the same
//! data. Dirty copies are durable by then, so that no clean copy returns that they replaced, and
//! stay until the origin durably has the zeroes. So after a crash a block has its dirty data, whose
//! replacement no client has seen yet, or zeroes; the older data of the origin is never seen again.
//! Meanwhile nothing may mark such a block clean: writeback may have written it to the origin
//! before the zeroes, and sync the origin after them.
//!
//! The range is locked from the first look-up to the end, so that no request sees zeroes before the
//! block is removed for good.

use std::ops::Range;

use forebay_core::why::{InvalidationReason, WakeReason};
use forebay_core::{IoError, OriginBlock, Slot};
use forebay_device::DeviceErrorKind;
use forebay_lane::yield_now;
use forebay_store::Entry;
use forebay_store::planted::{self, PlantedBug};

use super::Discarder;
use crate::io::admission::AdmissionControl;
use crate::io::commit::{Commits, Forgotten};
use crate::io::first_write::FirstWrite;
use crate::io::origin::OriginIo;
use crate::io::policy::Policy;
use crate::state::discarding::{LONG_PIECE, ZeroBy};
use crate::state::ranges::RangeGuard;

/// Blocks that are looked up before other tasks of the lane run.
const LOOKED_UP: u64 = 512;

/// Maximum number of dirty blocks of a piece.
const MOST_DIRTY: usize = 1 << 14;

/// The cached blocks of a piece.
struct TakenOut {
    /// The end of the looked-up blocks. Of these, only dirty copies are left.
    end: OriginBlock,
    /// Ascending.
    dirty: Vec<OriginBlock>,
    /// Whether a power failure could remove a dirty version and so bring back the copy that it
    /// replaced.
    undurable: bool,
}

impl<'a> Discarder<'a> {
    /// Zeroes whole blocks from `at` on, and advances `at`. Works in pieces, so that locks and
    /// memory do not grow with the request. Ends before `end` if the origin does not support
    /// zeroing.
    pub(super) async fn zero_blocks(
        self,
        at: &mut OriginBlock,
        end: OriginBlock,
        by: ZeroBy,
    ) -> Result<(), IoError> {
        let discarding = &self.0.volume.discarding;
        while *at < end {
            let (started, piece) = (self.0.now(), discarding.piece(by));
            let blocks = (piece >> self.0.volume.block.shift()).max(1);
            let next = OriginBlock((at.0 + blocks).min(end.0));
            match self.zero_piece(*at..next, end, by).await? {
                Some(zeroed) => *at = zeroed,
                None => break,
            }
            discarding.took(by, piece, self.0.now().since(started));
        }
        Ok(())
    }

    /// Zeroes blocks at the beginning of a piece, and returns their end, or `None` if the origin
    /// does not support it. `end` is the end of the request's blocks, which the caller has aligned.
    async fn zero_piece(
        self,
        piece: Range<OriginBlock>,
        end: OriginBlock,
        by: ZeroBy,
    ) -> Result<Option<OriginBlock>, IoError> {
        let volume = &self.0.volume;
        let bytes = |to: OriginBlock| {
            let last = volume.block_range(OriginBlock(to.0 - 1));
            volume.block_range(piece.start).start..last.end
        };
        let lock = volume.ranges.exclusive(volume.widen(bytes(piece.end))).await;
        volume.still_there()?;
        if volume.is_ordered() {
            // Ordered writeback has been switched on meanwhile.
            return Ok(None);
        }
        let under_way = volume.discarding.begin(piece.clone());
        let TakenOut { end: taken_out, mut dirty, undurable } = self.take_out(piece.clone()).await;
        volume.still_there()?;
        let logical = volume.origin.logical_block();
        let good = |to: &OriginBlock| *to == end || bytes(*to).end.is_multiple_of(logical);
        // A block end is aligned to a logical block at least once in a few blocks, so one is found.
        let ends = (piece.start.0 + 1..=taken_out.0).rev().map(OriginBlock);
        let to = ends.into_iter().find(good).unwrap_or(piece.end);
        dirty.truncate(dirty.partition_point(|block| *block < to));
        let what = if undurable { Forgotten::WithRecords } else { Forgotten::Removals };
        let zeroed = self.zero_origin(bytes(to), by, what, &lock).await;
        if !dirty.is_empty() {
            match zeroed {
                Ok(true) => self.give_up(&dirty, bytes(to)).await?,
                // Blocks that writeback wrote in this range may be zeroes now.
                Err(_) => volume.origin_is_uncertain(),
                Ok(false) => (),
            }
        }
        drop(under_way);
        Ok(zeroed?.then_some(to))
    }

    /// Forgets the clean copies of a piece, until that has taken long or has found many dirty ones.
    async fn take_out(self, piece: Range<OriginBlock>) -> TakenOut {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let started = self.0.now();
        let mut taken = TakenOut { end: piece.start, dirty: Vec::new(), undurable: false };
        let mut looked_up = 0;
        loop {
            taken.end = store.vacant_to(&volume.space, taken.end, piece.end);
            if taken.end >= piece.end {
                return taken;
            }
            let (walked, walk) = store.walk(&volume.space, taken.end, piece.end);
            let before = taken.dirty.len();
            while taken.end < walked {
                if let Some(slot) = self.forget_unless_dirty(taken.end) {
                    taken.dirty.push(taken.end);
                    taken.undurable |= !store.is_durable(slot);
                }
                taken.end = OriginBlock(taken.end.0 + 1);
                looked_up += 1;
                if looked_up % LOOKED_UP == 0 {
                    yield_now().await;
                    let long = self.0.now().since(started) > LONG_PIECE;
                    if long || taken.dirty.len() >= MOST_DIRTY || volume.still_there().is_err() {
                        return taken;
                    }
                }
            }
            if taken.dirty.len() == before {
                walk.found_nothing();
            }
        }
    }

    /// Forgets a clean copy. Returns the slot of a dirty one.
    fn forget_unless_dirty(self, block: OriginBlock) -> Option<Slot> {
        let mut dirty = None;
        self.forget(block, |entry| {
            let stays = entry.dirty && !planted::has(PlantedBug::DiscardForgetsDirty);
            dirty = stays.then_some(entry.slot);
            !stays
        });
        dirty
    }

    /// Forgets the copy of a block if `when` agrees.
    fn forget(self, block: OriginBlock, when: impl FnOnce(&Entry) -> bool) {
        let volume = &self.0.volume;
        let gone = self.0.store.store().forget(&volume.space, block, when);
        if let Some(entry) = gone {
            Policy(self.0).gone(&entry);
            AdmissionControl(self.0).invalidated(block, InvalidationReason::Discard);
            if entry.dirty {
                volume.cleaned(self.0.lane(), block);
            }
        }
    }

    /// Zeroes a range of the origin. Returns `false` if the origin does not support that; nothing
    /// has changed then.
    async fn zero_origin(
        self,
        range: Range<u64>,
        by: ZeroBy,
        what: Forgotten,
        _lock: &RangeGuard<'a>,
    ) -> Result<bool, IoError> {
        let volume = &self.0.volume;
        // Barrier for invariants 6 and 21: no clean copy may come back over the zeroes, neither one
        // that was removed nor one below a dirty version that a power failure could remove.
        Commits(self.0).sync_forgotten(&range, what).await?;
        FirstWrite(self.0).before_origin_write(range.clone()).await;
        let failures = volume.syncs.failures();
        let done = self.0.origin.run(by.op(&range), WakeReason::Write).await;
        volume.origin_changed(range);
        match done.result {
            Ok(()) => (),
            Err(error) if error.kind == DeviceErrorKind::NotSupported => return Ok(false),
            Err(error) => return Err(OriginIo(self.0).refused(&error)),
        }
        OriginIo(self.0).unless_lost(failures)?;
        Ok(true)
    }

    /// Forgets blocks that were dirty, whose range on the origin has just been zeroed.
    async fn give_up(self, dirty: &[OriginBlock], range: Range<u64>) -> Result<(), IoError> {
        let volume = &self.0.volume;
        if !planted::has(PlantedBug::DiscardUnsynced) {
            // Barrier for invariants 8 and 21: data that only the log has is kept until the zeroes
            // are durable.
            let synced = OriginIo(self.0).sync_device(WakeReason::Write).await;
            synced.map_err(|error| {
                OriginIo(self.0).write_failed(&error);
                IoError::Io
            })?;
        }
        for some in dirty.chunks(LOOKED_UP as usize) {
            // A removed volume keeps its dirty blocks, because it may be attached again already.
            volume.still_there()?;
            some.iter().for_each(|block| self.forget(*block, |_| true));
            yield_now().await;
        }
        // Barrier for invariants 1, 6 and 21: no block of this range returns, although a flush may
        // find nothing to commit. The marks also make the versions durable that they name, so no
        // older version returns either.
        Commits(self.0).sync_forgotten(&range, Forgotten::Removals).await
    }
}
