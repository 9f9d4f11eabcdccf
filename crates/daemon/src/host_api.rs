//! The interface between the daemon and the data path. `host` implements it for real volumes; the
//! daemon's own tests use a fake.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::curve::CurveReport;
use forebay_admin::lost::LostReport;
use forebay_admin::report::BlockReport;
use forebay_admin::{
    ApiError, ByteRange, DropRequest, ErrorKind, PinReport, Settings, StartRequest, VolumeName,
    VolumeReport, VolumeState,
};
use forebay_engine::{Recording, TableChange};
use forebay_format::Uuid;
use forebay_lane::MemoryBudget;
use serde::{Deserialize, Serialize};

use super::hand_over::Items;
use super::work::Work;
use crate::curve::Sizes;

/// The persistent definition of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Its name.
    pub name: VolumeName,
    /// The cache device as the operator named it, with an absolute path.
    pub cache: String,
    /// The origin as the operator named it, with an absolute path.
    pub origin: String,
    /// Block size in bytes: a power of two from 2 KiB to 1 MiB.
    pub block_size: u64,
    /// Bytes by which blocks are shifted on the origin: a multiple of 512 below the block size.
    pub alignment: u64,
    /// Every setting; valid together.
    pub settings: Settings,
    /// Number of changes of the volume by operators. The cache device stores it too: if its number
    /// is higher, the state directory is an old copy.
    #[serde(default)]
    pub version: u64,
    /// Distinguishes the volume from others of its name; absent if it was last served by a daemon
    /// that did not record it.
    #[serde(default)]
    pub uuid: Option<Uuid>,
    /// Identifies its cache; absent likewise.
    #[serde(default)]
    pub cache_uuid: Option<Uuid>,
    /// The identity of its origin; absent if a cache device stores that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_identity: Option<forebay_core::Identity>,
    /// The name that the cache device has for it, while it is adopted under another one.
    #[serde(skip)]
    pub stored_as: Option<VolumeName>,
}

impl Definition {
    /// Returns the name of the volume on the cache device.
    pub(crate) fn stored_name(&self) -> &VolumeName {
        self.stored_as.as_ref().unwrap_or(&self.name)
    }
}

/// Draws the UUID of a volume or a cache.
#[expect(clippy::disallowed_methods, reason = "this is where they come from")]
pub(crate) fn fresh_uuid() -> Uuid {
    forebay_threads::Simulation::current()
        .map_or_else(Uuid::new_v4, |simulation| Uuid::from_u128(simulation.draw()))
}

/// The UUIDs of a volume and its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeUuids {
    /// The volume.
    pub(crate) volume: Uuid,
    /// The UUID of the cache.
    pub(crate) cache: Uuid,
}

impl VolumeUuids {
    /// Returns the identity that distinguishes the volume from others of its name, now and in the
    /// next process.
    pub(crate) fn told_apart(self) -> forebay_export::VolumeIdentity {
        let text = format!("{} {}", self.volume, self.cache);
        forebay_export::VolumeIdentity { text, lasts: true }
    }
}

/// The copy of its cache device from which a volume was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The copy from which it was served last, as far as is known.
    Current,
    /// A copy that lacks data that had been durable, accepted by force.
    Older(Uuid),
}

/// Why a volume was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartError {
    /// The cache does not contain the volume any more.
    Unknown(ApiError),
    /// Anything else.
    Other(ApiError),
}

impl From<ApiError> for StartError {
    fn from(error: ApiError) -> Self {
        StartError::Other(error)
    }
}

impl From<StartError> for ApiError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Unknown(error) | StartError::Other(error) => error,
        }
    }
}

/// The error of a hand-over whose next program would not find a device.
pub(crate) fn not_found_next(displaced: &str) -> ApiError {
    let why = "nothing is handed over, because the next program could not open a device";
    ApiError::new(ErrorKind::DataAtRisk, format!("{why}: {displaced}"))
}

/// The remains of a deleted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Nothing remains.
    None,
    /// The cache device could not record the deletion, and may still hold the volume.
    OnCacheDevice,
}

impl From<TableChange> for Remains {
    fn from(change: TableChange) -> Self {
        match change {
            TableChange::OnDevice => Remains::None,
            TableChange::ByDaemon => Remains::OnCacheDevice,
        }
    }
}

/// How to treat an existing cache on the cache device of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// The cache belongs to other volumes of this daemon, and the new one joins them. It is an
    /// error if there is no cache.
    Join,
    /// A blank device and an empty cache are used; anything else is [`ErrorKind::DataAtRisk`].
    Spare,
    /// The device is overwritten, whatever it holds when the command is given. If the content has
    /// changed when the device is written, it is treated as for [`Existing::Spare`].
    Overwrite,
}

/// The required age of the number of a volume's cached blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// A count that is at most some seconds old. Counting visits the whole index of a cache with
    /// several volumes, and delays lanes that need the visited part.
    Fresh,
    /// The last count, without a wait.
    Known,
}

/// Why a volume is degraded, the most serious reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A write or sync of the cache device has failed.
    CacheFailed,
    /// The cache device does not answer.
    CacheHangs,
    /// The origin was taken over by another writer.
    OriginFenced,
    /// The path of the origin leads elsewhere, or nowhere.
    OriginDisplaced,
    /// The path of the cache device does.
    CacheDisplaced,
    /// The origin has become smaller.
    OriginShrunk,
    /// The origin refuses writes.
    OriginReadOnly,
    /// Requests to the origin fail.
    OriginFailed,
    /// The origin does not answer.
    OriginHangs,
    /// Reads of the cache device fail; clean data comes from the origin instead.
    CacheErrors,
    /// Dirty data cannot be read any more.
    DataLost,
}

impl Trouble {
    /// Returns the name of the trouble in events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Trouble::CacheFailed => "cache-failed",
            Trouble::CacheHangs => "cache-hangs",
            Trouble::OriginFenced => "origin-fenced",
            Trouble::OriginDisplaced => "origin-displaced",
            Trouble::CacheDisplaced => "cache-displaced",
            Trouble::OriginShrunk => "origin-shrunk",
            Trouble::OriginReadOnly => "origin-read-only",
            Trouble::OriginFailed => "origin-failed",
            Trouble::OriginHangs => "origin-hangs",
            Trouble::CacheErrors => "cache-errors",
            Trouble::DataLost => "data-lost",
        }
    }

    /// Whether a device does not answer.
    pub(crate) fn is_hang(self) -> bool {
        matches!(self, Trouble::CacheHangs | Trouble::OriginHangs)
    }
}

/// The state of a volume that the daemon watches continuously.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The state of the volume.
    pub(crate) state: VolumeState,
    /// Bytes that are newer than the origin.
    pub(crate) dirty_bytes: u64,
    /// Bytes written back since the volume was started.
    pub(crate) written_back_bytes: u64,
    /// Ranges of dirty data that cannot be read any more.
    pub(crate) lost_ranges: u64,
    /// Size of these ranges, in bytes.
    pub(crate) lost_bytes: u64,
    /// Why the volume is degraded, and the latest error of its devices, until it is resolved.
    pub(crate) trouble: Option<(Trouble, String)>,
    /// Number of failed reads of the cache device since it was opened.
    pub(crate) failed_cache_reads: u64,
    /// Number of failed reads of the origin since the volume was started. Failed writes and syncs
    /// are a trouble instead, which stays.
    pub(crate) failed_origin_reads: u64,
    /// The device for which the volume's start or stop has waited longer than usual.
    pub(crate) waits_for: Option<String>,
}

impl Condition {
    /// Returns the condition of a volume in this state with nothing dirty and no errors.
    pub(crate) fn of(state: VolumeState) -> Self {
        Condition {
            state,
            dirty_bytes: 0,
            written_back_bytes: 0,
            lost_ranges: 0,
            lost_bytes: 0,
            trouble: None,
            failed_cache_reads: 0,
            failed_origin_reads: 0,
            waits_for: None,
        }
    }
}

/// A change of the cached blocks of a served volume. It never has to be undone, so it has no commit
/// point: when its work is cancelled, it ends between two blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockTask {
    /// Writes all currently dirty blocks to the origin, and makes them durable there.
    Flush,
    /// Discards clean blocks from these tiers. Data that only one tier has stays.
    Drop(DropRequest),
    /// Loads the blocks that the RAM tier held at the last orderly stop, as far as there is room.
    /// Yields to clients. [`ErrorKind::Refused`] if no tier accepts them, or there is no list of
    /// blocks.
    Prefetch,
    /// Fills blocks that are absent; without ranges, the pinned ones. Yields to clients.
    Fill(Vec<ByteRange>),
    /// Pins blocks, and fills those that are absent. [`ErrorKind::Refused`] if too many would be
    /// pinned; the pins are then unchanged.
    Pin(Vec<ByteRange>),
    /// Pins blocks no longer; without ranges, all.
    Unpin(Vec<ByteRange>),
    /// Discards clean blocks from the cache.
    Evict(Vec<ByteRange>),
}

impl BlockTask {
    /// Returns the verb by which operators know the task.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            BlockTask::Flush => "flush",
            BlockTask::Drop(_) => "drop",
            BlockTask::Prefetch | BlockTask::Fill(_) => "prefetch",
            BlockTask::Pin(_) => "pin",
            BlockTask::Unpin(_) => "unpin",
            BlockTask::Evict(_) => "evict",
        }
    }
}

/// The data path, in the view of the daemon. `host` implements each part in the file that does the
/// work.
///
/// A method with a [`Work`] may take long. It runs on a separate thread, reports progress there,
/// and gives up soon after [`Work::is_cancelled`], or when a device has not answered for
/// [`Work::patience`]. Before [`Work::commit`], giving up withdraws it: it fails with
/// [`ErrorKind::Cancelled`] or an error that names the device, and the part that still waits ends
/// without an effect when the device answers. After the commit it is late instead, and ends when
/// the device allows it. Until either end, [`Reports::report`] knows the volume.
///
/// The daemon never runs two such methods for the same volume at once, except that the deletion of
/// a volume with its dirty blocks runs beside a late method. None waits for the devices of another
/// volume. A method that fails has had no lasting effect, unless stated otherwise.
pub(crate) trait Host: Reports + Making + Serving + CachedBlocks + Closing {}

impl<T: Reports + Making + Serving + CachedBlocks + Closing> Host for T {}

/// Observation of the data path, without effects on data.
pub(crate) trait Reports: Send + Sync {
    /// Returns the number of lanes.
    fn lanes(&self) -> u32;

    /// Waits until every lane has answered, which no device can delay.
    ///
    /// # Errors
    /// A lane has not answered within `patience`; the message names it.
    fn pulse(&self, patience: Duration) -> Result<(), ApiError>;

    /// Returns the daemon's memory.
    fn memory(&self) -> &Arc<MemoryBudget>;

    /// Returns the report of a volume that is served, being started, or still waiting for a device,
    /// without the daemon's memory; `None` otherwise. Quick: no I/O.
    fn report(&self, name: &VolumeName, count: Count) -> Option<VolumeReport>;

    /// Returns the condition of a volume for which there is a report. Quicker than the report, and
    /// delays no lane.
    fn condition(&self, name: &VolumeName) -> Option<Condition>;

    /// Counts the cached blocks for [`Count::Known`], unless they were counted within `age`.
    fn recount(&self, _age: Duration) {}

    /// Returns the UUIDs of a served volume; `None` if its cache is in RAM. Quick.
    fn identity(&self, name: &VolumeName) -> Option<VolumeUuids>;

    /// Returns the identity of the origin of a served volume whose cache is in RAM. Quick.
    fn origin_identity(&self, _name: &VolumeName) -> Option<forebay_core::Identity> {
        None
    }

    /// Returns the identity of a volume, which differs for another volume of the same name, for
    /// front ends that serve it again after a hand-over or a restart. `None` if it is not served.
    /// Quick.
    fn told_apart(&self, name: &VolumeName) -> Option<forebay_export::VolumeIdentity>;

    /// Records the positions of the open caches.
    fn note_positions(&self);

    /// Counts the blocks of a volume that is not served, if its cache is open for others. Quick.
    fn blocks(&self, _name: &VolumeName) -> Option<BlockReport> {
        None
    }

    /// Returns the hit ratios that caches and RAM tiers of these sizes, or of the usual ones, would
    /// have had for the requests of a served volume. Quick.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the volume is not served.
    fn curve(&self, name: &VolumeName, sizes: &Sizes) -> Result<CurveReport, ApiError>;

    /// Updates the curves and the shadow caches of all volumes on the calling thread, which takes
    /// that work off the lanes.
    fn catch_up(&self) {}

    /// Begins to record the requests of a served volume's clients.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the volume is not served, [`ErrorKind::Busy`] if it is recorded
    /// already.
    fn record(&self, name: &VolumeName) -> Result<Recording, ApiError>;

    /// Returns the dirty ranges of a volume, served or not, on a cache device that has failed or is
    /// gone. Quick.
    fn lost(&self, name: &VolumeName) -> LostReport;

    /// Checks whether the paths of all devices still lead to them, for conditions and reports.
    /// Returns soon.
    fn look_at_paths(&self) {}
}

/// A volume that is being created. Dropping this ends the creation.
pub(crate) trait Creation {
    /// Formats the cache device, or joins its cache, and serves the volume.
    fn create(self: Box<Self>) -> Result<(), ApiError>;
}

/// Volumes that enter a cache device, and cache devices that no volume needs any more.
pub(crate) trait Making {
    /// Begins to create a volume, which has a UUID. Inspects the cache device: the operator's
    /// consent covers its present content, however long the command must wait afterwards. The
    /// caches of `volumes` are not overwritten, whatever the names of their devices are now.
    fn begin_creation<'a>(
        &'a self,
        volume: &Definition,
        existing: Existing,
        volumes: &[Definition],
        work: &Arc<Work>,
    ) -> Result<Box<dyn Creation + 'a>, ApiError>;

    /// Serves the volume of this name on the cache device, or renames the one that is stored under
    /// another name. Copies its block size, alignment, version and settings into the definition.
    /// For `force` see [`Serving::start`].
    fn adopt(
        &self,
        volume: &mut Definition,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<Copied, StartError>;

    /// Wipes the cache device of a deleted volume, whose cache holds no other volume. Afterwards
    /// the device shows no mark of Forebay or of any other system.
    fn wipe(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError>;
}

/// Volumes from their start to their end.
pub(crate) trait Serving {
    /// Recovers the cache device and serves the volume with the settings in its definition. With
    /// `force` it continues although the log has lost records, or the origin was changed while the
    /// cache had newer blocks; the blocks of the cache prevail. With `verify` all clean blocks are
    /// compared with the origin first. Without [`Work::patience`] it waits for devices without
    /// limit.
    fn start(
        &self,
        volume: &Definition,
        how: StartRequest,
        work: &Arc<Work>,
    ) -> Result<Copied, StartError>;

    /// Makes a volume visible to clients that was created, adopted or started, until its end.
    fn show(&self, _name: &VolumeName) {}

    /// Checks that the path of a served volume's origin leads to it.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`] if not, with the finding and the remedy.
    fn check_origin_path(&self, _name: &VolumeName, _work: &Arc<Work>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Applies the settings that a served volume shares with others of its cache, according to the
    /// state, to all of these volumes.
    ///
    /// # Errors
    /// The volume is not served, or the cache device fails.
    fn share(&self, name: &VolumeName, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Applies the settings in the definition to a served volume. Leaving writeback first writes
    /// all dirty blocks to the origin; requests are served meanwhile.
    fn set(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Stops serving a volume in order: acknowledged writes are durable on the cache device, and
    /// dirty blocks stay dirty. A cache in RAM is first written back to the origin; if that fails,
    /// the volume stays served. Any other error means that the volume is no longer served, but did
    /// not stop cleanly.
    ///
    /// A cache device to which its path no longer leads counts as RAM. If this is true of the
    /// origin, the volume is not stopped, because the origin's content could be lost. With
    /// `abandon` neither is considered.
    fn stop(&self, volume: &Definition, abandon: bool, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Checks whether a volume that is not served is on its cache device.
    ///
    /// # Errors
    /// This is unknown: the device is missing, is another one, does not answer, or has another
    /// volume of this name.
    fn holds(&self, volume: &Definition, work: &Arc<Work>) -> Result<bool, ApiError>;

    /// Removes a volume, served or not, from its cache. A volume that its cache no longer contains
    /// counts as deleted. Dirty blocks are written to the origin first unless `discard_dirty`, with
    /// which a failed or missing cache device is not an error.
    fn delete(
        &self,
        volume: &Definition,
        discard_dirty: bool,
        work: &Arc<Work>,
    ) -> Result<Remains, ApiError>;
}

/// Cached blocks.
pub(crate) trait CachedBlocks {
    /// Runs a task.
    fn run(&self, task: &BlockTask, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Returns whether anything is pinned of a volume, served or not.
    fn has_pins(&self, volume: &Definition) -> bool;

    /// Returns the pinned ranges of a served volume. Looks up each pinned block.
    fn pins(&self, name: &VolumeName) -> Result<PinReport, ApiError>;
}

/// The end of the daemon.
pub(crate) trait Closing {
    /// Shuts down: front ends first, then every volume as by [`Serving::stop`]. The time is
    /// bounded. An error means that something did not stop cleanly.
    fn shut_down(&self) -> Result<(), ApiError>;

    /// Prepares [`Closing::hand_over`] while clients are served: disables deferral and writes down
    /// data that exists only in RAM, so that a device that rejects the data is noticed before
    /// anything can be lost; then calls `begin`. Gives up soon after `goes_on` returns false. After
    /// an error, writes are deferred as before.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: some data cannot be written down, or an operation that was given up
    /// still waits for a device; or the error of `begin`.
    fn prepare_hand_over(
        &self,
        goes_on: &dyn Fn() -> bool,
        begin: &dyn Fn() -> Result<(), ApiError>,
    ) -> Result<(), ApiError>;

    /// Shuts down like [`Closing::shut_down`], but the front ends keep their clients connected.
    /// Returns the parts that another program needs to serve them, without the clients of volumes
    /// that did not stop in order. Returns `None` if `goes_on` returned false once everything was
    /// closed. Clients are then disconnected, and the front ends are not released.
    fn hand_over(&self, goes_on: &dyn Fn() -> bool) -> (Option<Items>, Result<(), ApiError>);
}
