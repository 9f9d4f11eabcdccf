//! `forebay drop`: discards cached data of a volume.

use clap::Args;
use forebay_admin::{DropRequest, VolumeName, api};
use forebay_core::units::format_size;

use super::moved_by;
use crate::client::DaemonClient;
use crate::exit::{VerbResult, note};

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
    let name = &args.name;
    let moved = moved_by(client, &api::DROP, name, &tiers, "Dropping the cache of")?;
    note(&format!("{name}: {} discarded from the cache", format_size(moved.discarded)));
    Ok(())
}
