//! Modelled disks: how long a 7,200 rpm disk, a SATA SSD and a PCIe SSD take.
//!
//! [`Model`] is the pure part: it is told what arrives when, decides in what order it is served,
//! and says when each operation completes. It reads no clock, draws no random numbers and holds no
//! data, so the same arrivals give the same completions on a real and on a virtual clock.
//! [`ModelledDevice`] puts it before any other device, which keeps the data.
//!
//! - `geometry`: where a byte is on the platters, and how long the arm takes to get there
//! - `hdd`: the disk's queue and the order in which it serves it
//! - `ssd`: the two SSDs
//! - `timed`: the device that takes as long as the model says

use std::fmt;
use std::time::Duration;

use forebay_core::Nanos;

mod geometry;
mod hdd;
mod ssd;
mod timed;

#[cfg(test)]
mod calibration;
#[cfg(test)]
mod timed_tests;

pub use timed::ModelledDevice;

use hdd::Hdd;
use ssd::Ssd;

/// Which disk is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// A 2 TB disk of 7,200 rpm with a queue of 32: 235 random reads of 4 KiB per second within
    /// 100 GB, 113 MB/s sequential reads, 107 MB/s writes.
    Hdd7200,
    /// A SATA SSD: 49,700 random reads and 38,100 writes of 4 KiB per second, 279 and 268 MB/s.
    SataSsd,
    /// A PCIe SSD: 164,000 random reads and 149,000 writes of 4 KiB per second, 2,012 and
    /// 1,777 MB/s.
    PcieSsd,
}

impl ModelKind {
    /// Every kind there is.
    pub const ALL: [ModelKind; 3] = [ModelKind::Hdd7200, ModelKind::SataSsd, ModelKind::PcieSsd];

    /// The name that operators write: `hdd7200`, `sata` or `pcie`.
    pub fn as_str(self) -> &'static str {
        match self {
            ModelKind::Hdd7200 => "hdd7200",
            ModelKind::SataSsd => "sata",
            ModelKind::PcieSsd => "pcie",
        }
    }

    /// The kind of that name, see [`ModelKind::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a [`ModelOp`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelOpKind {
    /// Reads `len` bytes.
    Read,
    /// Writes `len` bytes.
    Write,
    /// Writes `len` bytes, which are durable when it completes (forced unit access).
    DurableWrite,
    /// Zeroes `len` bytes. Takes as long as writing them on a disk and on SATA, which have no
    /// quicker way; a PCIe SSD only forgets the range, as for a discard.
    WriteZeroes,
    /// Flushes the write cache; offset and length mean nothing.
    Sync,
    /// Forgets `len` bytes. Costs one command and moves no data, however long the range.
    Discard,
}

/// One operation, as far as its duration depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOp {
    /// What is done.
    pub kind: ModelOpKind,
    /// First byte. What lies behind the end of the device is treated as its last byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ModelOp {
    /// A read of `len` bytes at `offset`.
    pub fn read(offset: u64, len: u64) -> Self {
        ModelOp { kind: ModelOpKind::Read, offset, len }
    }

    /// A write of `len` bytes at `offset`.
    pub fn write(offset: u64, len: u64) -> Self {
        ModelOp { kind: ModelOpKind::Write, offset, len }
    }

    /// A flush of the write cache.
    pub fn sync() -> Self {
        ModelOp { kind: ModelOpKind::Sync, offset: 0, len: 0 }
    }
}

/// Number of an operation within one [`Model`], in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelOpId(pub u64);

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Completed {
    /// When it ended, on the clock of the arrivals; never later than the time advanced to.
    pub at: Nanos,
    /// Which operation.
    pub id: ModelOpId,
}

/// What a model has done so far. An operation is counted when its service begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ModelCounters {
    /// Reads served.
    pub reads: u64,
    /// Writes served, zeroing with data transfer included.
    pub writes: u64,
    /// Syncs served.
    pub syncs: u64,
    /// Discards served, zeroing without data transfer included.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How often the arm moved or another head was selected to begin an operation; 0 on an SSD.
    pub seeks: u64,
    /// Operations that continued where the one before had ended; 0 on an SSD.
    pub streamed: u64,
    /// Time spent serving: the arm's and the platter's on a disk, the sum over the serial links
    /// on an SSD (so at most twice the elapsed time on PCIe).
    pub busy: Duration,
    /// The part of that for reads.
    pub read_busy: Duration,
}

impl ModelCounters {
    fn count(&mut self, op: &ModelOp, busy: Duration) {
        self.busy += busy;
        match op.kind {
            ModelOpKind::Read => {
                self.reads += 1;
                self.read_busy += busy;
                self.read_bytes += op.len;
            }
            ModelOpKind::Write | ModelOpKind::DurableWrite | ModelOpKind::WriteZeroes => {
                self.writes += 1;
                self.written_bytes += op.len;
            }
            ModelOpKind::Sync => self.syncs += 1,
            ModelOpKind::Discard => self.discards += 1,
        }
    }
}

#[derive(Clone, Debug)]
enum Core {
    Hdd(Box<Hdd>),
    Ssd(Box<Ssd>),
}

/// A disk without data: arrivals in, completions out.
///
/// Time comes in with every call and never goes backwards: an earlier time than one given before
/// counts as that one. However rarely [`Model::advance`] is called, each choice of what to serve
/// next is made as of the moment when the disk became free, among what had arrived before then.
#[derive(Clone, Debug)]
pub struct Model {
    core: Core,
    kind: ModelKind,
    capacity: u64,
    next: u64,
    now: Nanos,
}

impl Model {
    /// An idle disk of `capacity` bytes. A disk of 7,200 rpm that is smaller than 2 TB is the outer
    /// part of one of 2 TB.
    pub fn new(kind: ModelKind, capacity: u64) -> Self {
        let core = match kind {
            ModelKind::Hdd7200 => Core::Hdd(Box::new(Hdd::new(capacity))),
            ModelKind::SataSsd => Core::Ssd(Box::new(Ssd::new(&ssd::SATA))),
            ModelKind::PcieSsd => Core::Ssd(Box::new(Ssd::new(&ssd::PCIE))),
        };
        Model { core, kind, capacity, next: 0, now: Nanos(0) }
    }

    /// Which disk this is.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// An operation arrives at `now`. Its end comes out of [`Model::advance`].
    pub fn submit(&mut self, now: Nanos, op: ModelOp) -> ModelOpId {
        self.submit_known(now, op).0
    }

    /// As [`Model::submit`]; says in addition when the operation will complete, where no later
    /// arrival can change that.
    pub fn submit_known(&mut self, now: Nanos, op: ModelOp) -> (ModelOpId, Option<Nanos>) {
        self.now = self.now.max(now);
        let id = ModelOpId(self.next);
        self.next += 1;
        let offset = op.offset.min(self.capacity.saturating_sub(1));
        let op = ModelOp { offset, len: op.len.min(self.capacity - offset), ..op };
        let known = match &mut self.core {
            Core::Hdd(hdd) => {
                hdd.submit(self.now, id, op);
                None
            }
            Core::Ssd(ssd) => Some(ssd.submit(self.now, id, op)),
        };
        (id, known)
    }

    /// When the next operation completes, unless another arrives before; `None` when idle.
    /// May lie in the past if that has not been collected yet.
    pub fn next_event(&self) -> Option<Nanos> {
        match &self.core {
            Core::Hdd(hdd) => hdd.next_event(),
            Core::Ssd(ssd) => ssd.next_event(),
        }
    }

    /// Lets time pass until `now` and appends what has completed, in order of time.
    pub fn advance(&mut self, now: Nanos, into: &mut Vec<Completed>) {
        self.now = self.now.max(now);
        match &mut self.core {
            Core::Hdd(hdd) => hdd.advance(self.now, into),
            Core::Ssd(ssd) => ssd.advance(self.now, into),
        }
    }

    /// What has been done so far.
    pub fn counters(&self) -> ModelCounters {
        match &self.core {
            Core::Hdd(hdd) => hdd.counters(),
            Core::Ssd(ssd) => ssd.counters(),
        }
    }
}
