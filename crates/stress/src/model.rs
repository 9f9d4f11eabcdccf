//! The clients' knowledge: the writes of each sector that were begun, acknowledged, or made
//! durable.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::stamp::{self, SECTOR, SectorValue, Sequence};

/// One sector. Only one lane writes it, with one request at a time.
#[derive(Default)]
struct Sector {
    begun: AtomicU32,
    acknowledged: AtomicU32,
    /// The last write of zeroes.
    zeroed: AtomicU32,
    /// A power cut must leave at least this write.
    durable: AtomicU32,
    /// Writes up to this one were not flushed when a flush failed: no later flush makes them
    /// durable.
    doubtful: AtomicU32,
}

/// Amount of work.
#[derive(Default)]
pub(crate) struct WorkCounts {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// Reads and writes that completed immediately.
    pub(crate) at_once: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) cuts: AtomicU64,
    pub(crate) modes: AtomicU64,
}

/// The sectors of a volume, shared by all lanes.
pub(crate) struct SectorModel {
    sectors: Box<[Sector]>,
    pub(crate) counts: WorkCounts,
    /// Whether devices may fail, so that requests may fail as well.
    pub(crate) fails: bool,
    ends: AtomicBool,
    violation: Mutex<Option<String>>,
}

impl SectorModel {
    pub(crate) fn new(sectors: u64, fails: bool) -> Self {
        SectorModel {
            sectors: (0..sectors).map(|_| Sector::default()).collect(),
            counts: WorkCounts::default(),
            fails,
            ends: AtomicBool::new(false),
            violation: Mutex::new(None),
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Makes clients end.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }

    pub(crate) fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Records the first violation, and ends the clients.
    pub(crate) fn violated(&self, what: String) {
        self.violation.lock().get_or_insert(what);
        self.end();
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.lock().clone()
    }

    /// Counts a request that has failed, which is a violation unless devices may fail.
    pub(crate) fn failed(&self, what: &str) {
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        if !self.fails {
            self.violated(format!("{what}, and no device has failed"));
        }
    }

    /// Begins a write of a sector. Returns the sequence number of the write.
    pub(crate) fn begin(&self, sector: u64, zeroes: bool) -> Sequence {
        let own = &self.sectors[sector as usize];
        let sequence = own.begun.load(Ordering::Relaxed) + 1;
        if zeroes {
            own.zeroed.store(sequence, Ordering::SeqCst);
        }
        own.begun.store(sequence, Ordering::SeqCst);
        sequence
    }

    pub(crate) fn acknowledge(&self, sector: u64, sequence: Sequence) {
        self.sectors[sector as usize].acknowledged.store(sequence, Ordering::SeqCst);
    }

    /// Returns the lowest sequence that a read that begins now may return.
    pub(crate) fn least(&self, sector: u64) -> Sequence {
        self.sectors[sector as usize].acknowledged.load(Ordering::SeqCst)
    }

    /// Returns the acknowledged writes of all sectors.
    pub(crate) fn acknowledged(&self) -> Vec<Sequence> {
        (0..self.sectors()).map(|sector| self.least(sector)).collect()
    }

    /// Records that a sector's write is durable.
    pub(crate) fn is_durable(&self, sector: u64, sequence: Sequence) {
        let own = &self.sectors[sector as usize];
        if sequence > own.doubtful.load(Ordering::SeqCst) {
            own.durable.fetch_max(sequence, Ordering::SeqCst);
        }
    }

    /// Records that a flush has succeeded which began when the acknowledged writes were
    /// `acknowledged`.
    pub(crate) fn flushed(&self, acknowledged: &[Sequence]) {
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        for (sector, sequence) in (0..).zip(acknowledged) {
            self.is_durable(sector, *sequence);
        }
    }

    /// Records that a flush has failed.
    pub(crate) fn flush_failed(&self) {
        for own in &self.sectors {
            own.doubtful.fetch_max(own.begun.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// Returns, for each sector, the write that must survive a power cut.
    pub(crate) fn durable(&self) -> Vec<Sequence> {
        self.sectors.iter().map(|own| own.durable.load(Ordering::SeqCst)).collect()
    }

    /// Checks sectors that were read. `least` contains the lowest valid sequence of each sector.
    pub(crate) fn check(&self, first: u64, bytes: &[u8], least: &[Sequence], how: &str) {
        for ((sector, bytes), least) in (first..).zip(bytes.chunks_exact(SECTOR)).zip(least) {
            let own = &self.sectors[sector as usize];
            let found = stamp::read(bytes, sector);
            let begun = own.begun.load(Ordering::SeqCst);
            let right = match found {
                SectorValue::Zeroes => own.zeroed.load(Ordering::SeqCst) >= *least,
                SectorValue::Written(sequence) => (*least..=begun).contains(&sequence),
                SectorValue::Alien => false,
            };
            if !right {
                self.violated(format!(
                    "{how}: sector {sector} is {found:?} instead of {least} to {begun}"
                ));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(sequence: Sequence) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        if sequence > 0 {
            stamp::fill(&mut bytes, 0, sequence);
        }
        bytes
    }

    #[test]
    fn a_read_finds_the_last_acknowledged_write_or_a_later_one() {
        let find = |sequence, least| {
            let model = SectorModel::new(1, false);
            model.begin(0, false);
            model.begin(0, true);
            model.begin(0, false);
            model.check(0, &sector(sequence), &[least], "a read");
            model.violation().is_none()
        };
        assert_eq!([1, 2, 3, 4].map(|found| find(found, 2)), [false, true, true, false]);
        assert_eq!([0, 1, 2, 3].map(|least| find(0, least)), [true, true, true, false]);
    }

    #[test]
    fn a_flush_promises_no_writes_of_an_earlier_failed_flush() {
        let model = SectorModel::new(2, true);
        for sector in 0..2 {
            let sequence = model.begin(sector, false);
            model.acknowledge(sector, sequence);
        }
        model.flush_failed();
        let sequence = model.begin(1, false);
        model.acknowledge(1, sequence);
        model.flushed(&model.acknowledged());
        assert_eq!(model.durable(), [0, 2]);
    }
}
