//! `forebay drop`: discards cached data of a volume.

use clap::Args;
use forebay_admin::{DropRequest, VolumeName, api};

use super::operate;
use crate::client::DaemonClient;
use crate::exit::VerbResult;

/// Arguments of `drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// From the RAM tier only
    #[arg(long, conflicts_with = "ssd")]
    pub(crate) ram: bool,

    /// From the cache device only
    #[arg(long)]
    pub(crate) ssd: bool,
}

/// Discards clean cached blocks.
pub(crate) fn run(client: &DaemonClient, args: &DropArgs) -> VerbResult {
    let tiers = DropRequest { ram: args.ram, ssd: args.ssd };
    operate(client, &api::DROP, &args.name, &tiers, "Dropping the cache of")
}
