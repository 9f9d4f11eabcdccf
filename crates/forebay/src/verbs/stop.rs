//! `forebay stop`: stops serving a volume.

use super::{nothing, operate};
use crate::cli::NameArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Stops serving a volume.
pub(super) fn run(client: &Client, args: &NameArgs) -> Outcome {
    operate(client, &args.name, "stop", &nothing(), "Stopping")
}
