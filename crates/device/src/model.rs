//! Modelled disks: the timing of a 7,200 rpm disk, a SATA SSD, a PCIe SSD, and storage behind a
//! network.
//!
//! [`Model`] is the pure part: it receives arrivals with their times, decides the order of service,
//! and returns the completion times. It reads no clock, draws no random numbers and holds no data,
//! so the same arrivals give the same completions on a real and on a virtual clock.
//! [`ModelledDevice`] puts it in front of any other device, which stores the data.
//!
//! - `geometry`: the position of a byte on the platters, and seek times
//! - `hdd`: the disk's queue and its order of service
//! - `ssd`: the two SSDs
//! - `remote`: storage behind a network
//! - `timed`: the device with the timing of the model

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

use forebay_core::Nanos;

mod geometry;
mod hdd;
mod remote;
mod ssd;
mod timed;

#[cfg(test)]
mod calibration;
#[cfg(test)]
mod timed_tests;

pub use timed::ModelledDevice;

use hdd::Hdd;
use remote::Remote;
use ssd::Ssd;

/// The modelled disk.
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
    /// Block storage behind a network of 10 Gbit/s: 1 ms and more for each operation, 64 at a time;
    /// 64,000 reads or writes of 4 KiB per second, 1,177 MB/s.
    Remote,
    /// The same with 1 Gbit/s: 28,700 reads or writes of 4 KiB per second, 117.7 MB/s.
    RemoteGigabit,
}

impl ModelKind {
    /// All kinds.
    pub const ALL: [ModelKind; 5] = [
        ModelKind::Hdd7200,
        ModelKind::SataSsd,
        ModelKind::PcieSsd,
        ModelKind::Remote,
        ModelKind::RemoteGigabit,
    ];

    /// Returns the operator's name: `hdd7200`, `sata`, `pcie`, `remote` or `remote-1g`.
    pub fn as_str(self) -> &'static str {
        match self {
            ModelKind::Hdd7200 => "hdd7200",
            ModelKind::SataSsd => "sata",
            ModelKind::PcieSsd => "pcie",
            ModelKind::Remote => "remote",
            ModelKind::RemoteGigabit => "remote-1g",
        }
    }

    /// Returns whether distance costs time: a head has to move and to wait for a revolution.
    pub fn is_rotational(self) -> bool {
        self == ModelKind::Hdd7200
    }

    /// Returns the kind with that name, see [`ModelKind::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kind of a [`ModelOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelOpKind {
    /// Reads `len` bytes.
    Read,
    /// Writes `len` bytes.
    Write,
    /// Writes `len` bytes, which are durable when it completes (forced unit access).
    DurableWrite,
    /// Zeroes `len` bytes. Takes as long as writing them on a disk and on SATA, which have no
    /// faster way; a PCIe SSD only discards the range.
    WriteZeroes,
    /// Flushes the write cache; offset and length are ignored.
    Sync,
    /// Discards `len` bytes. Costs one command and moves no data, whatever the length.
    Discard,
}

/// The properties of an operation on which its timing depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOp {
    /// The kind of operation.
    pub kind: ModelOpKind,
    /// First byte. Offsets behind the end of the device are treated as its last byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ModelOp {
    /// Returns a read of `len` bytes at `offset`.
    pub fn read(offset: u64, len: u64) -> Self {
        ModelOp { kind: ModelOpKind::Read, offset, len }
    }

    /// Returns a write of `len` bytes at `offset`.
    pub fn write(offset: u64, len: u64) -> Self {
        ModelOp { kind: ModelOpKind::Write, offset, len }
    }

    /// Returns a flush of the write cache.
    pub fn sync() -> Self {
        ModelOp { kind: ModelOpKind::Sync, offset: 0, len: 0 }
    }
}

/// Number of an operation within one [`Model`], in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelOpId(pub u64);

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Completed {
    /// Time of the completion, on the clock of the arrivals; never later than the time advanced to.
    pub at: Nanos,
    /// The operation.
    pub id: ModelOpId,
}

/// Completions with known times that have not been collected, for disks that do not reorder
/// operations.
#[derive(Clone, Debug, Default)]
struct Pending(BinaryHeap<Reverse<Completed>>);

impl Pending {
    fn push(&mut self, completed: Completed) {
        self.0.push(Reverse(completed));
    }

    fn next_event(&self) -> Option<Nanos> {
        self.0.peek().map(|Reverse(completed)| completed.at)
    }

    fn advance(&mut self, now: Nanos, into: &mut Vec<Completed>) {
        while self.next_event().is_some_and(|at| at <= now) {
            into.extend(self.0.pop().map(|Reverse(completed)| completed));
        }
    }
}

/// Counters of a model. An operation is counted when its service begins.
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
    /// Number of operations for which the arm moved or another head was selected; 0 for other kinds
    /// than a disk.
    pub seeks: u64,
    /// Number of operations that continued at the end of the previous one; 0 for other kinds than a
    /// disk.
    pub streamed: u64,
    /// Busy time: of arm and platters on a disk; the sum over the links on an SSD (so at most twice
    /// the elapsed time on PCIe); on remote storage, the time weighted with the share of its
    /// servers that work.
    pub busy: Duration,
    /// Busy time for reads.
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
    Remote(Box<Remote>),
}

/// A disk without data, which turns arrivals into completions.
///
/// Every call passes the time. It never goes backwards: an earlier time counts as the latest one.
/// However rarely [`Model::advance`] is called, each choice of the next command is made as of the
/// moment at which the disk became free, among the commands that had arrived by then.
#[derive(Clone, Debug)]
pub struct Model {
    core: Core,
    kind: ModelKind,
    capacity: u64,
    next: u64,
    now: Nanos,
}

impl Model {
    /// Creates an idle disk of `capacity` bytes. A 7,200 rpm disk smaller than 2 TB is the outer
    /// part of one of 2 TB.
    pub fn new(kind: ModelKind, capacity: u64) -> Self {
        let core = match kind {
            ModelKind::Hdd7200 => Core::Hdd(Box::new(Hdd::new(capacity))),
            ModelKind::SataSsd => Core::Ssd(Box::new(Ssd::new(&ssd::SATA))),
            ModelKind::PcieSsd => Core::Ssd(Box::new(Ssd::new(&ssd::PCIE))),
            ModelKind::Remote => Core::Remote(Box::new(Remote::new(remote::TEN_GIGABIT))),
            ModelKind::RemoteGigabit => Core::Remote(Box::new(Remote::new(remote::GIGABIT))),
        };
        Model { core, kind, capacity, next: 0, now: Nanos(0) }
    }

    /// Returns the modelled disk.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// Submits an operation at `now`. Its completion comes from [`Model::advance`].
    pub fn submit(&mut self, now: Nanos, op: ModelOp) -> ModelOpId {
        self.submit_known(now, op).0
    }

    /// Like [`Model::submit`]; also returns the completion time if no later arrival can change it.
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
            Core::Remote(remote) => Some(remote.submit(self.now, id, op)),
        };
        (id, known)
    }

    /// Returns the time of the next completion, unless another operation arrives first; `None` when
    /// idle. May be in the past if the completion has not been collected yet.
    pub fn next_event(&self) -> Option<Nanos> {
        match &self.core {
            Core::Hdd(hdd) => hdd.next_event(),
            Core::Ssd(ssd) => ssd.next_event(),
            Core::Remote(remote) => remote.next_event(),
        }
    }

    /// Advances the time to `now` and appends the completions up to then, in order of time.
    pub fn advance(&mut self, now: Nanos, into: &mut Vec<Completed>) {
        self.now = self.now.max(now);
        match &mut self.core {
            Core::Hdd(hdd) => hdd.advance(self.now, into),
            Core::Ssd(ssd) => ssd.advance(self.now, into),
            Core::Remote(remote) => remote.advance(self.now, into),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> ModelCounters {
        match &self.core {
            Core::Hdd(hdd) => hdd.counters(),
            Core::Ssd(ssd) => ssd.counters(),
            Core::Remote(remote) => remote.counters(),
        }
    }
}
