//! Judges origins of ordered volumes without the cache, at any moment (invariant 28): is this a
//! state that a power cut between two flushes could have left on a plain disk?
//!
//! It is if there is a moment at which every sector could have had its present content: its
//! write had been submitted, and no later write of the sector had been made durable. Each sector
//! therefore has spans of such moments, and all sectors must have a moment in common.

use forebay_core::{Op, Survives};

use crate::history::{Moment, VersionId};
use crate::stamp::{self, SECTOR, SectorAddress, Value};
use crate::violation::{Asked, Violation};

const NEVER: Moment = Moment::MAX;

struct Write {
    value: Value,
    submitted: Moment,
    acknowledged: Moment,
    /// The version took effect before this moment, or never will.
    settled: Moment,
    durable: Moment,
    advisory: bool,
}

struct VolumeWrites {
    /// Writes by number; the first is the initial content.
    writes: Vec<Write>,
    initial: Vec<Value>,
    /// The writes of each sector by number, in ascending order, which is the order of submission.
    sectors: Vec<Vec<VersionId>>,
    /// Sectors that were written to.
    touched: Vec<u64>,
    /// Writes that are acknowledged and not durable.
    unflushed: Vec<VersionId>,
    watched: bool,
}

/// The writes of all volumes.
pub struct OrderOracle {
    seed: u64,
    volumes: Vec<VolumeWrites>,
    /// Number of origins judged.
    pub judged: u64,
}

/// A span of moments, which includes the first and excludes the second.
type Span = (Moment, Moment);

/// The moments at which a sector could have had a value.
enum Spans {
    Never,
    One(Span),
    Several(Vec<Span>),
}

impl OrderOracle {
    /// Creates an oracle for volumes with these contents.
    pub fn new(seed: u64, contents: &[Vec<Value>]) -> Self {
        let volumes = contents.iter().map(|initial| VolumeWrites {
            writes: vec![Write {
                value: Value::Write(0),
                submitted: 0,
                acknowledged: 0,
                settled: 0,
                durable: 0,
                advisory: false,
            }],
            sectors: vec![Vec::new(); initial.len()],
            initial: initial.clone(),
            touched: Vec::new(),
            unflushed: Vec::new(),
            watched: false,
        });
        OrderOracle { seed, volumes: volumes.collect(), judged: 0 }
    }

    /// Returns whether the origin of a volume is judged.
    pub fn is_watched(&self, volume: u16) -> bool {
        self.volumes.get(usize::from(volume)).is_some_and(|volume| volume.watched)
    }

    /// Switches the judging of a volume's origin on or off.
    pub fn watch(&mut self, volume: u16, watched: bool) {
        if let Some(volume) = self.volumes.get_mut(usize::from(volume)) {
            volume.watched = watched;
        }
    }

    /// Adds `sectors` sectors to a volume, with the initial content of its origin.
    pub fn grow(&mut self, volume: u16, sectors: u64) {
        let Some(volume) = self.volumes.get_mut(usize::from(volume)) else { return };
        let all = volume.initial.len() + sectors as usize;
        volume.initial.resize(all, Value::Write(0));
        volume.sectors.resize_with(all, Vec::new);
    }

    /// Records that a request is submitted.
    pub fn submit(&mut self, asked: Asked, now: Moment) {
        let (value, advisory) = match asked.op {
            Op::Write => (Value::Write(asked.id), false),
            Op::WriteZeroes => (Value::Zero, false),
            Op::Discard => (Value::Zero, true),
            Op::Read | Op::Flush | Op::Prefetch => return,
        };
        let Some(volume) = self.volumes.get_mut(usize::from(asked.volume)) else { return };
        debug_assert_eq!(volume.writes.len(), asked.id as usize, "writes are numbered in order");
        volume.writes.push(Write {
            value,
            submitted: now,
            acknowledged: NEVER,
            settled: NEVER,
            durable: NEVER,
            advisory,
        });
        for sector in asked.first..asked.first + asked.sectors {
            let writes = &mut volume.sectors[sector as usize];
            if writes.is_empty() {
                volume.touched.push(sector);
            }
            writes.push(asked.id);
        }
    }

    /// Records that a request submitted at `submitted` has ended.
    pub fn end(&mut self, asked: Asked, success: bool, submitted: Moment, now: Moment) {
        let Some(volume) = self.volumes.get_mut(usize::from(asked.volume)) else { return };
        match asked.op {
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let Some(write) = volume.writes.get_mut(asked.id as usize) else { return };
                write.settled = now;
                if success {
                    write.acknowledged = now;
                    if asked.survives == Survives::PowerLoss && !write.advisory {
                        write.durable = now;
                    } else {
                        volume.unflushed.push(asked.id);
                    }
                }
            }
            Op::Flush if success => volume.flushed(submitted, now),
            Op::Flush | Op::Read | Op::Prefetch => {}
        }
    }

    /// Makes all acknowledged writes of these volumes durable.
    pub fn stopped_cleanly(&mut self, running: &[u16], now: Moment) {
        for volume in running {
            if let Some(volume) = self.volumes.get_mut(usize::from(*volume)) {
                volume.flushed(now, now);
            }
        }
    }

    /// Resets a deleted volume to these values of its origin.
    pub fn begin_anew(&mut self, volume: u16, values: &[Value]) {
        let Some(volume) = self.volumes.get_mut(usize::from(volume)) else { return };
        volume.initial = values.to_vec();
        volume.sectors = vec![Vec::new(); values.len()];
        volume.touched.clear();
        volume.unflushed.clear();
        volume.watched = false;
    }

    /// Returns the initial value of a sector and every value submitted for it.
    pub fn values(&self, volume: u16, sector: u64) -> Vec<Value> {
        let Some(volume) = self.volumes.get(usize::from(volume)) else { return Vec::new() };
        let numbers = volume.sectors.get(sector as usize).into_iter().flatten();
        let written = numbers.filter_map(|id| volume.writes.get(*id as usize));
        let initial = volume.initial.get(sector as usize).copied();
        initial.into_iter().chain(written.map(|write| write.value)).collect()
    }

    /// Records a crash: writes that were not flushed may or may not survive.
    pub fn crash(&mut self, now: Moment) {
        for volume in &mut self.volumes {
            volume.unflushed.clear();
            for write in volume.writes.iter_mut().rev().take_while(|write| write.submitted > 0) {
                if write.settled == NEVER {
                    write.settled = now;
                }
            }
        }
    }

    /// Judges an origin, given the bytes of each sector.
    ///
    /// # Errors
    /// A power cut could not have left this state at any moment.
    pub fn judge<'a>(
        &mut self,
        number: u16,
        bytes: impl Fn(u64) -> &'a [u8],
        how: &str,
    ) -> Result<(), Violation> {
        self.judged += 1;
        let Some(volume) = self.volumes.get(usize::from(number)) else { return Ok(()) };
        let (mut from, mut until) = ((0, 0), (NEVER, 0));
        let mut several = Vec::new();
        let broken = |sector, got: String, what: String| {
            Err(Violation {
                invariant: 28,
                place: Some(SectorAddress { volume: number, sector }),
                expected: Vec::new(),
                got,
                what: format!("{how} is no state that a power cut can leave: {what}"),
            })
        };
        for &sector in &volume.touched {
            let Some(value) = value_of(bytes(sector), self.seed) else {
                return broken(sector, "bytes of nobody".into(), "it has foreign data".into());
            };
            match volume.spans(sector, value) {
                Spans::Never => {
                    return broken(sector, value.to_string(), "nobody wrote that here".into());
                }
                Spans::One((start, end)) => {
                    from = from.max((start, sector));
                    until = until.min((end, sector));
                }
                Spans::Several(spans) => several.push((sector, spans)),
            }
        }
        let too_late = |from: (Moment, u64), until: (Moment, u64)| {
            broken(
                until.1,
                value_of(bytes(until.1), self.seed).map_or(String::new(), |it| it.to_string()),
                format!(
                    "what replaced it was durable at event {}, and sector {} has a write submitted at event {}",
                    until.0, from.1, from.0
                ),
            )
        };
        if from.0 >= until.0 {
            return too_late(from, until);
        }
        let mut moments = vec![(from.0, until.0)];
        for (sector, spans) in several {
            moments = common(&moments, &spans);
            if moments.is_empty() {
                return too_late(from, (until.0, sector));
            }
        }
        Ok(())
    }
}

/// Returns the intersection of two lists of spans.
fn common(one: &[Span], other: &[Span]) -> Vec<Span> {
    let both = one.iter().flat_map(|a| other.iter().map(|b| (a.0.max(b.0), a.1.min(b.1))));
    both.filter(|(from, until)| from < until).collect()
}

/// Returns the write from which a sector comes, according to its first bytes.
fn value_of(bytes: &[u8], seed: u64) -> Option<Value> {
    match stamp::number(bytes, seed) {
        Some(number) => Some(Value::Write(number)),
        None => bytes.starts_with(&[0; SECTOR]).then_some(Value::Zero),
    }
}

impl VolumeWrites {
    fn flushed(&mut self, submitted: Moment, now: Moment) {
        let writes = &mut self.writes;
        self.unflushed.retain(|id| {
            let Some(write) = writes.get_mut(*id as usize) else { return false };
            let covered = write.acknowledged < submitted;
            if covered && !write.advisory {
                write.durable = now;
            }
            !covered
        });
    }

    /// Returns the spans in which a sector could have had a value.
    fn spans(&self, sector: u64, value: Value) -> Spans {
        let written = &self.sectors[sector as usize];
        let initial = (self.initial[sector as usize] == value).then_some(0);
        let candidates = match value {
            // Any value but zeroes comes from one write, which is found without examining the
            // others.
            Value::Write(id) => {
                let id = initial.or_else(|| written.binary_search(&id).ok().map(|_| id));
                let span = id.and_then(|id| self.span(written, id, value));
                return span.map_or(Spans::Never, Spans::One);
            }
            Value::Zero => initial.into_iter().chain(written.iter().copied()),
        };
        let mut merged: Vec<Span> = Vec::new();
        for span in candidates.filter_map(|id| self.span(written, id, value)) {
            match merged.last_mut().filter(|last| span.0 <= last.1) {
                Some(last) => last.1 = last.1.max(span.1),
                None => merged.push(span),
            }
        }
        match merged[..] {
            [] => Spans::Never,
            [only] => Spans::One(only),
            _ => Spans::Several(merged),
        }
    }

    /// Returns the span in which a sector with the writes `written` could have had `value` from the
    /// write `id`, or `None` if it could not; number 0 is the initial content.
    fn span(&self, written: &[VersionId], id: VersionId, value: Value) -> Option<Span> {
        let own = self.writes.get(id as usize).filter(|own| id == 0 || own.value == value)?;
        let latest_first = written.iter().rev().filter_map(|id| self.writes.get(*id as usize));
        let later = latest_first.take_while(|write| own.settled < write.submitted);
        let until = later.map(|write| write.durable).min().unwrap_or(NEVER);
        (own.submitted < until).then_some((own.submitted, until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Disk {
        oracle: OrderOracle,
        now: Moment,
        next: VersionId,
    }

    impl Disk {
        fn new() -> Self {
            let oracle = OrderOracle::new(7, &[vec![Value::Write(0); 4]]);
            Disk { oracle, now: 0, next: 1 }
        }

        fn asked(&self, op: Op, first: u64, fua: bool) -> Asked {
            let sectors = u64::from(op != Op::Flush);
            let survives = if fua { Survives::PowerLoss } else { Survives::Nothing };
            Asked { volume: 0, op, first, sectors, survives, id: self.next }
        }

        fn run(&mut self, op: Op, first: u64, fua: bool) -> VersionId {
            let asked = self.asked(op, first, fua);
            self.now += 1;
            self.oracle.submit(asked, self.now);
            let submitted = self.now;
            self.now += 1;
            self.oracle.end(asked, true, submitted, self.now);
            if op != Op::Flush {
                self.next += 1;
            }
            asked.id
        }

        fn write(&mut self, first: u64) -> VersionId {
            self.run(Op::Write, first, false)
        }

        fn flush(&mut self) {
            self.run(Op::Flush, 0, false);
        }

        fn may_be(&mut self, values: [VersionId; 4]) -> bool {
            let mut bytes = vec![[0; SECTOR]; 4];
            for (sector, value) in values.into_iter().enumerate() {
                let place = SectorAddress { volume: 0, sector: sector as u64 };
                stamp::fill_value(&mut bytes[sector], 7, place, Value::Write(value));
            }
            self.oracle.judge(0, |sector| &bytes[sector as usize], "it").is_ok()
        }
    }

    #[test]
    fn any_part_of_what_came_after_a_flush_may_be_there() {
        let mut disk = Disk::new();
        let (a, b) = (disk.write(0), disk.write(1));
        disk.flush();
        let (c, d) = (disk.write(2), disk.write(0));
        disk.flush();
        let e = disk.write(3);
        for legal in [[0; 4], [0, b, 0, 0], [a, b, 0, 0], [d, b, 0, 0], [a, b, c, 0], [d, b, c, e]]
        {
            assert!(disk.may_be(legal), "{legal:?}");
        }
        // Parts of the second or third stretch are present although the previous stretch is
        // incomplete.
        for broken in [[d, 0, 0, 0], [0, 0, c, 0], [a, 0, c, 0], [a, b, c, e], [a, b, 0, e]] {
            assert!(!disk.may_be(broken), "{broken:?}");
        }
    }

    #[test]
    fn a_durable_write_precedes_later_submissions() {
        let mut disk = Disk::new();
        let a = disk.run(Op::Write, 0, true);
        let b = disk.write(1);
        assert!(disk.may_be([a, b, 0, 0]) && disk.may_be([a, 0, 0, 0]) && disk.may_be([0; 4]));
        assert!(!disk.may_be([0, b, 0, 0]));
    }

    #[test]
    fn unflushed_writes_may_be_gone_after_a_crash() {
        let mut disk = Disk::new();
        let a = disk.write(0);
        disk.now += 1;
        disk.oracle.crash(disk.now);
        let b = disk.write(1);
        disk.flush();
        assert!(
            disk.may_be([0, b, 0, 0]) && disk.may_be([a, b, 0, 0]) && disk.may_be([a, 0, 0, 0])
        );
        let c = disk.write(0);
        disk.flush();
        let d = disk.write(2);
        assert!(disk.may_be([c, b, d, 0]));
        assert!(!disk.may_be([0, b, d, 0]) && !disk.may_be([c, 0, 0, 0]));
    }

    #[test]
    fn zeroes_may_come_from_any_of_several_writes() {
        let mut disk = Disk::new();
        disk.run(Op::WriteZeroes, 0, false);
        disk.flush();
        let b = disk.write(1);
        disk.flush();
        let c = disk.write(0);
        disk.flush();
        disk.run(Op::WriteZeroes, 0, false);
        let bytes = |first: Value, second: VersionId| {
            let mut bytes = vec![[0; SECTOR]; 4];
            for (sector, bytes) in bytes.iter_mut().enumerate() {
                let value = [first, Value::Write(second), Value::Write(0), Value::Write(0)][sector];
                stamp::fill_value(
                    bytes,
                    7,
                    SectorAddress { volume: 0, sector: sector as u64 },
                    value,
                );
            }
            bytes
        };
        for (first, second, legal) in [
            (Value::Zero, 0, true),
            (Value::Zero, b, true),
            (Value::Write(c), b, true),
            (Value::Write(c), 0, false),
        ] {
            let bytes = bytes(first, second);
            let judged = disk.oracle.judge(0, |sector| &bytes[sector as usize], "it");
            assert_eq!(judged.is_ok(), legal, "{first} {second}");
        }
    }
}
