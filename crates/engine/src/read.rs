//! Reads: from the cache where it has the data, from the origin where not.

use std::ops::Range;

use forebay_core::why::{BypassReason, EvictionReason, RefusalReason};
use forebay_core::{IoError, OriginBlock, SECTOR_SIZE, SectorMask};
use forebay_device::{DeviceOp, IoBuf};
use forebay_lane::join_all;
use forebay_policy::Past;
use forebay_store::{Appended, Class, Condition, FillTicket, Found, Pinned, ReadFailure, Version};

use crate::admission::Missed;
use crate::lane::LaneVolume;
use crate::plan::{BlockState, ReadStep, read_bypass, read_step};
use crate::stats::bump;
use crate::volume::Piece;

/// Blocks up to this size are read from the origin whole; of larger ones a part of this size, in
/// bytes.
const FILL_BYTES: u64 = 64 << 10;

/// How often a read starts again because a cached copy turned out to be bad.
const ATTEMPTS: usize = 16;

pub(crate) fn state_of(found: Option<&Found>) -> BlockState {
    match found {
        None => BlockState::Absent,
        Some(found) if found.entry.dirty => BlockState::Dirty,
        Some(_) => BlockState::Clean,
    }
}

fn covers(found: &Found, sectors: &Range<u32>) -> bool {
    found.mask.as_ref().is_none_or(|mask| mask.contains_range(sectors.clone()))
}

/// Bytes of a block, given sectors of it.
pub(crate) fn bytes_of(sectors: &Range<u32>) -> Range<usize> {
    let sector = SECTOR_SIZE as usize;
    sectors.start as usize * sector..sectors.end as usize * sector
}

/// A part of a read that is answered in one way.
enum Part<'a> {
    /// Whole blocks that lie next to each other on the cache device.
    Run(Vec<Pinned<'a>>, IoBuf),
    /// A part of a cached block.
    Edge(Pinned<'a>, Range<u32>, IoBuf),
    /// What the cache does not have, as bytes of the volume.
    Origin(Range<u64>, IoBuf),
}

/// A read, cut into parts by what the cache has.
struct Parts<'a> {
    parts: Vec<Part<'a>>,
    /// The first block that the origin has to give, and how many parts are like it.
    missed: Option<Missed>,
    missing: usize,
}

/// How a part ended; the buffer comes back in any case.
struct PartEnd {
    buf: IoBuf,
    result: Result<(), Retry>,
}

enum Retry {
    /// A clean copy was bad and has been forgotten: look again.
    Again,
    Fail(IoError),
}

impl LaneVolume {
    /// Answers a read at once if everything is cached and can be had without waiting.
    pub(crate) fn read_quickly(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        let volume = &self.volume;
        let len = into.len() as u64;
        if volume.check_range(offset, len, false).is_err() || len == 0 {
            return None;
        }
        let store = self.store.store();
        let mode = volume.mode();
        let block_bytes = volume.block.as_usize();
        let now = self.cache.age();
        let mut blocks = 0;
        for piece in volume.pieces(offset, len) {
            let pinned =
                store.look_up(&volume.space, piece.block, |age| self.cache.touch(age, now))?;
            let cached = matches!(
                read_step(mode, state_of(Some(&pinned.found)), None),
                ReadStep::Cached { .. }
            );
            if !cached || !covers(&pinned.found, &piece.sectors) {
                return None;
            }
            let target = &mut into[piece.bytes.clone()];
            let whole = target.len() == block_bytes;
            let read = if whole {
                self.store.read_now(&volume.space, &pinned, target)?
            } else {
                let mut buf = IoBuf::for_overwrite(block_bytes);
                let read = self.store.read_now(&volume.space, &pinned, &mut buf)?;
                target.copy_from_slice(&buf[bytes_of(&piece.sectors)]);
                read
            };
            // What is bad is seen to where there is time.
            read.ok()?;
            blocks += 1;
        }
        self.is_sequential(false, offset, len);
        let counters = &self.stats().counters;
        bump(&counters.read_hits, 1);
        bump(&counters.user_read_bytes, len);
        bump(&counters.cache_read_bytes, blocks * block_bytes as u64);
        Some(Ok(()))
    }

    /// Reads a checked range into `buf`, which is as long, and gives it back.
    pub(crate) async fn read(
        &self,
        offset: u64,
        len: u64,
        buf: IoBuf,
    ) -> (Result<(), IoError>, IoBuf) {
        let round = self.round(false, offset, len);
        bump(&self.stats().counters.user_read_bytes, len);
        let mut buf = Some(buf);
        for attempt in 0..ATTEMPTS {
            let Some(whole) = buf.take() else { break };
            if whole.len() as u64 != len {
                return (Err(IoError::Invalid), whole);
            }
            let parts = self.cut(offset, len, whole, round);
            if attempt == 0 {
                self.count_read(&parts, round);
            }
            let parts = parts.parts;
            let ends = join_all(parts.into_iter().map(|part| self.read_part(part, round))).await;
            let mut result = Ok(());
            let mut joined: Option<IoBuf> = None;
            for end in ends {
                result = match (result, end.result) {
                    (Err(Retry::Fail(error)), _) | (_, Err(Retry::Fail(error))) => {
                        Err(Retry::Fail(error))
                    }
                    (Err(Retry::Again), _) | (_, Err(Retry::Again)) => Err(Retry::Again),
                    (Ok(()), Ok(())) => Ok(()),
                };
                joined = match joined {
                    None => Some(end.buf),
                    Some(front) => Some(front.join(end.buf)),
                };
            }
            let joined = joined.unwrap_or_else(|| IoBuf::zeroed(0));
            match result {
                Ok(()) => return (Ok(()), joined),
                Err(Retry::Fail(error)) => return (Err(error), joined),
                Err(Retry::Again) => buf = Some(joined),
            }
        }
        (Err(IoError::Io), buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    fn count_read(&self, parts: &Parts<'_>, round: Option<BypassReason>) {
        let stats = self.stats();
        let Some(missed) = parts.missed else {
            bump(&stats.counters.read_hits, 1);
            return;
        };
        let alone = parts.missing == parts.parts.len();
        let counters = &stats.counters;
        bump(if alone { &counters.read_misses } else { &counters.read_partial }, 1);
        self.count_miss(missed, round);
        if let Some(reason) = read_bypass(self.volume.mode(), round) {
            stats.why.bypass.count(reason, 1);
        }
    }

    /// Brings a range into the cache.
    pub(crate) async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        const STEP: u64 = 1 << 20;
        let mut at = offset;
        while at < offset + len {
            let step = STEP.min(offset + len - at);
            let missing = self
                .volume
                .pieces(at, step)
                .any(|piece| self.store.store().peek(&self.volume.space, piece.block).is_none());
            if missing {
                let buf = IoBuf::for_overwrite(step as usize);
                self.read_part(Part::Origin(at..at + step, buf), None).await.result.map_err(
                    |retry| match retry {
                        Retry::Again => IoError::Io,
                        Retry::Fail(error) => error,
                    },
                )?;
            }
            at += step;
        }
        Ok(())
    }

    fn fills(&self, round: Option<BypassReason>) -> bool {
        read_step(self.volume.mode(), BlockState::Absent, round) == ReadStep::Origin { fill: true }
    }

    /// Cuts a read into parts by what the cache has at the moment.
    fn cut(&self, offset: u64, len: u64, buf: IoBuf, round: Option<BypassReason>) -> Parts<'_> {
        let volume = &self.volume;
        let store = self.store.store();
        let now = self.cache.age();
        let granules = store.geometry().granules_per_block() as u32;
        let mut parts: Vec<Part<'_>> = Vec::new();
        let (mut missed, mut missing) = (None, 0);
        let mut rest = buf;
        let mut used = 0;
        for Piece { block, sectors, bytes, .. } in volume.pieces(offset, len) {
            let found = store.look_up(&volume.space, block, |age| self.cache.touch(age, now));
            let state = state_of(found.as_ref().map(|pinned| &pinned.found));
            let step = read_step(volume.mode(), state, round);
            let pinned = found.filter(|pinned| {
                matches!(step, ReadStep::Cached { .. }) && covers(&pinned.found, &sectors)
            });
            let back = rest.split_off(bytes.len());
            let own = std::mem::replace(&mut rest, back);
            let whole = own.len() as u64 == volume.block.bytes();
            match pinned {
                Some(pinned) if whole => {
                    used += 1;
                    let slot = pinned.found.entry.slot;
                    match parts.last_mut() {
                        Some(Part::Run(run, buf))
                            if run.last().is_some_and(|last| {
                                let last = last.found.entry.slot;
                                last.0 + granules == slot.0
                                    && store.segment_of(last) == store.segment_of(slot)
                            }) =>
                        {
                            run.push(pinned);
                            extend(buf, own);
                        }
                        _ => parts.push(Part::Run(vec![pinned], own)),
                    }
                }
                Some(pinned) => {
                    used += 1;
                    parts.push(Part::Edge(pinned, sectors, own));
                }
                None => {
                    missed.get_or_insert(Missed { block, state });
                    let range = offset + bytes.start as u64..offset + bytes.end as u64;
                    match parts.last_mut() {
                        Some(Part::Origin(before, buf)) => {
                            before.end = range.end;
                            extend(buf, own);
                        }
                        _ => {
                            missing += 1;
                            parts.push(Part::Origin(range, own));
                        }
                    }
                }
            }
        }
        self.count_used(used);
        Parts { parts, missed, missing }
    }

    async fn read_part(&self, part: Part<'_>, round: Option<BypassReason>) -> PartEnd {
        let space = &self.volume.space;
        match part {
            Part::Run(run, buf) => {
                let len = buf.len() as u64;
                let (buf, results) = self.store.read_run(space, &run, buf).await;
                bump(&self.stats().counters.cache_read_bytes, len);
                let mut result = Ok(());
                for (pinned, read) in run.iter().zip(results) {
                    if let Err(failure) = read {
                        result = Err(self.handle_bad(pinned, &failure));
                    }
                }
                PartEnd { buf, result }
            }
            Part::Edge(pinned, sectors, mut buf) => {
                let block = IoBuf::for_overwrite(self.volume.block.as_usize());
                let run = [pinned];
                let (block, results) = self.store.read_run(space, &run, block).await;
                bump(&self.stats().counters.cache_read_bytes, block.len() as u64);
                match results.into_iter().next() {
                    Some(Err(failure)) => {
                        PartEnd { buf, result: Err(self.handle_bad(&run[0], &failure)) }
                    }
                    _ => {
                        buf.copy_from_slice(&block[bytes_of(&sectors)]);
                        PartEnd { buf, result: Ok(()) }
                    }
                }
            }
            Part::Origin(range, mut buf) => {
                let fill = self.fills(round);
                let result = self.read_origin(range, &mut buf, fill).await;
                PartEnd { buf, result }
            }
        }
    }

    /// A cached copy cannot be read. A clean one is forgotten, the origin has the data; a dirty one
    /// is lost until it is overwritten (invariant 11).
    fn handle_bad(&self, pinned: &Pinned<'_>, failure: &ReadFailure) -> Retry {
        let slot = pinned.found.entry.slot;
        self.count_failure(failure);
        tracing::warn!(
            volume = self.volume.name,
            block = pinned.block.0,
            ?failure,
            dirty = pinned.found.entry.dirty,
            "a cached block cannot be read back"
        );
        let forgotten = self
            .store
            .store()
            .forget(&self.volume.space, pinned.block, |entry| entry.slot == slot && !entry.dirty);
        if forgotten.is_some() {
            self.evicted(pinned.block, EvictionReason::Damaged);
            return Retry::Again;
        }
        let now = self.store.store().peek(&self.volume.space, pinned.block);
        if now.is_some_and(|found| found.entry.slot == slot && found.entry.dirty) {
            self.volume.add_bad(pinned.block);
            return Retry::Fail(IoError::Io);
        }
        // It was replaced meanwhile.
        Retry::Again
    }

    /// Reads a range that is not wholly cached: from the origin, under what the cache has of it.
    async fn read_origin(
        &self,
        range: Range<u64>,
        into: &mut IoBuf,
        fill: bool,
    ) -> Result<(), Retry> {
        let volume = &self.volume;
        let store = self.store.store();
        let span = self.origin_span(&range, fill);
        let _range = volume.ranges.shared(volume.widen(span.clone())).await;
        // A fill begins before the index is looked at: a write that the look-up does not see
        // overtakes it (invariant 5).
        let mut blocks = Vec::new();
        for number in volume.blocks(span.clone()) {
            let block = OriginBlock(number);
            let ticket = fill.then(|| store.index.begin_fill(volume.space.address(block)));
            let pinned = store.look_up(&volume.space, block, |_| None);
            blocks.push((block, ticket, pinned));
        }
        let buf = IoBuf::for_overwrite((span.end - span.start) as usize);
        let done = self.origin.run(DeviceOp::Read { offset: span.start, buf }).await;
        let result = match (done.result, done.buf) {
            (Ok(()), Some(mut data)) => {
                bump(&self.stats().counters.origin_read_bytes, data.len() as u64);
                let mut result = Ok(());
                for (block, ticket, pinned) in &blocks {
                    if let Err(retry) =
                        self.merge(*block, &span, &mut data, ticket.as_ref(), pinned.as_ref()).await
                    {
                        result = Err(retry);
                    }
                }
                let start = (range.start - span.start) as usize;
                into.copy_from_slice(&data[start..start + (range.end - range.start) as usize]);
                result
            }
            (Err(error), _) => {
                bump(&self.stats().counters.origin_read_errors, 1);
                tracing::warn!(%error, volume = volume.name, "the origin cannot be read");
                Err(Retry::Fail(IoError::Io))
            }
            (Ok(()), None) => Err(Retry::Fail(IoError::Io)),
        };
        for (_, ticket, _) in blocks {
            if let Some(ticket) = ticket {
                store.index.end_fill(ticket);
            }
        }
        result
    }

    /// What is read from the origin for a range: whole blocks if they are filled, and whole logical
    /// blocks of the origin in any case.
    fn origin_span(&self, range: &Range<u64>, fill: bool) -> Range<u64> {
        let volume = &self.volume;
        let grid = if fill { volume.block.bytes().min(FILL_BYTES) } else { SECTOR_SIZE };
        let grid = grid.max(volume.origin.logical_block());
        let shift = if fill { volume.alignment() % grid } else { 0 };
        let start = ((range.start + shift) / grid * grid).saturating_sub(shift);
        let end = (range.end + shift).next_multiple_of(grid) - shift;
        let logical = volume.origin.logical_block();
        let start = start / logical * logical;
        start..end.next_multiple_of(logical).min(volume.origin.size())
    }

    /// Puts the cached sectors of a block over what came from the origin, and appends the block.
    async fn merge(
        &self,
        block: OriginBlock,
        span: &Range<u64>,
        data: &mut IoBuf,
        ticket: Option<&FillTicket>,
        pinned: Option<&Pinned<'_>>,
    ) -> Result<(), Retry> {
        let volume = &self.volume;
        let inside = volume.sectors_inside(block);
        let byte = |sector: u32| volume.origin_offset(block, sector);
        // The sectors of this block that were read.
        let first = inside.clone().find(|sector| byte(*sector) >= span.start).unwrap_or(inside.end);
        let read = first
            ..inside
                .clone()
                .rev()
                .find(|sector| byte(*sector) < span.end)
                .map_or(first, |last| last + 1);
        let mut valid = SectorMask::of(volume.block.sectors(), read.clone());
        let mut condition = ticket.map(Condition::Fill);
        let mut dirty = false;
        let mut base = None;
        if let Some(pinned) = pinned {
            let cached = IoBuf::for_overwrite(volume.block.as_usize());
            let (cached, results) =
                self.store.read_run(&volume.space, std::slice::from_ref(pinned), cached).await;
            if let Some(Err(failure)) = results.into_iter().next() {
                return Err(self.handle_bad(pinned, &failure));
            }
            let mask = pinned
                .found
                .mask
                .clone()
                .unwrap_or_else(|| SectorMask::all(volume.block.sectors()));
            for run in mask.runs() {
                let run = run.start.max(read.start)..run.end.min(read.end);
                if run.start < run.end {
                    let at = (byte(run.start) - span.start) as usize;
                    let bytes = bytes_of(&run);
                    data[at..at + bytes.len()].copy_from_slice(&cached[bytes]);
                }
            }
            // A block that is valid throughout has nothing to gain.
            condition = condition
                .filter(|_| pinned.found.mask.is_some())
                .map(|_| Condition::Slot(pinned.found.entry.slot));
            dirty = pinned.found.entry.dirty;
            valid.union_with(&mask);
            base = Some(cached);
        }
        let Some(condition) = condition.filter(|_| !read.is_empty()) else { return Ok(()) };
        // A clean copy of what the origin could still lose would outlive it after a power cut.
        if !dirty && volume.is_unsynced(block) {
            self.refused(block, base.is_some(), RefusalReason::Unsynced);
            return Ok(());
        }
        let at = (byte(read.start) - span.start) as usize;
        let bytes = bytes_of(&read);
        let version = Version {
            space: &volume.space,
            block,
            dirty,
            mask: volume.mask(block, valid),
            age: self.cache.age().bits(),
            condition,
        };
        let appended = self.store.append(version, Class::Foreground, |cell| {
            match &base {
                Some(cached) => cell.copy_from_slice(cached),
                None => cell.fill(0),
            }
            cell[bytes.clone()].copy_from_slice(&data[at..at + bytes.len()]);
        });
        match appended {
            Appended::Done { old } => {
                volume.appended(self.lane(), block, old.as_ref(), dirty);
                let counters = &self.stats().counters;
                bump(&counters.filled_blocks, 1);
                bump(&counters.cache_written_bytes, volume.block.bytes());
                self.count_used(1);
            }
            // A fill never waits, and never insists.
            Appended::NoSpace => {
                self.refused(block, base.is_some(), RefusalReason::NoRoom);
                self.store.store().space_wanted.notify_all();
            }
            Appended::Refused => self.stats().why.refused.count(RefusalReason::Overtaken, 1),
        }
        Ok(())
    }

    /// Counts a fill that was not done. `cached`: a part of the block is there.
    fn refused(&self, block: OriginBlock, cached: bool, reason: RefusalReason) {
        self.stats().why.refused.count(reason, 1);
        if !cached {
            self.note(block, Past::NotFilled);
        }
    }
}

/// Puts a buffer's next part back behind it.
fn extend(buf: &mut IoBuf, next: IoBuf) {
    let front = std::mem::replace(buf, IoBuf::zeroed(0));
    *buf = front.join(next);
}
