//! Read misses: reads from the origin, and fills the blocks that may enter.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::why::{RefusalReason, WakeReason};
use forebay_core::{IoError, Nanos, OriginBlock, SECTOR_SIZE, SectorMask};
use forebay_device::{DeviceError, DeviceOp, IoBuf};
use forebay_store::{Appended, Condition, FillTicket, Pinned, Version};

use crate::io::admission::AdmissionControl;
use crate::io::admission::Gate;
use crate::io::copies::Copies;
use crate::io::counted::CountedAppends;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::path::retry::Retry;
use crate::state::bad_reads::Widened;
use crate::state::volume::layout::bytes_of;
use crate::stats::bump;

/// Blocks up to this size, in bytes, are filled whole; of larger blocks, parts of this size.
const FILL_BYTES: u64 = 64 << 10;

/// Maximum number of bytes in flight that one volume on one lane reads from the origin beyond
/// requests. Above that, misses fill only the requested blocks.
const MOST_PROMOTED: u64 = 16 << 20;

/// Limits of the search for the failing part of an origin read: how often, in how many parts, and
/// for how long.
const LOCATED_EVERY: Duration = Duration::from_secs(1);
const LOCATED_PARTS: u64 = 16;
const LOCATED_IN: Duration = Duration::from_secs(1);

/// Why a read of the origin was not completed.
enum Failed {
    /// The origin cannot be read.
    Origin(DeviceError),
    /// A cached copy in the range was forgotten, or cannot be read.
    Other(Retry),
}

/// The answers of admission for the blocks of one read.
struct Admissions {
    gate: Gate,
    blocks: Range<u64>,
    /// One answer per block; empty if all blocks may enter.
    answers: Vec<Result<(), RefusalReason>>,
}

impl Admissions {
    fn admits_any(&self) -> bool {
        self.answers.is_empty() || self.answers.iter().any(Result::is_ok)
    }

    /// Returns the answer for a block. Blocks outside of the range, which are read along with an
    /// admitted block, may enter.
    fn answer(&self, block: OriginBlock) -> Result<(), RefusalReason> {
        let at = block.0.checked_sub(self.blocks.start);
        at.and_then(|at| self.answers.get(at as usize)).copied().unwrap_or(Ok(()))
    }
}

/// A block that is being read from the origin.
struct Filling<'a> {
    block: OriginBlock,
    /// Present if the block is to be filled.
    ticket: Option<FillTicket<'a>>,
}

/// Bytes being read beyond a request; counted until this is dropped.
struct Promotion<'a> {
    volume: &'a LaneVolume,
    bytes: u64,
}

impl Drop for Promotion<'_> {
    fn drop(&mut self) {
        self.volume.promoting.set(self.volume.promoting.get() - self.bytes);
    }
}

/// Reads a volume's origin and fills the cache.
#[derive(Clone, Copy)]
pub(crate) struct Filler<'a>(pub(crate) &'a LaneVolume);

impl<'a> Filler<'a> {
    /// Reads a range that is not wholly cached: the origin's data, overlaid with the cached
    /// sectors. `gate` decides which blocks are filled; with `None` none are.
    pub(crate) async fn read_origin(
        self,
        range: Range<u64>,
        into: &mut IoBuf,
        gate: Option<Gate>,
    ) -> Result<(), Retry> {
        let asked = gate.map(|gate| self.ask(gate, &range));
        let asked = asked.as_ref();
        let enters = asked.is_some_and(Admissions::admits_any);
        let (own, span) = (
            self.origin_span(&range, None),
            self.origin_span(&range, enters.then(|| self.fill_bytes())),
        );
        if enters && let Some((more, _promotion)) = self.promotion(&range, &span) {
            // Only the promoted part may be bad.
            let result = self.read_wider(&range, &more, into, asked, Widened::Promoted).await;
            if let Some(result) = result {
                return result;
            }
        }
        if span != own {
            // The same of the rest of the blocks.
            let result = self.read_wider(&range, &span, into, asked, Widened::Filled).await;
            if let Some(result) = result {
                return result;
            }
        }
        let asked = asked.filter(|_| span == own);
        match self.read_span(&range, &own, into, asked).await {
            Err(Failed::Origin(error)) => {
                self.cannot_read(&own, error).await;
                Err(Retry::Fail(IoError::Io))
            }
            Err(Failed::Other(retry)) => Err(retry),
            Ok(()) => Ok(()),
        }
    }

    /// Reads more than the requested range. Returns `None` if a part cannot be read, which may be
    /// outside of the request. Such a read is not repeated there for a while.
    async fn read_wider(
        self,
        range: &Range<u64>,
        span: &Range<u64>,
        into: &mut IoBuf,
        asked: Option<&Admissions>,
        why: Widened,
    ) -> Option<Result<(), Retry>> {
        let volume = &self.0.volume;
        if volume.reads.bad.may_fail(why, span, self.0.now()) {
            return None;
        }
        match self.read_span(range, span, into, asked).await {
            Ok(()) => Some(Ok(())),
            Err(Failed::Origin(error)) if error.is_local() => {
                volume.reads.bad.note(why, span.clone(), self.0.now());
                None
            }
            Err(Failed::Other(Retry::Fail(_))) => None,
            Err(Failed::Origin(error)) => {
                self.cannot_read(span, error).await;
                Some(Err(Retry::Fail(IoError::Io)))
            }
            Err(Failed::Other(retry)) => Some(Err(retry)),
        }
    }

    /// Records that the origin cannot be read, and where exactly.
    async fn cannot_read(self, span: &Range<u64>, error: DeviceError) {
        let volume = &self.0.volume;
        let now = self.0.now();
        let before = Nanos(volume.reads.located.load(Ordering::Relaxed));
        let error = match error.is_local() && now.since(before) >= LOCATED_EVERY {
            true => {
                volume.reads.located.store(now.0, Ordering::Relaxed);
                self.locate(span.clone(), error).await
            }
            false => error,
        };
        volume.reads.error.set(&error);
        tracing::warn!(%error, volume = volume.name, "the origin cannot be read");
    }

    /// Returns the error of the first part of a span that cannot be read. The part is one logical
    /// block, unless a slow disk leaves too little time for that; a client waits for this.
    async fn locate(self, mut span: Range<u64>, mut error: DeviceError) -> DeviceError {
        let (logical, until) = (self.0.volume.origin.logical_block(), self.0.now() + LOCATED_IN);
        while span.end - span.start > logical {
            let part = (span.end - span.start).div_ceil(LOCATED_PARTS).next_multiple_of(logical);
            let mut found = None;
            let mut at = span.start;
            while at < span.end && found.is_none() {
                if self.0.now() >= until {
                    return error;
                }
                let end = (at + part).min(span.end);
                let buf = IoBuf::for_overwrite((end - at) as usize);
                if let Err(failed) = self.0.origin.read(at, buf, WakeReason::Read).await {
                    found = Some((at..end, failed));
                }
                at = end;
            }
            let Some((part, failed)) = found else { return error };
            (span, error) = (part, failed);
        }
        error
    }

    /// Asks admission for each block of a range, once.
    fn ask(self, gate: Gate, range: &Range<u64>) -> Admissions {
        let blocks = self.0.volume.blocks(range.clone());
        let admit = |block| AdmissionControl(self.0).admit(gate, OriginBlock(block));
        let answers = match gate {
            Gate::Open => Vec::new(),
            Gate::Remembered(_) | Gate::Spent => blocks.clone().map(admit).collect(),
        };
        Admissions { gate, blocks, answers }
    }

    /// Returns how much of a block a fill reads, in bytes.
    fn fill_bytes(self) -> u64 {
        self.0.volume.block.bytes().min(FILL_BYTES)
    }

    /// Returns the span to read from the origin for a range: widened to `fill` bytes on the cache's
    /// grid if it is to be filled, and to the origin's logical blocks in any case.
    fn origin_span(self, range: &Range<u64>, fill: Option<u64>) -> Range<u64> {
        let volume = &self.0.volume;
        let logical = volume.origin.logical_block();
        let grid = fill.unwrap_or(SECTOR_SIZE).max(logical);
        let shift = fill.map_or(0, |_| volume.alignment() % grid);
        let start = ((range.start + shift) / grid * grid).saturating_sub(shift);
        let end = (range.end + shift).next_multiple_of(grid) - shift;
        // The origin may have grown beyond the volume, or have shrunk.
        let limit = volume.size().next_multiple_of(logical).min(volume.origin.size());
        start / logical * logical..end.next_multiple_of(logical).min(limit)
    }

    /// Returns the wider span to read instead of `span` if the neighbourhood of a miss is to be
    /// filled: from its first absent block to its last. Returns `None` if it is no wider, or if too
    /// many such bytes are in flight.
    fn promotion(
        self,
        range: &Range<u64>,
        span: &Range<u64>,
    ) -> Option<(Range<u64>, Promotion<'a>)> {
        let volume = &self.0.volume;
        let bytes = volume.admission.promote();
        // The states of neighbours that are not loaded are unknown, and not worth loading.
        if bytes <= self.fill_bytes() || !self.0.store.store().is_loaded() {
            return None;
        }
        let whole = self.origin_span(range, Some(bytes));
        let (all, own) = (volume.blocks(whole.clone()), volume.blocks(span.clone()));
        let store = self.0.store.store();
        let absent = |block: &u64| store.peek(&volume.space, OriginBlock(*block)).is_none();
        let logical = volume.origin.logical_block();
        let start = if all.start == own.start {
            whole.start
        } else {
            let first = (all.start..own.start).find(absent);
            let first = first.map(|block| volume.block_range(OriginBlock(block)).start);
            first.map_or(span.start, |first| first / logical * logical)
        };
        let end = if all.end == own.end {
            whole.end
        } else {
            let last = (own.end..all.end).rev().find(absent);
            let last = last.map(|block| volume.block_range(OriginBlock(block)).end);
            last.map_or(span.end, |last| last.next_multiple_of(logical).min(volume.origin.size()))
        };
        let wider = start.min(span.start)..end.max(span.end);
        let bytes = (wider.end - wider.start) - (span.end - span.start);
        let promoting = self.0.promoting.get() + bytes;
        if bytes == 0 || promoting > MOST_PROMOTED {
            return None;
        }
        self.0.promoting.set(promoting);
        Some((wider, Promotion { volume: self.0, bytes }))
    }

    /// Reads `span` from the origin, fills its blocks, and returns the bytes of `range` in `into`,
    /// whose length is that of `range`.
    async fn read_span(
        self,
        range: &Range<u64>,
        span: &Range<u64>,
        into: &mut IoBuf,
        asked: Option<&Admissions>,
    ) -> Result<(), Failed> {
        let volume = &self.0.volume;
        let _measured = volume.origin_latency.begin(&**self.0.lane().clock());
        let _range = volume.ranges.shared(volume.widen(span.clone())).await;
        let own = volume.blocks(range.clone());
        let blocks: Vec<Filling> = volume
            .blocks(span.clone())
            .filter_map(|block| self.begin(OriginBlock(block), own.contains(&block), asked))
            .collect();
        // Most reads need no more than was requested, and no copy.
        let exact = span == range;
        let buf = match exact {
            true => std::mem::replace(into, IoBuf::empty()),
            false => IoBuf::for_overwrite((span.end - span.start) as usize),
        };
        let done =
            self.0.origin.run(DeviceOp::Read { offset: span.start, buf }, WakeReason::Read).await;
        let mut data = done.buf.unwrap_or_else(IoBuf::empty);
        let result = match done.result {
            Ok(()) if data.len() as u64 == span.end - span.start => {
                bump(&self.0.stats().counters.origin_read_bytes, data.len() as u64);
                volume.reads.error.clear();
                let mut result = Ok(());
                for filling in &blocks {
                    if let Err(retry) = self.merge(filling, range, span, &mut data, asked).await {
                        result = Err(Failed::Other(retry));
                    }
                }
                if !exact {
                    let start = (range.start - span.start) as usize;
                    into.copy_from_slice(&data[start..start + (range.end - range.start) as usize]);
                }
                result
            }
            Err(error) => {
                bump(&self.0.stats().counters.origin_read_errors, 1);
                Err(Failed::Origin(error))
            }
            Ok(()) => Err(Failed::Other(Retry::Fail(IoError::Io))),
        };
        if exact {
            // A failed device may have kept the buffer; the returned one must have the request's
            // length.
            let len = (range.end - range.start) as usize;
            *into = if data.len() == len { data } else { IoBuf::zeroed(len) };
        }
        result
    }

    /// Prepares a block before it is read from the origin; `own`: it was requested. Returns `None`
    /// if the block needs no further handling.
    fn begin(
        self,
        block: OriginBlock,
        own: bool,
        asked: Option<&Admissions>,
    ) -> Option<Filling<'a>> {
        let store = self.0.store.store();
        let space = &self.0.volume.space;
        let enters = match asked {
            None => false,
            // Read along with an admitted block.
            Some(_) if !own => true,
            Some(asked) => {
                match asked.answer(block).and_then(|()| Policy(self.0).admit_to_lists(block)) {
                    Ok(()) => true,
                    Err(reason) => {
                        AdmissionControl(self.0).refused(block, false, reason);
                        false
                    }
                }
            }
        };
        // The fill begins before the look-up: a write that the look-up does not see overtakes the
        // fill (invariant 5).
        let ticket = enters.then(|| store.index.begin_fill(space.address(block)));
        if !own && store.peek(space, block).is_some() {
            return None;
        }
        Some(Filling { block, ticket })
    }

    /// Copies the cached sectors of a block over the origin's data. Returns the cached copy and its
    /// valid sectors.
    async fn lay_over(
        self,
        pinned: &Pinned<'_>,
        read: &Range<u32>,
        span: &Range<u64>,
        data: &mut IoBuf,
    ) -> Result<(IoBuf, SectorMask), Retry> {
        let volume = &self.0.volume;
        let cached = IoBuf::for_overwrite(volume.block.as_usize());
        let (cached, unreadable) =
            Copies(self.0).read_copies(std::slice::from_ref(pinned), cached).await;
        Retry::unless_all_read(&unreadable)?;
        let mask = self.valid_sectors(pinned);
        for run in mask.runs() {
            let run = run.start.max(read.start)..run.end.min(read.end);
            if run.start < run.end {
                let at = (volume.origin_offset(pinned.block, run.start) - span.start) as usize;
                let bytes = bytes_of(&run);
                data[at..at + bytes.len()].copy_from_slice(&cached[bytes]);
            }
        }
        Ok((cached, mask))
    }

    /// Returns whether a copy has valid sectors in a byte range of the origin.
    fn concerns(self, pinned: &Pinned<'_>, range: &Range<u64>) -> bool {
        let (valid, mut asked) =
            (self.valid_sectors(pinned), self.sectors_within(pinned.block, range));
        asked.any(|sector| valid.contains(sector))
    }

    fn valid_sectors(self, pinned: &Pinned<'_>) -> SectorMask {
        let all = || SectorMask::all(self.0.volume.block.sectors());
        pinned.found.mask.clone().unwrap_or_else(all)
    }

    /// Returns the sectors of a block that lie within a byte range of the origin.
    fn sectors_within(self, block: OriginBlock, span: &Range<u64>) -> Range<u32> {
        let mut inside = self.0.volume.sectors_inside(block);
        let byte = |sector: &u32| self.0.volume.origin_offset(block, *sector);
        let first = inside.clone().find(|sector| byte(sector) >= span.start).unwrap_or(inside.end);
        let last = inside.rfind(|sector| byte(sector) < span.end);
        first..last.map_or(first, |last| last + 1)
    }

    /// Overlays a block's cached sectors on the origin's data, and appends the block if it is to be
    /// filled. A copy that cannot be read back makes only its own sectors within `range`
    /// unreadable.
    async fn merge(
        self,
        filling: &Filling<'_>,
        range: &Range<u64>,
        span: &Range<u64>,
        data: &mut IoBuf,
        asked: Option<&Admissions>,
    ) -> Result<(), Retry> {
        let volume = &self.0.volume;
        let block = filling.block;
        let read = self.sectors_within(block, span);
        let mut valid = SectorMask::of(volume.block.sectors(), read.clone());
        let mut condition = filling.ticket.as_ref().map(Condition::Fill);
        let mut dirty = false;
        let mut base = None;
        // Looked up only now, so that no pin keeps a segment from being reused during the origin
        // read. Writes to the origin and discards wait until the range is released, so the copy
        // cached now is at least as new as the data that was read.
        let pinned = self.0.store.store().look_up(&volume.space, block);
        // A clean copy equals the origin's data, so it is needed only if a fill completes it.
        let pinned = pinned.filter(|pinned| pinned.found.entry.dirty || filling.ticket.is_some());
        if let Some(pinned) = &pinned {
            let (cached, mask) = match self.lay_over(pinned, &read, span, data).await {
                Err(Retry::Fail(_)) if !self.concerns(pinned, range) => return Ok(()),
                laid => laid?,
            };
            // A wholly valid copy needs no fill.
            condition = condition
                .filter(|_| pinned.found.mask.is_some())
                .map(|_| Condition::Slot(pinned.found.entry.slot));
            dirty = pinned.found.entry.dirty;
            valid.union_with(&mask);
            base = Some(cached);
        }
        // The volume may have been frozen meanwhile.
        let fills = !read.is_empty() && volume.still_there().is_ok() && !volume.is_frozen();
        let Some(condition) = condition.filter(|_| fills) else { return Ok(()) };
        // A clean copy of data that the origin could still lose would outlive it after a power cut
        // (invariant 12).
        if !dirty && volume.syncs.is_unsynced(block) {
            AdmissionControl(self.0).refused(block, base.is_some(), RefusalReason::Unsynced);
            return Ok(());
        }
        let mask = volume.mask(block, valid);
        if base.is_none()
            && mask.is_some()
            && !self.0.store.store().has_room_for_mask(&volume.space, block)
        {
            AdmissionControl(self.0).refused(block, false, RefusalReason::NoRoom);
            return Ok(());
        }
        let at = (volume.origin_offset(block, read.start) - span.start) as usize;
        let bytes = bytes_of(&read);
        let rank = Policy(self.0).rank(block, pinned.as_ref().map(|pinned| &pinned.found.entry));
        let version =
            Version { space: &volume.space, block, dirty, mask, rank: rank.bits(), condition };
        let copy = |cell: &mut [u8]| {
            match &base {
                Some(cached) => cell.copy_from_slice(cached),
                None => cell.fill(0),
            }
            cell[bytes.clone()].copy_from_slice(&data[at..at + bytes.len()]);
        };
        let class = Policy(self.0).class_of_fill(rank);
        match CountedAppends(self.0).append(version, class, copy) {
            Appended::Done { old, .. } => {
                let counters = &self.0.stats().counters;
                bump(&counters.filled_blocks, 1);
                bump(&counters.cache_written_bytes, volume.block.bytes());
                Policy(self.0).placed(block, old.as_ref());
                if let Some(asked) = asked {
                    AdmissionControl(self.0).entered(asked.gate, block);
                }
            }
            // A fill never waits for space.
            Appended::NoSpace | Appended::NoMask => {
                AdmissionControl(self.0).refused(block, base.is_some(), RefusalReason::NoRoom);
                self.0.store.store().space_wanted.notify_all();
            }
            Appended::Refused => self.0.stats().why.refused.count(RefusalReason::Overtaken, 1),
        }
        Ok(())
    }
}
