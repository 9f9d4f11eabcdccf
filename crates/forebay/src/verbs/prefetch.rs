//! `forebay prefetch`: loads blocks into the RAM tier that it held earlier.

use super::{nothing, operate};
use crate::cli::NameArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Loads what the RAM tier held when the volume was last stopped.
pub(super) fn run(client: &Client, args: &NameArgs) -> Outcome {
    operate(client, &args.name, "prefetch", &nothing(), "Prefetching")
}
