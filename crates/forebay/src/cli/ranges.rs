//! Arguments of the verbs for parts of a volume.

use clap::{Args, ValueHint};
use forebay_admin::VolumeName;

/// The help of arguments that name parts of a volume.
const PLACES: &str = "OFFSET+LENGTH of the volume, as 1G+512M, or a file on its device";

/// Arguments of `prefetch`.
#[derive(Debug, Args)]
pub(crate) struct PrefetchArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<String>,
}

/// Arguments of `pin`.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<String>,

    /// Print what is pinned as JSON
    #[arg(long, conflicts_with = "places")]
    pub(crate) json: bool,
}

/// Arguments of `unpin`.
#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "all")]
    pub(crate) places: Vec<String>,

    /// Unpin everything
    #[arg(long, conflicts_with = "places")]
    pub(crate) all: bool,
}

/// Arguments of `evict`.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    #[arg(required = true)]
    pub(crate) places: Vec<String>,
}
