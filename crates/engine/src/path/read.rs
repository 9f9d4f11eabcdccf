//! Reads: from the cache where it has the data, else from the origin.

use std::ops::Range;

use forebay_core::IoError;
use forebay_core::why::BypassReason;
use forebay_device::IoBuf;
use forebay_lane::join_all;
use forebay_policy::Rank;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Found, Pinned};

use crate::io::admission::AdmissionControl;
use crate::io::admission::Missed;
use crate::io::copies::Copies;
use crate::io::policy::Policy;
use crate::io::streams::StreamControl;
use crate::lane::LaneVolume;
use crate::path::fill::Filler;
use crate::path::memory::{PREFETCH_PIECE, READ_PIECE};
use crate::path::retry::Retry;
use crate::plan::{BlockState, ReadStep, read_bypass, read_step};
use crate::state::volume::layout::BlockPiece;
use crate::state::volume::layout::bytes_of;
use crate::stats::bump;

/// Maximum number of attempts of a read that starts again because a cached copy was bad.
const ATTEMPTS: usize = 16;

/// Maximum number of blocks in a row that a prefetch fails to read before it gives up.
const MOST_IN_VAIN: u32 = 8;

fn covers(found: &Found, sectors: &Range<u32>) -> bool {
    planted::has(PlantedBug::MaskIgnored)
        || found.mask.as_ref().is_none_or(|mask| mask.contains_range(sectors.clone()))
}

/// A part of a read that has one source.
enum ReadPart<'a> {
    /// Whole blocks that are adjacent on the cache device.
    Run(Vec<Pinned<'a>>, IoBuf),
    /// A part of a cached block.
    Edge(Pinned<'a>, Range<u32>, IoBuf),
    /// Bytes of the volume that have to come from the origin.
    Origin(Range<u64>, IoBuf),
}

/// A read, cut into parts by source.
struct ReadParts<'a> {
    parts: Vec<ReadPart<'a>>,
    /// The first block that has to come from the origin, and the number of
    /// [`ReadPart::Origin`] parts.
    missed: Option<Missed>,
    missing: usize,
}

/// The result of a part; the buffer is returned in any case.
struct PartEnd {
    buf: IoBuf,
    result: Result<(), Retry>,
}

impl PartEnd {
    /// Returns the combined result of this part and the next one.
    fn join(self, next: PartEnd) -> PartEnd {
        let result = match (self.result, next.result) {
            (Err(Retry::Fail(error)), _) | (_, Err(Retry::Fail(error))) => Err(Retry::Fail(error)),
            (Err(Retry::Again), _) | (_, Err(Retry::Again)) => Err(Retry::Again),
            (Ok(()), Ok(())) => Ok(()),
        };
        PartEnd { buf: self.buf.join(next.buf), result }
    }
}

/// Serves reads of a volume on one lane.
#[derive(Clone, Copy)]
pub(crate) struct VolumeReader<'a>(pub(crate) &'a LaneVolume);

impl<'a> VolumeReader<'a> {
    /// Answers a read at once if everything is cached and readable without waiting.
    pub(crate) fn read_quickly(self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        let volume = &self.0.volume;
        let (len, into_len) = (into.len() as u64, into.len());
        if volume.check_range(offset, len, false).is_err() || len == 0 {
            return None;
        }
        let mode = volume.mode();
        let ranks = self.0.cache.ranks();
        let block_bytes = volume.block.as_usize();
        let mut blocks = 0;
        for piece in volume.pieces(offset, len) {
            // Only a single-block read counts its use here: with several blocks, a later one that
            // is bad or absent sends the request to the slow path, which would count the earlier
            // ones again.
            let single = piece.bytes.len() == into_len;
            let cached = |state| matches!(read_step(mode, state, None), ReadStep::Cached { .. });
            let mut told = !single;
            let pinned = self.0.store.look_up_now(&volume.space, piece.block, |entry| {
                let answered = !entry.partial
                    && cached(BlockState::of(Some(entry)))
                    && self.0.store.reads_now(entry.slot);
                if !single || !ranks || !answered {
                    return entry.rank;
                }
                told = true;
                Rank::from_bits(entry.rank).used().bits()
            })?;
            let entry = &pinned.found.entry;
            if !cached(BlockState::of(Some(entry))) || !covers(&pinned.found, &piece.sectors) {
                return None;
            }
            let target = &mut into[piece.bytes.clone()];
            let whole = target.len() == block_bytes;
            let read = if whole {
                self.0.store.read_now(&volume.space, &pinned, target)?
            } else {
                let mut buf = IoBuf::for_overwrite(block_bytes);
                let read = self.0.store.read_now(&volume.space, &pinned, &mut buf)?;
                target.copy_from_slice(&buf[bytes_of(&piece.sectors)]);
                read
            };
            // Leave bad copies to the slow path.
            read.ok()?;
            if !told {
                Policy(self.0).used(piece.block, entry);
            }
            blocks += 1;
        }
        if blocks > 1 {
            self.used_all(offset, len);
        }
        StreamControl(self.0).observe(false, offset, len);
        let counters = &self.0.stats().counters;
        bump(&counters.read_hits, 1);
        bump(&counters.user_read_bytes, len);
        bump(&counters.cache_read_bytes, blocks * block_bytes as u64);
        Some(Ok(()))
    }

    /// Records the use of all cached blocks in a range.
    fn used_all(self, offset: u64, len: u64) {
        let store = self.0.store.store();
        for piece in self.0.volume.pieces(offset, len) {
            if let Some(found) = store.peek(&self.0.volume.space, piece.block) {
                Policy(self.0).used(piece.block, &found.entry);
            }
        }
    }

    /// Reads a checked range into `buf`, which has the length of the range, and returns the buffer.
    pub(crate) async fn read(
        self,
        offset: u64,
        len: u64,
        buf: IoBuf,
    ) -> (Result<(), IoError>, IoBuf) {
        let bypass = AdmissionControl(self.0).bypass(false, offset, len);
        bump(&self.0.stats().counters.user_read_bytes, len);
        let (mut rest, mut done) = (buf, IoBuf::empty());
        while !rest.is_empty() {
            let behind = rest.split_off(rest.len().min(READ_PIECE as usize));
            let at = done.len() as u64;
            let (result, piece) = self.read_piece(offset + at, rest, bypass, at == 0).await;
            (rest, done) = (behind, done.join(piece));
            if result.is_err() {
                return (result, done.join(rest));
            }
        }
        (Ok(()), done)
    }

    /// Reads into `buf`, which has the length of the range, and returns it. Only the `first` piece
    /// of a request counts as a hit or miss.
    async fn read_piece(
        self,
        offset: u64,
        buf: IoBuf,
        bypass: Option<BypassReason>,
        first: bool,
    ) -> (Result<(), IoError>, IoBuf) {
        let len = buf.len() as u64;
        let mut buf = Some(buf);
        for attempt in 0..ATTEMPTS {
            let Some(whole) = buf.take() else { break };
            if whole.len() as u64 != len {
                return (Err(IoError::Invalid), whole);
            }
            let hangs = attempt > 0 && self.0.is_unavailable_to(false);
            let bypass = if hangs { Some(BypassReason::Unavailable) } else { bypass };
            let parts = self.split(offset, len, whole, bypass);
            if attempt == 0 && first {
                self.count_read(&parts, bypass);
            }
            let PartEnd { buf: joined, result } = self.read_parts(parts.parts, bypass).await;
            match result {
                Ok(()) => return (Ok(()), joined),
                Err(Retry::Fail(error)) => return (Err(error), joined),
                Err(Retry::Again) => buf = Some(joined),
            }
        }
        (Err(IoError::Io), buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    fn count_read(self, parts: &ReadParts<'_>, bypass: Option<BypassReason>) {
        let stats = self.0.stats();
        let Some(missed) = parts.missed else {
            bump(&stats.counters.read_hits, 1);
            return;
        };
        let alone = parts.missing == parts.parts.len();
        let counters = &stats.counters;
        bump(if alone { &counters.read_misses } else { &counters.read_partial }, 1);
        AdmissionControl(self.0).count_miss(missed, bypass);
        if let Some(reason) = read_bypass(self.0.volume.mode(), bypass) {
            stats.why.bypass.count(reason, 1);
        }
    }

    /// Fills the absent blocks of a range. If the range cannot be read, fills it block by block, so
    /// that the blocks beside a bad sector are filled.
    ///
    /// # Errors
    /// The error of the first block that was not filled.
    pub(crate) async fn prefetch(self, offset: u64, len: u64) -> Result<(), IoError> {
        const STEP: u64 = PREFETCH_PIECE;
        let (mut at, mut result) = (offset, Ok(()));
        while at < offset + len {
            let step = STEP.min(offset + len - at);
            if self.prefetch_piece(at, step).await.is_err() {
                let mut in_vain = 0;
                for piece in self.0.volume.pieces(at, step) {
                    let start = at + piece.bytes.start as u64;
                    let ended = self.prefetch_piece(start, piece.bytes.len() as u64).await;
                    in_vain = if ended.is_ok() { 0 } else { in_vain + 1 };
                    if in_vain >= MOST_IN_VAIN {
                        return ended;
                    }
                    result = result.and(ended);
                }
            }
            at += step;
        }
        result
    }

    async fn prefetch_piece(self, offset: u64, len: u64) -> Result<(), IoError> {
        let absent = |piece: BlockPiece| {
            self.0.store.store().peek(&self.0.volume.space, piece.block).is_none()
        };
        if !self.0.volume.pieces(offset, len).any(absent) {
            return Ok(());
        }
        let mut buf = IoBuf::for_overwrite(len as usize);
        let gate = self.fills_on_request().then(|| AdmissionControl(self.0).gate_on_request());
        let read = Filler(self.0).read_origin(offset..offset + len, &mut buf, gate).await;
        read.map_err(|retry| match retry {
            Retry::Again => IoError::Io,
            Retry::Fail(error) => error,
        })
    }

    /// Returns whether data may be filled that a client or a tier above asks to cache.
    pub(crate) fn fills_on_request(self) -> bool {
        self.fills(self.0.volume.is_frozen().then_some(BypassReason::Frozen))
    }

    fn fills(self, bypass: Option<BypassReason>) -> bool {
        read_step(self.0.volume.mode(), BlockState::Absent, bypass)
            == ReadStep::Origin { fill: true }
    }

    /// Splits a read into parts by the cached blocks at this moment.
    fn split(
        self,
        offset: u64,
        len: u64,
        buf: IoBuf,
        bypass: Option<BypassReason>,
    ) -> ReadParts<'a> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let granules = store.geometry().granules_per_block() as u32;
        let mut parts: Vec<ReadPart<'_>> = Vec::new();
        let (mut missed, mut missing) = (None, 0);
        let mut rest = buf;
        for BlockPiece { block, sectors, bytes, .. } in volume.pieces(offset, len) {
            let found = store.look_up(&volume.space, block);
            let state = BlockState::of(found.as_ref().map(|pinned| &pinned.found.entry));
            let step = read_step(volume.mode(), state, bypass);
            let pinned = found.filter(|pinned| {
                matches!(step, ReadStep::Cached { .. }) && covers(&pinned.found, &sectors)
            });
            let back = rest.split_off(bytes.len());
            let own = std::mem::replace(&mut rest, back);
            let whole = own.len() as u64 == volume.block.bytes();
            match pinned {
                Some(pinned) if whole => {
                    Policy(self.0).used(block, &pinned.found.entry);
                    let slot = pinned.found.entry.slot;
                    match parts.last_mut() {
                        Some(ReadPart::Run(run, buf))
                            if run.last().is_some_and(|last| {
                                let last = last.found.entry.slot;
                                last.0 + granules == slot.0
                                    && store.segment_of(last) == store.segment_of(slot)
                            }) =>
                        {
                            run.push(pinned);
                            extend(buf, own);
                        }
                        _ => parts.push(ReadPart::Run(vec![pinned], own)),
                    }
                }
                Some(pinned) => {
                    Policy(self.0).used(block, &pinned.found.entry);
                    parts.push(ReadPart::Edge(pinned, sectors, own));
                }
                None => {
                    missed.get_or_insert(Missed { block, state });
                    let range = offset + bytes.start as u64..offset + bytes.end as u64;
                    match parts.last_mut() {
                        Some(ReadPart::Origin(before, buf)) => {
                            before.end = range.end;
                            extend(buf, own);
                        }
                        _ => {
                            missing += 1;
                            parts.push(ReadPart::Origin(range, own));
                        }
                    }
                }
            }
        }
        ReadParts { parts, missed, missing }
    }

    async fn read_parts(
        self,
        mut parts: Vec<ReadPart<'_>>,
        bypass: Option<BypassReason>,
    ) -> PartEnd {
        let nothing = PartEnd { buf: IoBuf::empty(), result: Ok(()) };
        if parts.len() > 1 {
            let ends = join_all(parts.into_iter().map(|part| self.read_part(part, bypass))).await;
            return ends.into_iter().reduce(PartEnd::join).unwrap_or(nothing);
        }
        // A single part, as in most reads, needs no future of its own.
        match parts.pop() {
            Some(part) => self.read_part(part, bypass).await,
            None => nothing,
        }
    }

    async fn read_part(self, part: ReadPart<'_>, bypass: Option<BypassReason>) -> PartEnd {
        match part {
            ReadPart::Run(run, buf) => {
                let len = buf.len() as u64;
                let (buf, unreadable) = Copies(self.0).read_copies(&run, buf).await;
                bump(&self.0.stats().counters.cache_read_bytes, len);
                PartEnd { buf, result: Retry::unless_all_read(&unreadable) }
            }
            ReadPart::Edge(pinned, sectors, mut buf) => {
                let block = IoBuf::for_overwrite(self.0.volume.block.as_usize());
                let (block, unreadable) = Copies(self.0).read_copies(&[pinned], block).await;
                bump(&self.0.stats().counters.cache_read_bytes, block.len() as u64);
                let result = Retry::unless_all_read(&unreadable);
                if result.is_ok() {
                    buf.copy_from_slice(&block[bytes_of(&sectors)]);
                }
                PartEnd { buf, result }
            }
            ReadPart::Origin(range, mut buf) => {
                let gate = self.fills(bypass).then(|| AdmissionControl(self.0).gate_of_reads());
                let result = Filler(self.0).read_origin(range, &mut buf, gate).await;
                PartEnd { buf, result }
            }
        }
    }
}

/// Joins a buffer with the part that follows it.
fn extend(buf: &mut IoBuf, next: IoBuf) {
    let front = std::mem::replace(buf, IoBuf::zeroed(0));
    *buf = front.join(next);
}
