//! `forebay flush`: writes all dirty blocks of a volume to its origin.

use forebay_admin::api;
use forebay_admin::endpoint::Nothing;

use super::{NameArgs, operate};
use crate::client::DaemonClient;
use crate::exit::VerbResult;

/// Writes all dirty blocks of a volume to its origin.
pub(crate) fn run(client: &DaemonClient, args: &NameArgs) -> VerbResult {
    operate(client, &api::FLUSH, &args.name, &Nothing {}, "Flushing")
}
