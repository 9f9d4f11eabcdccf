//! What is put to the test, as the world sees it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::why::Why;
use forebay_core::{BlockSize, Durability, Mode, ReplacementKind};
use forebay_engine::BlockService;
use forebay_lane::Lane;

use crate::disk::SimDisk;
use crate::engine::may_be_ordered;
use crate::features::Features;
use crate::ledger::SimLedger;
use crate::presence::Presence;
use crate::shared::Shared;

/// A future that stays on the thread of the world.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The machine on which the system under test runs.
#[derive(Clone)]
pub struct Machine {
    /// Clock, trace and books.
    pub shared: Shared,
    /// One or more; the first one does the administration.
    pub lanes: Vec<Rc<Lane>>,
    /// The cache device.
    pub cache: Arc<SimDisk>,
    /// One origin for each volume.
    pub origins: Vec<Arc<SimDisk>>,
    /// How the cache is set up.
    pub setup: Setup,
    /// What is to be found of each volume.
    pub presence: Vec<Presence>,
    /// The volume whose origin is another device than it was, with the same content.
    pub exchanged: Option<u16>,
    /// What is noted of volumes outside of the cache.
    pub ledger: Option<Arc<SimLedger>>,
    /// Nothing is known of volumes but what the cache says.
    pub adopts: bool,
}

/// How the cache is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Unit of caching.
    pub block_size: BlockSize,
    /// Bytes in a segment.
    pub segment_size: u64,
    /// Logical blocks of the cache device and of the origins, in bytes.
    pub logical_blocks: Vec<u64>,
    /// By how many bytes the block grid of each volume is shifted.
    pub alignments: Vec<u64>,
    /// Blocks of volumes that are made later.
    pub room_for_blocks: u64,
    /// Index shards, if not as many as the capacity asks for.
    pub shards: Option<u32>,
    /// Replacement policy.
    pub replacement: ReplacementKind,
    /// Mode and durability of each volume at first.
    pub volumes: Vec<(Mode, Durability)>,
    /// Which volumes are ordered at first.
    pub ordered: Vec<bool>,
    /// The cache is as if it had been in use for years.
    pub aged: bool,
    /// Origins may be larger than the cache knows.
    pub grows: bool,
    /// Seed for what the system decides by chance.
    pub seed: u64,
    /// The operator insists where data is at risk: a cache device that fails may not have been told
    /// what was written to an origin.
    pub insists: bool,
}

/// What an operator does in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Switches the mode of a volume.
    Mode(u16, Mode),
    /// Changes the durability of a volume.
    Durability(u16, Durability),
    /// Changes the replacement policy.
    Replacement(ReplacementKind),
    /// Changes what may enter the cache from a volume, as this number says.
    Entry(u16, u64),
    /// Makes a volume ordered, or not.
    Ordered(u16, bool),
    /// Changes when and how a volume writes back, to what this number makes.
    Writeback(u16, u64),
    /// Writes everything dirty of a volume back.
    Drain(u16),
    /// Stops a volume and starts it again.
    Restart(u16),
    /// Stops a volume, which stays stopped.
    Stop(u16),
    /// Starts a volume that is stopped.
    Start(u16),
    /// Deletes a volume that is started; whether what is dirty is discarded.
    Delete(u16, bool),
    /// Deletes a volume that is stopped; whether what is dirty is discarded.
    DeleteStopped(u16, bool),
    /// Makes a volume anew on the same origin, with an identity that this number gives.
    Create(u16, u64),
}

impl Admin {
    /// The volume that it is about; the first one if it is about all.
    pub fn volume(self) -> u16 {
        match self {
            Admin::Mode(volume, _)
            | Admin::Durability(volume, _)
            | Admin::Entry(volume, _)
            | Admin::Ordered(volume, _)
            | Admin::Writeback(volume, _)
            | Admin::Drain(volume)
            | Admin::Restart(volume)
            | Admin::Stop(volume)
            | Admin::Start(volume)
            | Admin::Delete(volume, _)
            | Admin::DeleteStopped(volume, _)
            | Admin::Create(volume, _) => volume,
            Admin::Replacement(_) => 0,
        }
    }

    /// The volume that is there afterwards and was not before, or the other way round.
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

    /// The volume whose origin need not be at a flush from the start of this action on, though the
    /// system may not have heard of it yet.
    pub fn gives_up_order(self) -> Option<u16> {
        match self {
            Admin::Ordered(volume, false) | Admin::Delete(volume, true) => Some(volume),
            Admin::Mode(volume, mode) if !may_be_ordered(mode) => Some(volume),
            _ => None,
        }
    }
}

/// A system that can be formatted and opened.
pub trait SystemUnderTest {
    /// Prepares the cache device, once.
    fn format(&self, machine: &Machine) -> LocalFuture<Result<(), String>>;

    /// What it cannot be asked for.
    fn lacks(&self) -> Features {
        Features::default()
    }

    /// Opens the cache, recovers, and starts all volumes that are to be there on all lanes.
    fn open(&self, machine: &Machine) -> LocalFuture<Result<Rc<dyn Instance>, String>>;
}

/// An opened system.
pub trait Instance {
    /// A volume as one lane sees it.
    fn target(&self, lane: usize, volume: u16) -> Option<Rc<dyn BlockService>>;

    /// Why what happened to its volumes did, since they were started.
    fn why(&self) -> Vec<Why> {
        Vec::new()
    }

    /// How long an unflushed write of a volume may not be durable.
    fn commit_interval(&self, _volume: u16) -> Option<Duration> {
        None
    }

    /// Whether the origin of a volume is meant to be at a flush at every moment.
    fn in_order(&self, _volume: u16) -> bool {
        false
    }

    /// Whether nothing of the volume may go round the cache.
    fn is_ordered(&self, _volume: u16) -> bool {
        false
    }

    /// Whether older versions of blocks are kept for an origin.
    fn holds_versions(&self) -> bool {
        false
    }

    /// Does what the operator asks for. The volume has no requests under way if it is restarted.
    fn admin(&self, action: Admin) -> LocalFuture<Result<(), String>>;

    /// Stops everything; `drain` writes all that is dirty back first.
    fn stop(&self, drain: bool) -> LocalFuture<Result<(), String>>;
}
