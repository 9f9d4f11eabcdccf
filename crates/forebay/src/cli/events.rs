//! Arguments of the verbs that say what happened.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use forebay_admin::{ApiError, EventKind, VolumeName};
use time::OffsetDateTime;

use super::values::Words;
use forebay_daemon::events_since;

fn since(text: &str) -> Result<OffsetDateTime, ApiError> {
    events_since(text)
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only those about this volume
    pub(crate) name: Option<VolumeName>,

    /// Print further events as they happen, also of the next daemon
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,

    /// Only since then: how long ago, like 30m or 2h, or a time like 2026-01-31T15:04:05Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<OffsetDateTime>,

    /// Only of these kinds, separated by commas, like degraded,recovered
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    #[arg(value_parser = Words(EventKind::ALL), hide_possible_values = true)]
    pub(crate) kinds: Vec<EventKind>,

    /// Only so many, the newest ones
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// Print JSON, one event per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `support`.
#[derive(Debug, Args)]
pub(crate) struct SupportArgs {
    /// The archive, a new file [default: forebay-support-TIME.tar.gz in the working directory]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,

    /// Directory of the daemon's state [default: that of the running daemon, or else as 'forebay daemon']
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
}
