//! Judges every answer of the system under test.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_core::{IoError, Nanos, Op, Survives};

use crate::history::{Moment, SectorHistory, VersionId, Wrong};
use crate::order::OrderOracle;
use crate::stamp::{self, SECTOR, SectorAddress, SectorContent, Value};
use crate::violation::{Asked, Violation};

mod doubt;

struct Underway {
    asked: Asked,
    submitted: Moment,
    at: Nanos,
    /// Whether damage has excused a failure since the submission: later writes may be too late to
    /// repair it for this request.
    excused: bool,
    /// Whether the request's volume was stopped without waiting for it.
    left: bool,
}

struct OracleVolume {
    histories: Vec<SectorHistory>,
    /// Sectors with more than one possible value.
    active: Vec<u64>,
    is_active: Vec<bool>,
    next_id: VersionId,
    /// The ends of the volume before it grew. Older versions of a block contain zeroes beyond them.
    ends: Vec<u64>,
    /// Whether the log records of the volume's last block were lost.
    edge_in_doubt: bool,
}

impl OracleVolume {
    /// Makes all writes durable that were acknowledged before `submitted`.
    fn flushed(&mut self, submitted: Moment, oldest_read: Moment) {
        let (histories, is_active) = (&mut self.histories, &mut self.is_active);
        self.active.retain(|&sector| {
            let history = &mut histories[sector as usize];
            history.flushed(submitted, oldest_read);
            is_active[sector as usize] = !history.is_settled();
            is_active[sector as usize]
        });
    }
}

/// Faults in the world that excuse errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excuses {
    /// Whether disks failed operations, so that requests may fail.
    pub disk_errors: bool,
    /// Whether the origin may refuse writes.
    pub protected: bool,
    /// Whether the volume is being stopped, so that requests may be refused.
    pub stopping: bool,
}

/// The possible values of every sector of every volume.
pub struct Oracle {
    seed: u64,
    block_sectors: u64,
    /// Number of sectors by which the block grid of each volume is shifted.
    shifts: Vec<u64>,
    volumes: Vec<OracleVolume>,
    underway: BTreeMap<u64, Underway>,
    /// Requests whose volume was deleted. They end at some time, with any result.
    given_up: BTreeSet<u64>,
    now: Moment,
    /// The virtual time; must be set before an event is reported.
    pub time: Nanos,
    /// Events that happened at a later time than the previous event.
    times: Vec<(Nanos, Moment)>,
    crashed_once: bool,
    /// The judge of the origins of ordered volumes.
    pub order: OrderOracle,
    /// Number of sectors whose content was judged.
    pub verified: u64,
}

impl Oracle {
    /// Creates an oracle for volumes with the given durable contents; blocks have `block_sectors`
    /// sectors, and the block grid of each volume is shifted by `alignments` bytes.
    pub fn new(
        seed: u64,
        block_sectors: u64,
        alignments: &[u64],
        volumes: Vec<Vec<Value>>,
    ) -> Self {
        let order = OrderOracle::new(seed, &volumes);
        let volumes = volumes.into_iter().map(|initial| OracleVolume {
            is_active: vec![false; initial.len()],
            histories: initial.into_iter().map(SectorHistory::new).collect(),
            active: Vec::new(),
            next_id: 1,
            ends: Vec::new(),
            edge_in_doubt: false,
        });
        Oracle {
            seed,
            block_sectors,
            shifts: alignments.iter().map(|bytes| bytes / SECTOR as u64).collect(),
            volumes: volumes.collect(),
            underway: BTreeMap::new(),
            given_up: BTreeSet::new(),
            now: 1,
            time: Nanos(0),
            times: Vec::new(),
            crashed_once: false,
            order,
            verified: 0,
        }
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        if self.times.last().is_none_or(|last| last.0 < self.time) {
            self.times.push((self.time, self.now));
        }
        self.now
    }

    /// Returns the sectors of a volume.
    pub fn sectors(&self, volume: u16) -> u64 {
        self.volumes[usize::from(volume)].histories.len() as u64
    }

    /// Returns a number for the next write or discard of a volume.
    pub fn next_id(&mut self, volume: u16) -> VersionId {
        let next = &mut self.volumes[usize::from(volume)].next_id;
        *next += 1;
        *next - 1
    }

    /// Returns the number of requests in progress.
    pub fn underway(&self) -> usize {
        self.underway.len()
    }

    /// Returns the number of requests in progress on one volume.
    pub fn underway_on(&self, volume: u16) -> usize {
        self.underway.values().filter(|request| request.asked.volume == volume).count()
    }

    /// Returns when a request in progress was submitted.
    pub(crate) fn submitted_at(&self, tag: u64) -> Option<Nanos> {
        self.underway.get(&tag).map(|request| request.at)
    }

    /// Returns the requests in progress: number, request, and submission time.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, Asked, Nanos)> {
        self.underway.iter().map(|(tag, request)| (*tag, request.asked, request.at))
    }

    /// Makes all writes durable that were acknowledged on a volume at `time` or before.
    pub fn durable_since(&mut self, volume: u16, time: Nanos) {
        let after = self.times.partition_point(|(at, _)| *at <= time);
        let moment = self.times.get(after).map_or(self.now + 1, |later| later.1);
        if let Some(volume) = self.volumes.get_mut(usize::from(volume)) {
            volume.flushed(moment, Moment::MAX);
        }
    }

    /// Returns the request `tag`, if it is in progress.
    pub fn asked(&self, tag: u64) -> Option<Asked> {
        self.underway.get(&tag).map(|request| request.asked)
    }

    /// Records that a write in progress will survive a loss of power once it has ended, whatever
    /// its client requested.
    pub fn promise(&mut self, tag: u64) {
        if let Some(Underway { asked, .. }) = self.underway.get_mut(&tag)
            && matches!(asked.op, Op::Write | Op::WriteZeroes)
        {
            asked.survives = Survives::PowerLoss;
        }
    }

    fn oldest_read(&self, volume: u16) -> Moment {
        let reads = self
            .underway
            .values()
            .filter(|request| request.asked.op == Op::Read && request.asked.volume == volume);
        reads.map(|request| request.submitted).min().unwrap_or(Moment::MAX)
    }

    /// Records that a request is about to be submitted.
    pub fn submit(&mut self, tag: u64, asked: Asked) {
        let now = self.tick();
        let (value, advisory) = match asked.op {
            Op::Write => (Some(Value::Write(asked.id)), false),
            Op::WriteZeroes => (Some(Value::Zero), false),
            Op::Discard => (Some(Value::Zero), true),
            Op::Read | Op::Flush | Op::Prefetch => (None, false),
        };
        if let Some(value) = value {
            let volume = &mut self.volumes[usize::from(asked.volume)];
            for sector in asked.first..asked.first + asked.sectors {
                volume.histories[sector as usize].submit(asked.id, value, advisory, now);
                if !std::mem::replace(&mut volume.is_active[sector as usize], true) {
                    volume.active.push(sector);
                }
            }
        }
        self.order.submit(asked, now);
        let excused = self.may_fail(asked);
        self.underway
            .insert(tag, Underway { asked, submitted: now, at: self.time, excused, left: false });
    }

    /// Judges the answer to a request.
    ///
    /// # Errors
    /// The answer breaks a promise.
    pub fn complete(
        &mut self,
        tag: u64,
        result: Result<(), IoError>,
        data: Option<&[u8]>,
        excuses: Excuses,
    ) -> Result<(), Violation> {
        let now = self.tick();
        if self.given_up.remove(&tag) {
            return Ok(());
        }
        let Some(Underway { asked, submitted, excused, left, .. }) = self.underway.remove(&tag)
        else {
            return Err(plain(25, format!("request {tag} ended twice or was never submitted")));
        };
        self.order.end(asked, result.is_ok(), submitted, now);
        let oldest_read = self.oldest_read(asked.volume);
        let range = asked.first..asked.first + asked.sectors;
        let volume = &mut self.volumes[usize::from(asked.volume)];
        match asked.op {
            Op::Write | Op::WriteZeroes | Op::Discard => {
                for sector in range.clone() {
                    volume.histories[sector as usize].end(
                        asked.id,
                        result.is_ok(),
                        asked.survives,
                        now,
                        oldest_read,
                    );
                }
            }
            Op::Flush if result.is_ok() => volume.flushed(submitted, oldest_read),
            Op::Read if result.is_ok() => {
                let Some(data) =
                    data.filter(|data| data.len() as u64 == asked.sectors * SECTOR as u64)
                else {
                    return Err(plain(
                        5,
                        format!("a read of {} sectors came without its data", asked.sectors),
                    ));
                };
                for (sector, bytes) in range.clone().zip(data.as_chunks::<SECTOR>().0) {
                    self.observe(
                        asked.volume,
                        sector,
                        bytes,
                        submitted,
                        now,
                        oldest_read,
                        "a read",
                    )?;
                }
            }
            Op::Read | Op::Flush | Op::Prefetch => {}
        }
        match result {
            Ok(()) => Ok(()),
            Err(_) if left => Ok(()),
            Err(IoError::ShuttingDown) if excuses.stopping => Ok(()),
            Err(IoError::NotSupported)
                if matches!(asked.op, Op::Discard | Op::Prefetch) || excuses.stopping =>
            {
                Ok(())
            }
            // A flush writes deferred data down.
            Err(IoError::ReadOnly) if excuses.protected && asked.op != Op::Read => Ok(()),
            Err(IoError::Io) if excuses.disk_errors || excused || self.may_fail(asked) => Ok(()),
            Err(error) => Err(Violation {
                invariant: if asked.op == Op::Read { 11 } else { 25 },
                place: None,
                expected: Vec::new(),
                got: String::new(),
                what: format!(
                    "{:?} of {} sectors at {} of volume {} failed without a cause: {error}",
                    asked.op, asked.sectors, asked.first, asked.volume
                ),
            }),
        }
    }

    /// Returns the sectors of all blocks that contain these sectors.
    fn blocks_of(&self, volume: u16, sectors: Range<u64>) -> Range<u64> {
        let shift = self.shifts.get(usize::from(volume)).copied().unwrap_or_default();
        let start = (sectors.start + shift) / self.block_sectors * self.block_sectors;
        let end = (sectors.end + shift).next_multiple_of(self.block_sectors);
        start.saturating_sub(shift)..end - shift
    }

    /// Returns whether damaged data excuses a failure.
    fn may_fail(&self, asked: Asked) -> bool {
        let histories = &self.volumes[usize::from(asked.volume)].histories;
        let near = self.blocks_of(asked.volume, asked.first..asked.first + asked.sectors);
        let near = histories.iter().take(near.end as usize).skip(near.start as usize);
        match asked.op {
            Op::Read | Op::Write | Op::WriteZeroes | Op::Discard => {
                near.into_iter().any(SectorHistory::is_tainted)
            }
            Op::Flush | Op::Prefetch => histories.iter().any(SectorHistory::is_tainted),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one observation has that many sides")]
    fn observe(
        &mut self,
        volume: u16,
        sector: u64,
        bytes: &[u8],
        started: Moment,
        now: Moment,
        oldest_read: Moment,
        who: &str,
    ) -> Result<(), Violation> {
        self.verified += 1;
        let place = SectorAddress { volume, sector };
        let content = stamp::classify(bytes, self.seed, place);
        let history = &mut self.volumes[usize::from(volume)].histories[sector as usize];
        let expected = history.expected();
        history.observe(content, started, now, oldest_read).map_err(|wrong| {
            let (invariant, how) = match (wrong, content) {
                (Wrong::Stale, _) => (5, "returned data that had been replaced"),
                (Wrong::CameBack, _) if self.crashed_once => {
                    (1, "returned data older than what was durable before a crash")
                }
                (Wrong::CameBack, _) => (5, "returned data older than what is durable"),
                (Wrong::NeverWritten, SectorContent::Foreign(..)) => {
                    (10, "returned data of another place")
                }
                (Wrong::NeverWritten, _) => (3, "returned data that was never written there"),
            };
            let (place, got) = (Some(place), content.to_string());
            Violation { invariant, place, expected, got, what: format!("{who} {how}") }
        })
    }

    /// Judges one sector of an origin without the cache, after all data has been written back.
    ///
    /// # Errors
    /// The origin has anything but the last value.
    pub fn check_origin(&mut self, place: SectorAddress, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.tick();
        let history = &self.volumes[usize::from(place.volume)].histories[place.sector as usize];
        if history.is_tainted() {
            return Ok(());
        }
        self.observe(
            place.volume,
            place.sector,
            bytes,
            now,
            now,
            Moment::MAX,
            "the origin alone, after a drained stop,",
        )
        .map_err(|violation| Violation { invariant: 20, ..violation })
    }

    /// Makes all acknowledged writes of a volume durable.
    pub fn volume_is_durable(&mut self, volume: u16) {
        let now = self.tick();
        // No client has flushed, so an ordered origin need not have reached this state.
        if let Some(volume) = self.volumes.get_mut(usize::from(volume)) {
            volume.flushed(now, Moment::MAX);
        }
    }

    /// Records that a volume was stopped without waiting for requests to its origin: these may be
    /// refused, even if the volume is started again before they end.
    pub fn leave(&mut self, volume: u16) {
        let theirs = self.underway.values_mut().filter(|request| request.asked.volume == volume);
        theirs.for_each(|request| request.left = true);
    }

    /// Gives up a volume whose origin hangs, and the requests that wait for it.
    pub fn abandon(&mut self, volume: u16) {
        let theirs = self.underway.extract_if(.., |_, request| request.asked.volume == volume);
        self.given_up.extend(theirs.map(|(tag, _)| tag));
    }

    /// Resets a deleted volume to these values of its origin.
    pub fn begin_anew(&mut self, volume: u16, values: Vec<Value>) {
        self.order.begin_anew(volume, &values);
        if let Some(volume) = self.volumes.get_mut(usize::from(volume)) {
            volume.is_active = vec![false; values.len()];
            volume.active.clear();
            volume.histories = values.into_iter().map(SectorHistory::new).collect();
            volume.ends.clear();
            volume.edge_in_doubt = false;
        }
    }

    /// Records that a clean stop has ended: all acknowledged writes of running volumes are durable.
    /// For volumes stopped earlier, the result of their own stop applies.
    pub fn stopped_cleanly(&mut self, running: &[u16]) {
        let now = self.tick();
        self.order.stopped_cleanly(running, now);
        for volume in running {
            if let Some(volume) = self.volumes.get_mut(usize::from(*volume)) {
                volume.flushed(now, Moment::MAX);
            }
        }
    }

    /// Records a crash; requests in progress are lost. `power`: the volumes whose origin or cache
    /// device lost its power.
    pub fn crash(&mut self, power: impl Fn(u16) -> bool) {
        let now = self.tick();
        self.crashed_once = true;
        self.order.crash(now);
        self.underway.clear();
        self.given_up.clear();
        for (number, volume) in (0..).zip(&mut self.volumes) {
            for &sector in &volume.active {
                volume.histories[sector as usize].crash(power(number), now);
            }
        }
    }

    /// Records that volumes are up after a crash, and that everything found is durable.
    pub fn opened(&mut self, volumes: &[u16]) {
        for volume in volumes {
            let Some(volume) = self.volumes.get_mut(usize::from(*volume)) else { continue };
            for &sector in &volume.active {
                volume.histories[sector as usize].opened();
            }
        }
    }

    /// Records that the cache device lost writes in a failed sync.
    pub fn unwritten(&mut self) {
        for volume in &mut self.volumes {
            for &sector in &volume.active {
                volume.histories[sector as usize].unwritten();
            }
        }
    }

    /// Records that the origin of a volume failed a sync and may have lost versions of these
    /// sectors.
    pub fn reopen(&mut self, volume: u16, sectors: &[u64]) {
        let (now, oldest_read) = (self.tick(), self.oldest_read(volume));
        let Some(volume) = self.volumes.get_mut(usize::from(volume)) else { return };
        for &sector in sectors {
            if let Some(history) = volume.histories.get_mut(sector as usize) {
                history.reopen(now, oldest_read);
                if !std::mem::replace(&mut volume.is_active[sector as usize], true) {
                    volume.active.push(sector);
                }
            }
        }
    }
}

/// Returns a violation that does not concern the content of a sector.
pub fn plain(invariant: u32, what: String) -> Violation {
    Violation { invariant, place: None, expected: Vec::new(), got: String::new(), what }
}

#[cfg(test)]
mod tests;
