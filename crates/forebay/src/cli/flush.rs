//! `forebay flush`: writes all dirty blocks of a volume to its origin.

use forebay_admin::api;
use forebay_admin::endpoint::Nothing;
use forebay_core::units::format_size;

use super::{NameArgs, moved_by};
use crate::client::DaemonClient;
use crate::exit::{VerbResult, note};

/// Writes all dirty blocks of a volume to its origin.
pub(crate) fn run(client: &DaemonClient, args: &NameArgs) -> VerbResult {
    let name = &args.name;
    let moved = moved_by(client, &api::FLUSH, name, &Nothing {}, "Flushing")?;
    note(&format!("{name}: flushed, {} written back", format_size(moved.written_back)));
    Ok(())
}
