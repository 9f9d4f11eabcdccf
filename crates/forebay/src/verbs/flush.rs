//! `forebay flush`: writes all dirty blocks of a volume to its origin.

use forebay_admin::api;
use forebay_admin::endpoint::Nothing;

use super::{NameArgs, operate};
use crate::client::Client;
use crate::exit::Outcome;

/// Writes all dirty blocks of a volume to its origin.
pub(crate) fn run(client: &Client, args: &NameArgs) -> Outcome {
    operate(client, &api::FLUSH, &args.name, &Nothing {}, "Flushing")
}
