//! Discard and write zeroes. Older data must never come back, not even after a crash.
//!
//! Clean copies are durably forgotten before the origin changes: until then the origin has the same
//! data. Dirty copies are replaced by zeroes in the log, like any other write: if they were
//! forgotten, a crash before the origin is zeroed would bring back its older data.

use std::ops::Range;
use std::time::Duration;

use forebay_core::why::{InvalidationReason, WakeReason};
use forebay_core::{IoError, OriginBlock, SECTOR_SIZE, Survives};
use forebay_device::{DeviceErrorKind, DeviceOp, IoBuf};
use forebay_policy::Rank;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Version};

use crate::io::admission::AdmissionControl;
use crate::io::commit::{Commits, Forgotten};
use crate::io::first_write::FirstWrite;
use crate::io::origin::OriginIo;
use crate::io::policy::Policy;
use crate::io::space::Space;
use crate::lane::LaneVolume;
use crate::path::flush::Flusher;
use crate::path::memory::WRITTEN_ZEROES;
use crate::path::write::Writer;
use crate::state::ranges::RangeGuard;
use crate::stats::bump;

/// The bytes to zero under one range lock: at first, and the limits. Other requests to the range wait
/// meanwhile, and all requests of the lane while it looks the blocks up.
const FIRST_PIECE: u64 = 4 << 20;
const LEAST_PIECE: u64 = 1 << 20;
const MOST_PIECE: u64 = 16 << 20;

/// Pieces that take longer become smaller; those that take much less become larger.
const LONG: Duration = Duration::from_millis(50);

/// A client's requirements for write zeroes.
#[derive(Clone, Copy)]
pub(crate) struct Zeroes {
    /// Refuse rather than write zeroes as data.
    pub(crate) fast: bool,
    /// Keep the space allocated on the origin.
    pub(crate) no_hole: bool,
}

enum Zeroed {
    Done,
    NotSupported,
}

/// How far the blocks of one request are zeroed. No block is zeroed twice: as soon as a read may have
/// returned zeroes, later writes are newer, and must not be overwritten by the rest of this request.
struct Progress {
    /// Blocks from here on are untouched, except that clean copies were forgotten.
    at: OriginBlock,
    /// Blocks before that which are not zeroed, because the origin cannot zero them alone.
    left: Vec<Range<u64>>,
}

impl Progress {
    /// Continues at `next`; the blocks before it that are not in `zeroed`, in order, are left.
    fn skip_to(&mut self, next: OriginBlock, zeroed: &[OriginBlock]) {
        for block in zeroed.iter().map(|block| block.0).chain([next.0]) {
            if block > self.at.0 {
                self.left.push(self.at.0..block);
            }
            self.at = OriginBlock(block + 1);
        }
        self.at = next;
    }
}

/// Serves discards and write zeroes of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Discarder<'a>(pub(crate) &'a LaneVolume);

impl<'a> Discarder<'a> {
    /// Discards the whole blocks in a checked range if the origin can turn them into zeroes
    /// cheaply. Otherwise keeps the data, as a discard may.
    pub(crate) async fn discard(
        self,
        offset: u64,
        len: u64,
        survives: Survives,
    ) -> Result<(), IoError> {
        bump(&self.0.stats().counters.discards, 1);
        if self.0.volume.is_ordered() {
            self.discard_in_order(offset, len).await?;
        } else if let Some((first, end)) = self.whole_blocks(offset, len)
            && self.origin_discards().await
        {
            let mut progress = Progress { at: first, left: Vec::new() };
            let discard = |offset, len| DeviceOp::Discard { offset, len };
            self.zero_blocks(&mut progress, end, &discard).await?;
        }
        self.end(survives).await
    }

    /// Makes a checked range read as zeroes.
    pub(crate) async fn write_zeroes(
        self,
        offset: u64,
        len: u64,
        survives: Survives,
        Zeroes { fast, no_hole }: Zeroes,
    ) -> Result<(), IoError> {
        if self.0.volume.is_ordered() && fast {
            return Err(IoError::NotSupported);
        }
        if self.0.volume.is_ordered() || (!fast && len <= WRITTEN_ZEROES) {
            return self.write_zero_data(offset, len, survives).await;
        }
        let Some((first, end)) = self.whole_blocks(offset, len) else {
            if fast {
                return Err(IoError::NotSupported);
            }
            return self.write_zero_data(offset, len, survives).await;
        };
        let bytes = |blocks: Range<u64>| {
            let start = self.0.volume.block_range(OriginBlock(blocks.start)).start;
            start..self.0.volume.block_range(OriginBlock(blocks.end - 1)).end
        };
        let mut progress = Progress { at: first, left: Vec::new() };
        let mut zeroed = Zeroed::NotSupported;
        if !no_hole && self.origin_discards().await {
            let discard = |offset, len| DeviceOp::Discard { offset, len };
            zeroed = self.zero_blocks(&mut progress, end, &discard).await?;
        }
        if let Zeroed::NotSupported = zeroed {
            if fast {
                return Err(IoError::NotSupported);
            }
            let write_zeroes = |offset, len| DeviceOp::WriteZeroes { offset, len };
            zeroed = self.zero_blocks(&mut progress, end, &write_zeroes).await?;
        }
        if let Zeroed::NotSupported = zeroed {
            progress.skip_to(end, &[]);
        }
        for left in progress.left {
            let left = bytes(left);
            self.write_zero_data(left.start, left.end - left.start, survives).await?;
        }
        let Range { start, end: behind } = bytes(first.0..end.0);
        if start > offset {
            self.write_zero_data(offset, start - offset, survives).await?;
        }
        if behind < offset + len {
            self.write_zero_data(behind, offset + len - behind, survives).await?;
        }
        self.end(survives).await
    }

    /// Ends a request whose range is zeroed: on the origin, or by records of the log.
    async fn end(self, survives: Survives) -> Result<(), IoError> {
        match Writer(self.0).promised(survives) {
            Survives::Nothing => Ok(()),
            // Barrier for invariant 31: the records are written. Without the cache device, only what is
            // durable on the origin survives.
            Survives::Daemon if Commits(self.0).secure(survives).await.is_ok() => Ok(()),
            // Barrier for invariant 2: both the origin and the log may have some of the zeroes.
            Survives::Daemon | Survives::PowerLoss => Flusher(self.0).flush().await,
        }
    }

    /// Returns whether the origin can discard. Tried once with an empty range, before any copy is
    /// forgotten for it.
    async fn origin_discards(self) -> bool {
        if let Some(known) = self.0.volume.discards() {
            return known;
        }
        let asked =
            self.0.origin.run(DeviceOp::Discard { offset: 0, len: 0 }, WakeReason::Write).await;
        match asked.result {
            Ok(()) => self.0.volume.set_discards(true),
            Err(error) if error.kind == DeviceErrorKind::NotSupported => {
                self.0.volume.set_discards(false);
                return false;
            }
            // Another error: the discard itself will report it.
            Err(_) => {}
        }
        true
    }

    /// The origin of an ordered volume must not get zeroes before their turn, so a discard keeps
    /// the data; only unreadable dirty blocks are overwritten with zeroes.
    async fn discard_in_order(self, offset: u64, len: u64) -> Result<(), IoError> {
        let Some((first, end)) = self.whole_blocks(offset, len) else { return Ok(()) };
        for block in self.0.volume.bad_within(first, end) {
            let range = self.0.volume.block_range(block);
            self.write_zero_data(range.start, range.end - range.start, Survives::Nothing).await?;
        }
        Ok(())
    }

    async fn write_zero_data(
        self,
        offset: u64,
        len: u64,
        survives: Survives,
    ) -> Result<(), IoError> {
        let mut at = offset;
        while at < offset + len {
            let step = WRITTEN_ZEROES.min(offset + len - at);
            Writer(self.0).write(at, IoBuf::zeroed(step as usize), survives).await.0?;
            at += step;
        }
        Ok(())
    }

    /// Returns the first and end of the blocks that lie wholly within a range and whose edges are
    /// aligned to the origin's logical blocks.
    pub(crate) fn whole_blocks(self, offset: u64, len: u64) -> Option<(OriginBlock, OriginBlock)> {
        let volume = &self.0.volume;
        let mut blocks = volume.blocks(offset..offset + len);
        let inside = |number: u64| {
            let range = volume.block_range(OriginBlock(number));
            offset <= range.start && range.end <= offset + len
        };
        if !blocks.is_empty() && !inside(blocks.start) {
            blocks.start += 1;
        }
        if !blocks.is_empty() && !inside(blocks.end - 1) {
            blocks.end -= 1;
        }
        // Blocks may be smaller than the origin's logical blocks, or shifted against them. The
        // pattern of boundaries repeats after at most as many blocks as a logical block has
        // sectors: if none of those is aligned, none is.
        let logical = volume.origin.logical_block();
        let starts = |number: u64| volume.block_range(OriginBlock(number)).start;
        let ends = |number: u64| volume.block_range(OriginBlock(number)).end;
        let most = logical / SECTOR_SIZE + 1;
        let first = blocks
            .clone()
            .take(most as usize)
            .find(|number| starts(*number).is_multiple_of(logical))?;
        let last = blocks
            .rev()
            .take(most as usize)
            .find(|number| ends(*number).is_multiple_of(logical))?;
        (first <= last).then_some((OriginBlock(first), OriginBlock(last + 1)))
    }

    /// Zeroes whole blocks in pieces, so that locks and memory do not grow with the request.
    async fn zero_blocks(
        self,
        progress: &mut Progress,
        end: OriginBlock,
        op: &dyn Fn(u64, u64) -> DeviceOp,
    ) -> Result<Zeroed, IoError> {
        let mut piece = FIRST_PIECE;
        while progress.at < end {
            let started = self.0.now();
            let blocks = (piece >> self.0.volume.block.shift()).max(1);
            let next = OriginBlock((progress.at.0 + blocks).min(end.0));
            if let Zeroed::NotSupported = self.zero_piece(progress, next, end, op).await? {
                return Ok(Zeroed::NotSupported);
            }
            piece = next_piece(piece, self.0.now().since(started));
        }
        Ok(Zeroed::Done)
    }

    /// Zeroes blocks up to `next`, or a part of them; `end` is the end of the request's blocks, where
    /// the origin can be zeroed in any case.
    async fn zero_piece(
        self,
        progress: &mut Progress,
        next: OriginBlock,
        end: OriginBlock,
        op: &dyn Fn(u64, u64) -> DeviceOp,
    ) -> Result<Zeroed, IoError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let bytes = |from: OriginBlock, to: OriginBlock| {
            volume.block_range(from).start..volume.block_range(OriginBlock(to.0 - 1)).end
        };
        let logical = volume.origin.logical_block();
        let aligned =
            |to: OriginBlock| volume.block_range(OriginBlock(to.0 - 1)).end.is_multiple_of(logical);
        let space = store.space.listen();
        let lock = volume.ranges.exclusive(volume.widen(bytes(progress.at, next))).await;
        volume.still_there()?;
        if volume.is_ordered() {
            // Ordered writeback has been switched on meanwhile.
            return Ok(Zeroed::NotSupported);
        }
        let first = progress.at;
        let (taken_out, zeroed) = self.take_out(first, next);
        // Zero the origin as far as the log is zeroed, before anyone else may write here: later
        // writes to the log are newer, and may reach the origin before there is free space for
        // the rest.
        let good = |to: &OriginBlock| *to == end || aligned(*to);
        let to = (first.0 + 1..=taken_out.0).rev().map(OriginBlock).find(good);
        let done = match to {
            Some(to) => {
                let done = self.zero_origin(bytes(first, to), op, &lock).await?;
                if let Zeroed::Done = done {
                    progress.at = to;
                }
                done
            }
            None => Zeroed::Done,
        };
        // Zeroes in the log may have been read by the time that others may write here again.
        let zeroed = &zeroed[zeroed.partition_point(|block| *block < progress.at)..];
        if let Some(last) = zeroed.last() {
            let starts = |block: &OriginBlock| volume.block_range(*block).start;
            let behind = (last.0 + 1..end.0).map(OriginBlock);
            let next = behind.into_iter().find(|block| starts(block).is_multiple_of(logical));
            progress.skip_to(next.unwrap_or(end), zeroed);
        }
        drop(lock);
        if progress.at == first && matches!(done, Zeroed::Done) {
            // Unlocked: freeing space may need writeback within this range.
            Space(self.0).wait_for_space(space).await?;
        }
        Ok(done)
    }

    /// Forgets clean copies, and replaces dirty ones by zeroes while there is free space. Returns the
    /// end of the blocks without older copies, and the blocks that were replaced.
    fn take_out(self, first: OriginBlock, end: OriginBlock) -> (OriginBlock, Vec<OriginBlock>) {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let mut zeroed = Vec::new();
        for block in (first.0..end.0).map(OriginBlock) {
            if let Some(entry) = store.forget(&volume.space, block, |entry| {
                !entry.dirty || planted::has(PlantedBug::DiscardForgetsDirty)
            }) {
                Policy(self.0).gone(&entry);
                AdmissionControl(self.0).invalidated(block, InvalidationReason::Discard);
            }
            if store.peek(&volume.space, block).is_some() {
                let version = Version {
                    space: &volume.space,
                    block,
                    dirty: true,
                    mask: None,
                    // Kept only because they are dirty.
                    rank: Rank::EVICTABLE.bits(),
                    condition: Condition::Always,
                };
                match self.0.store.append(
                    version,
                    Policy(self.0).class_of_write(Rank::EVICTABLE),
                    |cell| cell.fill(0),
                ) {
                    Appended::Done { old, .. } => {
                        bump(&self.0.stats().counters.cache_written_bytes, volume.block.bytes());
                        bump(&self.0.stats().logged, 1);
                        if let Some(old) = &old {
                            Policy(self.0).gone(old);
                        }
                        volume.remove_bad(block);
                        volume.appended(self.0.lane(), block, old.as_ref(), true);
                        zeroed.push(block);
                    }
                    Appended::NoSpace | Appended::NoMask | Appended::Refused => {
                        return (block, zeroed);
                    }
                }
            }
        }
        (end, zeroed)
    }

    async fn zero_origin(
        self,
        range: Range<u64>,
        op: &dyn Fn(u64, u64) -> DeviceOp,
        _lock: &RangeGuard<'a>,
    ) -> Result<Zeroed, IoError> {
        let volume = &self.0.volume;
        // Barrier for invariants 6 and 21: no clean copy and no older dirty one may come back over
        // the zeroes.
        Commits(self.0).sync_forgotten(&range, Forgotten::WithRecords).await?;
        FirstWrite(self.0).before_origin_write(range.clone()).await;
        let failures = volume.syncs.failures();
        let done =
            self.0.origin.run(op(range.start, range.end - range.start), WakeReason::Write).await;
        volume.origin_changed(range);
        match done.result {
            Ok(()) => (),
            Err(error) if error.kind == DeviceErrorKind::NotSupported => {
                return Ok(Zeroed::NotSupported);
            }
            Err(error) => return Err(OriginIo(self.0).refused(&error)),
        }
        OriginIo(self.0).unless_lost(failures)?;
        Ok(Zeroed::Done)
    }
}

/// Returns the bytes of the piece after one of `piece` bytes that took `took`.
fn next_piece(piece: u64, took: Duration) -> u64 {
    match took {
        took if took > LONG => (piece / 2).max(LEAST_PIECE),
        took if took < LONG / 8 => (piece * 2).min(MOST_PIECE),
        _ => piece,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a piece in the long run, if zeroing 1 MiB takes `each`.
    fn settled(each: Duration) -> u64 {
        let step = |piece, _| next_piece(piece, each * (piece >> 20) as u32);
        (0..20).fold(FIRST_PIECE, step) >> 20
    }

    #[test]
    fn pieces_become_as_large_as_keeps_others_waiting_for_a_short_time() {
        let [fast, slow, hopeless] = [1, 20, 5000].map(Duration::from_millis).map(settled);
        assert_eq!((fast, slow, hopeless), (8, 2, 1));
        assert_eq!(settled(Duration::from_micros(10)), MOST_PIECE >> 20);
    }
}
