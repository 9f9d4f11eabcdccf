//! The data path of a daemon: lanes, caches, front ends.
//!
//! - [`lanes`]: the threads, and jobs on them
//! - [`raw`]: devices without a cache, as a baseline
//! - [`ram`]: RAM tiers of volumes
//! - [`deferral`]: their deferred writes
//! - [`devices`]: opens devices, and claims them
//! - [`draining`]: writes down data that exists only in RAM, before the program ends
//! - [`contents`]: cached blocks: writes them back, drops, pins, evicts and loads them
//! - [`caches`]: the open cache devices
//! - [`inspect`]: inspects a cache device before anything is written
//! - [`creation`]: creates and adopts volumes, and formats caches
//! - [`overwriting`]: whether a device may be formatted, and wiping it before that
//! - [`volumes`]: all further operations on volumes
//! - [`curve`]: hit ratios of caches of other sizes; [`lost`]: ranges lost with a cache device
//! - [`displaced`]: devices whose paths lead elsewhere; [`paths`]: the last check of each path
//! - [`faults`], [`settings`], [`report`]: convert from the engine's types to the admin API's
//! - [`opening`]: opens a cache and an origin together
//! - [`attended`]: work that can be abandoned when a device does not answer
//! - [`shutdown`]: stops everything
//! - [`waiting`]: work on a lane with progress and cancellation

mod attended;
mod caches;
mod contents;
mod creation;
mod curve;
mod deferral;
mod devices;
mod displaced;
mod draining;
mod faults;
mod inspect;
mod lanes;
mod lost;
mod opening;
mod overwriting;
mod paths;
mod ram;
mod raw;
mod report;
mod settings;
mod shown;
mod shutdown;
mod stopped;
mod volumes;
mod waiting;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::curve::CurveReport;
use forebay_admin::lost::LostReport;
use forebay_admin::report::BlockReport;
use forebay_admin::{ApiError, ErrorKind, VolumeName, VolumeReport};
use forebay_device::{Access, Device, keep_buffers};
use forebay_engine::{FrontEnd, Recording};
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse};
use forebay_settings::Settings;

use super::block_lists::BlockLists;
use super::events::Events;
use super::host_api::{Condition, Count, Host, Reports, VolumeUuids};
use super::known::Known;
use super::ledger::FileLedger;
use super::notify::ShutdownProgress;
use super::state::{NewestSettings, State};
use super::work::Work;
use crate::curve::Sizes;
use crate::ring_remedy;
use caches::Caches;
use devices::Devices;
pub use devices::Opener;
pub(crate) use devices::SystemDevices;
use lanes::Lanes;
use ram::RamTiers;
pub use raw::RawExport;
pub(crate) use raw::names;
use report::Served;
use shown::Shown;

/// Bytes of memory of the program, including its threads and the admin API.
const PROCESS: u64 = 24 << 20;
/// Bytes of memory of a lane, without the buffers that it keeps.
const LANE: u64 = 4 << 20;
/// Divisor: all lanes together keep this part of the memory as buffers for the next I/O.
const KEPT_PART: u64 = 16;

/// Time limit for a dismissed client to take its last replies.
pub(crate) const DISMISSAL: Duration = Duration::from_secs(5);

/// Time limit for all volumes, and again for all caches, to close; after that the daemon ends
/// without them.
const CLOSE_PATIENCE: Duration = Duration::from_secs(20);

/// Returns how the origin of a volume with these settings is opened.
fn access_of(settings: &Settings) -> Access {
    if settings.read_only { Access::ReadOnly } else { Access::Exclusive }
}

/// Returns the error about lanes that cannot be started, with the remedy where io_uring is not
/// allowed.
fn lanes_not_started(error: &std::io::Error) -> ApiError {
    let remedy = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::Unsupported => {
            format!("; the daemon needs io_uring: {}", ring_remedy::remedy(ring_remedy::disabled()))
        }
        _ => String::new(),
    };
    ApiError::failed(format!("the lanes cannot be started: {error}{remedy}"))
}

/// The parts of a daemon's data path.
pub(crate) struct DataPathParts<'a> {
    /// Number of lanes, at least 1.
    pub(crate) lanes: u32,
    /// Front ends that have claimed their addresses.
    pub(crate) front_ends: &'a [Arc<dyn FrontEnd>],
    /// Devices that are served without a cache.
    pub(crate) raw: &'a [RawExport],
    /// Opens devices.
    pub(crate) opener: Arc<dyn Opener>,
    /// Records of caches.
    pub(crate) records: DaemonRecords,
    /// The memory limit.
    pub(crate) memory: &'a Arc<MemoryBudget>,
    /// Gets the progress of an end that takes long.
    pub(crate) ending: &'a Arc<ShutdownProgress>,
}

/// Sets up lanes that serve through the front ends.
///
/// # Errors
/// A raw device cannot be opened, or the system has no threads or rings left.
pub(crate) fn open(parts: DataPathParts<'_>) -> Result<Arc<dyn Host>, ApiError> {
    let DataPathParts { lanes, front_ends, raw, opener, records, memory, ending } = parts;
    let devices = Devices::new(opener);
    let mut served: Vec<(String, Arc<dyn Device>)> = Vec::new();
    for export in raw {
        served.push((export.name.to_string(), devices.claim_raw(&export.device)?));
    }
    let kept = keep_buffers(memory.limit() / KEPT_PART / u64::from(lanes));
    let process = PROCESS + u64::from(lanes) * (LANE + kept);
    let process = memory.hold(MemoryUse::Process, process, "the daemon").map_err(faults::memory)?;
    let ram = Arc::<RamTiers>::default();
    ram.watch_memory().map_err(|error| ApiError::failed(format!("no thread: {error}")))?;
    let shown = Arc::<Shown>::default();
    let lanes = Lanes::start(lanes, front_ends, &served, (&ram, &shown), memory)
        .map_err(|error| lanes_not_started(&error))?;
    Ok(Arc::new(Arc::new(EngineHost {
        lanes,
        devices,
        memory: memory.clone(),
        _process: process,
        caches: Caches::new(records.known, records.notes),
        served: Arc::new(Served::new(ram, shown)),
        front_ends: front_ends.to_vec(),
        lists: records.lists,
        newest: records.newest,
        events: records.events,
        ending: ending.clone(),
    })))
}

/// Records that the daemon keeps beside the cache devices.
pub(crate) struct DaemonRecords {
    /// The positions of caches, which are checked and updated, and deleted volumes.
    known: Arc<Known>,
    /// The volumes.
    newest: NewestSettings,
    /// Notes about dirty blocks.
    notes: Arc<FileLedger>,
    /// Lists of blocks.
    lists: Lists,
    /// Events.
    events: Arc<Events>,
}

impl DaemonRecords {
    /// Opens the records of a daemon.
    ///
    /// # Errors
    /// A directory cannot be created, or the system has no threads left.
    pub(crate) fn open(state: &State) -> Result<Self, ApiError> {
        Ok(DaemonRecords {
            known: state.known().clone(),
            newest: state.newest(),
            notes: Arc::new(FileLedger::open(state.dir())?),
            lists: Lists::open(state.dir())?,
            events: state.events().clone(),
        })
    }
}

/// Lists of blocks of volumes.
struct Lists {
    /// Blocks that RAM tiers held.
    pub(crate) hints: BlockLists,
    /// Pinned blocks.
    pub(crate) pins: BlockLists,
}

impl Lists {
    /// Opens the lists of a state directory.
    ///
    /// # Errors
    /// A directory cannot be created.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, ApiError> {
        let open = |kind| BlockLists::open(state_dir, kind);
        Ok(Lists { hints: open("prefetch")?, pins: open("pins")? })
    }
}

/// How to bring a volume up.
#[derive(Clone, Default)]
pub(super) struct How {
    /// Whether to start despite doubts about the origin or the log of the cache.
    pub(super) force: bool,
    /// Compare all clean blocks with the origin first.
    pub(super) verify: bool,
    /// The work in progress, which may be cancelled.
    pub(super) work: Arc<Work>,
}

/// See the module.
pub(crate) struct EngineHost {
    lanes: Lanes,
    devices: Devices,
    memory: Arc<MemoryBudget>,
    _process: MemoryHold,
    caches: Caches,
    served: Arc<Served>,
    front_ends: Vec<Arc<dyn FrontEnd>>,
    lists: Lists,
    /// The settings that volumes of one cache share, according to the state.
    newest: NewestSettings,
    events: Arc<Events>,
    /// Gets the progress of an end that takes long.
    ending: Arc<ShutdownProgress>,
}

impl Reports for Arc<EngineHost> {
    fn lanes(&self) -> u32 {
        self.lanes.count()
    }

    fn pulse(&self, patience: Duration) -> Result<(), ApiError> {
        self.lanes.pulse(patience)
    }

    fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    fn report(&self, name: &VolumeName, count: Count) -> Option<VolumeReport> {
        self.served.report(name, count)
    }

    fn condition(&self, name: &VolumeName) -> Option<Condition> {
        self.served.condition(name)
    }

    fn recount(&self, age: Duration) {
        self.served.recount(age);
    }

    fn identity(&self, name: &VolumeName) -> Option<VolumeUuids> {
        self.served.get(name).ok()?.identity()
    }

    fn origin_identity(&self, name: &VolumeName) -> Option<forebay_core::Identity> {
        self.served.get(name).ok()?.origin_identity()
    }

    fn told_apart(&self, name: &VolumeName) -> Option<forebay_export::VolumeIdentity> {
        self.served.told_apart(name)
    }

    fn note_positions(&self) {
        for (_, running) in self.served.all() {
            self.caches.note_position(&running.place, running.store());
        }
    }

    fn blocks(&self, name: &VolumeName) -> Option<BlockReport> {
        self.served.blocks(name)
    }

    fn curve(&self, name: &VolumeName, sizes: &Sizes) -> Result<CurveReport, ApiError> {
        self.curve_of(name, sizes)
    }

    fn catch_up(&self) {
        self.catch_up_curves();
    }

    fn record(&self, name: &VolumeName) -> Result<Recording, ApiError> {
        Recording::begin(&self.served.get(name)?.volume).ok_or_else(|| {
            let message = format!("volume '{name}' is being recorded already");
            ApiError::new(ErrorKind::Busy, message)
        })
    }

    fn lost(&self, name: &VolumeName) -> LostReport {
        self.lost_of(name)
    }

    fn look_at_paths(&self) {
        EngineHost::look_at_paths(self);
    }
}
