//! One file per verb; those that set `caching` share one. `progress` follows an operation.

pub(crate) mod advise;
pub(crate) mod apply;
pub(crate) mod block_device;
pub(crate) mod caching;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod create;
pub(crate) mod daemon;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drop;
pub(crate) mod dump;
pub(crate) mod events;
pub(crate) mod flush;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod memory;
pub(crate) mod probe;
pub(crate) mod profiles;
mod progress;
pub(crate) mod ranges;
pub(crate) mod set;
pub(crate) mod show;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod support;
pub(crate) mod take_over;
pub(crate) mod top;
pub(crate) mod trace;

use clap::Args;
use forebay_admin::VolumeName;
use forebay_admin::api::Operate;

use crate::client::DaemonClient;
use crate::exit::VerbResult;

/// Arguments of verbs that take one volume.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The volume
    pub(crate) name: VolumeName,
}

/// Starts an operation on a volume and follows it to its end.
fn operate<Q: serde::Serialize>(
    client: &DaemonClient,
    endpoint: &Operate<Q>,
    name: &VolumeName,
    request: &Q,
    doing: &str,
) -> VerbResult {
    let begun = client.call(endpoint, name, request)?;
    progress::follow(client, begun, &format!("{doing} {name}"))
}
