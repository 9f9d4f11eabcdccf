//! `forebay start`: serves a stopped volume again.

use super::{nothing, operate};
use crate::cli::NameArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Serves a stopped volume again.
pub(super) fn run(client: &Client, args: &NameArgs) -> Outcome {
    operate(client, &args.name, "start", &nothing(), "Starting")
}
