//! `forebay start`: serves a stopped volume again.

use forebay_admin::StartRequest;

use super::operate;
use crate::cli::StartArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Serves a stopped volume again.
pub(super) fn run(client: &Client, args: &StartArgs) -> Outcome {
    operate(client, &args.name, "start", &StartRequest { force: args.force }, "Starting")
}
