//! `forebay drop`: discards what is cached of a volume.

use forebay_admin::DropRequest;

use super::operate;
use crate::cli::DropArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Discards clean cached blocks.
pub(super) fn run(client: &Client, args: &DropArgs) -> Outcome {
    let tiers = DropRequest { ram: args.ram, ssd: args.ssd };
    operate(client, &args.name, "drop", &tiers, "Dropping the cache of")
}
