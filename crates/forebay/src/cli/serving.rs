//! Arguments of the verbs that serve a volume, stop that, and remove the volume.

use clap::Args;
use forebay_admin::VolumeName;

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Stop it although clients are connected or its block device is in use: they get I/O errors, and
    /// a file system on it loses what it has not written yet
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Stop it although the path of its origin or cache device leads elsewhere: the content of a
    /// file that was removed or replaced is lost
    #[arg(long)]
    pub(crate) abandon: bool,
}

/// Arguments of `start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Start although the cache has lost records, or its origin was changed elsewhere: dirty blocks
    /// of the cache take precedence over the origin
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Compare every clean block of the cache with the origin first, and drop those that differ
    ///
    /// A start notices that the origin was written elsewhere by what its system tells of writes, by
    /// samples, by the starts of partitions and filesystems, and by some of the blocks that were
    /// cached last. A change of a few sectors on a device whose system tells nothing, such as an
    /// export of an NBD server or a disk after a restart of the machine, may escape that. This does
    /// not let it escape, and reads as much of the origin as the cache holds.
    #[arg(long)]
    pub(crate) verify: bool,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Discard the dirty blocks instead of writing them to the origin
    #[arg(long)]
    pub(crate) discard_dirty: bool,

    /// Delete it although clients are connected or its block device is in use: they get I/O errors, and
    /// a file system on it loses what it has not written yet
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Wipe the cache device afterwards, for another use: it shows no mark of Forebay any more. Refused if it
    /// holds other volumes
    #[arg(long)]
    pub(crate) wipe: bool,
}
