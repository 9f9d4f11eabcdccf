//! The interface through which the world uses the system under test.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::why::Why;
use forebay_core::{BlockSize, Caching, Durability, Mode, ReplacementKind};
use forebay_engine::{BlockService, Cause, EngineError, Obstacle};
use forebay_lane::Lane;
use forebay_store::StoreError;

use crate::disk::SimDisk;
use crate::engine::may_be_ordered;
use crate::features::Features;
use crate::ledger::SimLedger;
use crate::presence::Presence;
use crate::shared::SimContext;

/// A future that stays on the thread of the world.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The machine on which the system under test runs.
#[derive(Clone)]
pub struct Machine {
    /// Clock, trace and notes.
    pub shared: SimContext,
    /// One or more lanes; the first one performs administration.
    pub lanes: Vec<Rc<Lane>>,
    /// The cache device.
    pub cache: Arc<SimDisk>,
    /// One origin for each volume.
    pub origins: Vec<Arc<SimDisk>>,
    /// The setup of the cache.
    pub setup: Setup,
    /// The expected state of each volume.
    pub presence: Vec<Presence>,
    /// The volume whose origin is replaced by another device with the same content.
    pub exchanged: Option<u16>,
    /// The daemon's notes outside of the cache.
    pub ledger: Option<Arc<SimLedger>>,
    /// Whether the state is lost, so that only the cache itself contains the list of its volumes.
    pub adopts: bool,
}

/// The dirty blocks of a volume.
#[derive(Default)]
pub struct Stuck {
    /// Byte ranges that the origin refuses, in ascending order.
    pub refused: Vec<Range<u64>>,
    /// Byte ranges that the cache device cannot read.
    pub unreadable: Vec<Range<u64>>,
    /// All dirty blocks, for any reason.
    pub dirty: u64,
    /// Whether a sync of the origin has failed that may have lost a client's change: until a
    /// restart no flush succeeds.
    pub unsynced: bool,
}

/// The setup of the cache.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Unit of caching.
    pub block_size: BlockSize,
    /// Bytes in a segment.
    pub segment_size: u64,
    /// Sizes of the logical blocks of the cache device and of the origins, in bytes.
    pub logical_blocks: Vec<u64>,
    /// Bytes by which the block grid of each volume is shifted.
    pub alignments: Vec<u64>,
    /// Number of blocks reserved for volumes that are created later.
    pub room_for_blocks: u64,
    /// Number of index shards. `None`: chosen by the capacity.
    pub shards: Option<u32>,
    /// Whether the index is loaded slowly after an orderly stop.
    pub loads_slowly: bool,
    /// Whether volumes may have shares of the cache.
    pub shares: bool,
    /// Replacement policy.
    pub replacement: ReplacementKind,
    /// Initial mode and durability of each volume.
    pub volumes: Vec<(Mode, Durability)>,
    /// The volumes that are ordered initially.
    pub ordered: Vec<bool>,
    /// Whether the cache looks as if it had been in use for years.
    pub aged: bool,
    /// Whether origins may be larger than the cache knows.
    pub grows: bool,
    /// Whether volumes have a RAM tier.
    pub ram: bool,
    /// Whether volumes have a RAM tier that defers writes.
    pub deferred: bool,
    /// Whether these tiers ignore flushes.
    pub ignores_flush: bool,
    /// Seed of the system's random decisions.
    pub seed: u64,
    /// Whether the operator insists although data is at risk: a failing cache device may not have
    /// recorded writes to an origin.
    pub insists: bool,
    /// Whether the log rots: a lost record that looks torn may restore clean blocks that differ
    /// from their origin, and the operator continues in spite of that.
    pub rots: bool,
}

/// An operator's action during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Switches the mode of a volume.
    Mode(u16, Mode),
    /// Changes the durability of a volume.
    Durability(u16, Durability),
    /// Changes the replacement policy.
    Replacement(ReplacementKind),
    /// Changes the admission settings of a volume, using this number as the seed.
    Entry(u16, u64),
    /// Makes a volume ordered, or not.
    Ordered(u16, bool),
    /// Changes the writeback settings of a volume, using this number as the seed.
    Writeback(u16, u64),
    /// Writes all dirty blocks of a volume back.
    Drain(u16),
    /// Pauses, freezes or resumes a volume.
    Caching(u16, Caching),
    /// Drops the clean blocks of a volume from its RAM tier, its cache device, or both.
    Drop(u16, bool, bool),
    /// Stops a volume and starts it again.
    Restart(u16),
    /// Stops a volume, which stays stopped.
    Stop(u16),
    /// Starts a stopped volume.
    Start(u16),
    /// Deletes a running volume; the flag: discard dirty blocks.
    Delete(u16, bool),
    /// Deletes a stopped volume; the flag: discard dirty blocks.
    DeleteStopped(u16, bool),
    /// Creates a volume again on the same origin, with an identity derived from this number.
    Create(u16, u64),
}

impl Admin {
    /// Returns the volume that the action concerns, or the first volume if it concerns all.
    pub fn volume(self) -> u16 {
        match self {
            Admin::Mode(volume, _)
            | Admin::Durability(volume, _)
            | Admin::Entry(volume, _)
            | Admin::Ordered(volume, _)
            | Admin::Writeback(volume, _)
            | Admin::Drain(volume)
            | Admin::Caching(volume, _)
            | Admin::Drop(volume, ..)
            | Admin::Restart(volume)
            | Admin::Stop(volume)
            | Admin::Start(volume)
            | Admin::Delete(volume, _)
            | Admin::DeleteStopped(volume, _)
            | Admin::Create(volume, _) => volume,
            Admin::Replacement(_) => 0,
        }
    }

    /// Returns whether the action changes which failures a volume's writes survive.
    pub fn changes_durability(self, volume: u16) -> bool {
        matches!(self, Admin::Durability(of, _) if of == volume)
    }

    /// Returns the volume whose presence the action changes, if any.
    pub fn changes_presence(self) -> Option<u16> {
        match self {
            Admin::Stop(volume)
            | Admin::Start(volume)
            | Admin::Delete(volume, _)
            | Admin::DeleteStopped(volume, _)
            | Admin::Create(volume, _) => Some(volume),
            _ => None,
        }
    }

    /// Returns the volume whose origin need not be at a flush from the start of this action on,
    /// even if the system has not processed the action yet.
    pub fn gives_up_order(self) -> Option<u16> {
        match self {
            Admin::Ordered(volume, false)
            | Admin::Delete(volume, true)
            | Admin::Caching(volume, Caching::Paused) => Some(volume),
            Admin::Mode(volume, mode) if !may_be_ordered(mode) => Some(volume),
            _ => None,
        }
    }
}

/// Returns whether an action was refused because of a state of the volume or its origin for which
/// `state` returns true.
pub(crate) fn is_refused(
    result: &Result<(), EngineError>,
    state: impl FnOnce(&Obstacle) -> bool,
) -> bool {
    result.as_ref().is_err_and(|error| error.obstacle().is_some_and(state))
}

/// Returns whether a creation or start was refused because the volume already exists or runs.
pub(crate) fn is_present(error: &EngineError) -> bool {
    matches!(
        error.cause,
        Some(Cause::Store(StoreError::Exists(_)) | Cause::Obstacle(Obstacle::Started))
    )
}

/// A system that can be formatted and opened.
pub trait SystemUnderTest {
    /// Prepares the cache device, once.
    fn format(&self, machine: &Machine) -> LocalFuture<Result<(), EngineError>>;

    /// Returns the features that the system does not support.
    fn lacks(&self) -> Features {
        Features::default()
    }

    /// Opens and recovers the cache, and starts all volumes that should run, on all lanes.
    fn open(&self, machine: &Machine) -> LocalFuture<Result<Rc<dyn Instance>, EngineError>>;
}

/// An opened system.
pub trait Instance {
    /// Returns a volume on one lane, if the volume runs.
    fn target(&self, lane: usize, volume: u16) -> Option<Rc<dyn BlockService>>;

    /// Returns the reasons that the system's volumes have counted since they were started.
    fn why(&self) -> Vec<Why> {
        Vec::new()
    }

    /// Returns the longest time for which an unflushed write of a volume may stay volatile.
    fn commit_interval(&self, _volume: u16) -> Option<Duration> {
        None
    }

    /// Returns whether every acknowledged write of a volume survives a loss of power.
    fn is_strict(&self, _volume: u16) -> bool {
        false
    }

    /// Returns whether the origin of a volume should be at a flush at every moment.
    fn in_order(&self, _volume: u16) -> bool {
        false
    }

    /// Returns whether no write of the volume may bypass the cache.
    fn is_ordered(&self, _volume: u16) -> bool {
        false
    }

    /// Returns whether versions are held for an origin.
    fn holds_versions(&self) -> bool {
        false
    }

    /// Returns the dirty blocks of a volume, and the reasons.
    fn stuck(&self, _volume: u16) -> Stuck {
        Stuck::default()
    }

    /// Performs an operator's action. A volume to be restarted must have no requests in progress.
    fn admin(&self, action: Admin) -> LocalFuture<Result<(), EngineError>>;

    /// Stops everything; `drain` writes all dirty blocks back first.
    fn stop(&self, drain: bool) -> LocalFuture<Result<(), EngineError>>;
}

/// Returns the name of a volume.
pub(crate) fn name(volume: u16) -> String {
    format!("volume-{volume}")
}
