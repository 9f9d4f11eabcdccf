//! What the daemon asks of the data path. One implementation serves real volumes (`host`), one is
//! a fake for tests of the daemon itself.

use std::sync::Arc;

use forebay_admin::curve::CurveReport;
use forebay_admin::lost::LostReport;
use forebay_admin::report::BlockReport;
use forebay_admin::{ApiError, Settings, VolumeName, VolumeReport};
use forebay_format::Uuid;
use serde::{Deserialize, Serialize};

use super::operations::Work;

/// A volume as the daemon remembers it between starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Definition {
    /// Its name.
    pub(crate) name: VolumeName,
    /// The cache device as the operator named it, with an absolute path.
    pub(crate) cache: String,
    /// The origin as the operator named it, with an absolute path.
    pub(crate) origin: String,
    /// Unit of caching in bytes: a power of two from 2 KiB to 1 MiB.
    pub(crate) block_size: u64,
    /// Bytes by which blocks are shifted on the origin: a multiple of 512 below the block size.
    pub(crate) alignment: u64,
    /// Every setting, already checked to fit together.
    pub(crate) settings: Settings,
    /// How often an operator has changed it. The cache device remembers that too: if it knows of a
    /// later change, the state directory is an old copy.
    #[serde(default)]
    pub(crate) version: u64,
    /// What tells the volume from others of its name; absent if it was last served by a daemon that
    /// did not note that.
    #[serde(default)]
    pub(crate) uuid: Option<Uuid>,
    /// What tells its cache from others; absent likewise.
    #[serde(default)]
    pub(crate) cache_uuid: Option<Uuid>,
}

/// What tells a volume and its cache from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The volume.
    pub(crate) volume: Uuid,
    /// Its cache.
    pub(crate) cache: Uuid,
}

/// Why a volume was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartError {
    /// The cache device has lost what was durable on it: it is an older copy.
    Older {
        /// Its cache.
        cache: Uuid,
        /// A sentence for the operator.
        error: ApiError,
    },
    /// The cache does not know the volume any more.
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
            StartError::Older { error, .. }
            | StartError::Unknown(error)
            | StartError::Other(error) => error,
        }
    }
}

/// What a deleted volume has left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Nothing.
    None,
    /// The cache device could not be told, and may still hold the volume.
    OnCacheDevice,
}

/// What is to become of a cache that is on the cache device of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It belongs to other volumes of this daemon: the new one joins them. It is an error if there
    /// is none.
    Join,
    /// It is used if it is empty; a cache with volumes is
    /// [`forebay_admin::ErrorKind::DataAtRisk`].
    Spare,
    /// The operator wants the device overwritten, whatever is on it.
    Overwrite,
}

/// The data path, as the daemon sees it.
///
/// Every method that takes a [`Work`] may take long. It runs on a thread of its own, reports its
/// progress there, and gives up soon after [`Work::is_cancelled`], or when a device has not answered
/// for [`Work::patience`]: with [`forebay_admin::ErrorKind::Cancelled`] and the volume usable, or with
/// an error that names the device. What waits for that device then is undone, or ended as it was
/// wanted, when it answers; until then [`Host::report`] knows the volume. The daemon never runs two of
/// them for the same volume at once, and none waits for the devices of another volume. A method that
/// fails has changed nothing that outlives it, unless it says so.
pub(crate) trait Host: Send + Sync {
    /// Lanes at work.
    fn lanes(&self) -> u32;

    /// Formats the cache device, or adds to the cache that is there, as `existing` says, and
    /// serves the volume, which has a UUID.
    fn create(
        &self,
        volume: &Definition,
        existing: Existing,
        work: &Arc<Work>,
    ) -> Result<(), ApiError>;

    /// Serves the volume of this name that the cache device holds, and puts its block size, alignment,
    /// version and settings into the definition. For `force` see [`Host::start`].
    fn adopt(
        &self,
        volume: &mut Definition,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<(), StartError>;

    /// Recovers the cache device and serves the volume with the settings in its definition. With
    /// `force` it goes on although the log has lost records, or the origin was changed while the
    /// cache had newer blocks: those win. Without [`Work::patience`] it waits for devices until they
    /// answer.
    fn start(&self, volume: &Definition, force: bool, work: &Arc<Work>) -> Result<(), StartError>;

    /// Stops serving a volume in order: what was acknowledged is durable on the cache device, dirty
    /// blocks stay dirty. What a cache in RAM has is written to the origin first, and the volume
    /// goes on if that fails. Any other error means that it is not served any more, but did not end
    /// clean.
    fn stop(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Gives a volume that is served the settings in its definition. Leaving writeback writes all dirty
    /// blocks to the origin first; requests are served meanwhile.
    fn set(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Writes all blocks that are dirty now to the origin, and makes them durable there.
    fn flush(&self, name: &VolumeName, work: &Arc<Work>) -> Result<(), ApiError>;

    /// Removes a volume, served or not, from its cache. One that its cache does not know any more is
    /// deleted. Dirty blocks are written to the origin first unless `discard_dirty`; with it, a
    /// cache device that fails or is gone is no error.
    fn delete(
        &self,
        volume: &Definition,
        discard_dirty: bool,
        work: &Arc<Work>,
    ) -> Result<Remains, ApiError>;

    /// The report of a volume that is served, is being started, or still waits for a device. `None` if
    /// it is none of these. Quick: no I/O and no waiting for it.
    fn report(&self, name: &VolumeName) -> Option<VolumeReport>;

    /// What tells a volume that is served from others; `None` if its cache is in RAM. As quick.
    fn identity(&self, name: &VolumeName) -> Option<Identity>;

    /// Notes how far the open caches are.
    fn note_positions(&self);

    /// What the cache holds of a volume that is not served, if the cache is open for others. As quick as
    /// [`Host::report`].
    fn blocks(&self, _name: &VolumeName) -> Option<BlockReport> {
        None
    }

    /// What caches of these sizes, in bytes, or of the usual ones, would have hit of the requests of a
    /// volume that is served. As quick as [`Host::report`].
    ///
    /// # Errors
    /// [`forebay_admin::ErrorKind::Refused`] when it is not served.
    fn curve(&self, name: &VolumeName, sizes: &[u64]) -> Result<CurveReport, ApiError>;

    /// What of a volume, served or not, is dirty on a cache device that has failed or is gone. Quick.
    fn lost(&self, name: &VolumeName) -> LostReport;

    /// Stops serving at all: front ends first, then what [`Host::stop`] does for every volume.
    /// Bounded in time. An error means that something did not end clean.
    fn shut_down(&self) -> Result<(), ApiError>;
}
