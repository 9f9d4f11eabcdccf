//! `forebay stop`: stops serving a volume.

use clap::Args;
use forebay_admin::{StopRequest, VolumeName, api};

use super::operate;
use crate::client::DaemonClient;
use crate::exit::VerbResult;

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Stop it although clients are connected or its block device is in use: they get I/O errors,
    /// and a file system on it loses data that it has not written yet
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Stop it although the path of its origin or cache device leads elsewhere: the content of a
    /// file that was removed or replaced is lost
    #[arg(long)]
    pub(crate) abandon: bool,
}

/// Stops serving a volume.
pub(crate) fn run(client: &DaemonClient, args: &StopArgs) -> VerbResult {
    let request = StopRequest { force: args.force, abandon: args.abandon };
    operate(client, &api::STOP, &args.name, &request, "Stopping")
}
