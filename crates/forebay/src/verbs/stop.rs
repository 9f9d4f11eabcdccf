//! `forebay stop`: stops serving a volume.

use forebay_admin::StopRequest;

use super::operate;
use crate::cli::StopArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Stops serving a volume.
pub(super) fn run(client: &Client, args: &StopArgs) -> Outcome {
    let request = StopRequest { force: args.force, abandon: args.abandon };
    operate(client, &args.name, "stop", &request, "Stopping")
}
