//! What the daemon asks of the data path. One implementation serves real volumes (`host`), one is
//! a fake for tests of the daemon itself.

use forebay_admin::curve::CurveReport;
use forebay_admin::{ApiError, Settings, VolumeName, VolumeReport};
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
    /// Every knob, already checked to fit together.
    pub(crate) settings: Settings,
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
/// progress there, and gives up with [`forebay_admin::ErrorKind::Cancelled`] soon after
/// [`Work::is_cancelled`], leaving the volume usable. The daemon never runs two of them for the same
/// volume at once. A method that fails has changed nothing that outlives it, unless it says so.
pub(crate) trait Host: Send + Sync {
    /// Lanes at work.
    fn lanes(&self) -> u32;

    /// Formats the cache device, or adds to the cache that is there, as `existing` says, and
    /// serves the volume.
    fn create(&self, volume: &Definition, existing: Existing, work: &Work) -> Result<(), ApiError>;

    /// Serves the volume of this name that the cache device holds, and puts its block size, alignment
    /// and settings into the definition. For `force` see [`Host::start`].
    fn adopt(&self, volume: &mut Definition, force: bool, work: &Work) -> Result<(), ApiError>;

    /// Recovers the cache device and serves the volume with the settings in its definition. With
    /// `force` it goes on although the log has lost records, or the origin was changed while the
    /// cache had newer blocks: those win.
    fn start(&self, volume: &Definition, force: bool, work: &Work) -> Result<(), ApiError>;

    /// Stops serving a volume in order: what was acknowledged is durable on the cache device, dirty
    /// blocks stay dirty. What a cache in RAM has is written to the origin first, and the volume
    /// goes on if that fails. Any other error means that it is not served any more, but did not end
    /// clean.
    fn stop(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError>;

    /// Changes settings of a volume that is served. Leaving writeback writes all dirty blocks to
    /// the origin first; requests are served meanwhile.
    fn set(&self, name: &VolumeName, settings: &Settings, work: &Work) -> Result<(), ApiError>;

    /// Writes all blocks that are dirty now to the origin, and makes them durable there.
    fn flush(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError>;

    /// Removes a volume, served or not, from its cache. Dirty blocks are written to the origin
    /// first unless `discard_dirty`; with it, a cache device that is gone is no error.
    fn delete(&self, volume: &Definition, discard_dirty: bool, work: &Work)
    -> Result<(), ApiError>;

    /// The report of a volume that is served or is being started; `None` if it is neither. Quick:
    /// no I/O and no waiting for it.
    fn report(&self, name: &VolumeName) -> Option<VolumeReport>;

    /// What caches of these sizes, in bytes, or of the usual ones, would have hit of the requests of a
    /// volume that is served. As quick as [`Host::report`].
    ///
    /// # Errors
    /// [`forebay_admin::ErrorKind::Refused`] when it is not served.
    fn curve(&self, name: &VolumeName, sizes: &[u64]) -> Result<CurveReport, ApiError>;

    /// Stops serving at all: front ends first, then what [`Host::stop`] does for every volume.
    /// Bounded in time. An error means that something did not end clean.
    fn shut_down(&self, work: &Work) -> Result<(), ApiError>;
}
