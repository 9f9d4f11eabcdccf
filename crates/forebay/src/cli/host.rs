//! Arguments of the verbs for the host: its file of volumes, its devices.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use forebay_admin::VolumeName;
use forebay_settings::duration::parse_duration;

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The file [default: /etc/forebay/forebay.toml for root, $XDG_CONFIG_HOME/forebay/forebay.toml
    /// otherwise]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// Print the plan only
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Stop volumes that the file does not declare; nothing is deleted
    #[arg(long)]
    pub(crate) prune: bool,

    /// Overwrite the content of the cache device of this volume if it has to be created; repeatable
    #[arg(short = 'f', long, value_name = "NAME")]
    pub(crate) force: Vec<VolumeName>,

    /// Adopt volumes that the daemon does not know from their cache devices instead of creating them
    #[arg(long)]
    pub(crate) adopt: bool,

    /// How long to wait for missing devices of volumes that have to be created or started [default: 0]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,

    /// Print the plan and its results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) device: PathBuf,

    /// For a rule of udev: print nothing if it is nothing, and never fail
    #[arg(long)]
    pub(crate) udev: bool,

    /// Print what it holds instead, as create judges it: blank, content of other systems, or of an unknown kind
    #[arg(long, conflicts_with = "udev")]
    pub(crate) content: bool,

    /// Directory of the daemon's state, which names origins [default: as 'forebay daemon']
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
}
