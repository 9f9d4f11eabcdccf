//! `forebay pause`, `freeze` and `resume`: short for `set NAME caching=`.

use forebay_admin::{Assignments, SetRequest, api};
use forebay_core::Caching;

use super::{NameArgs, operate};
use crate::client::DaemonClient;
use crate::exit::VerbResult;

/// Has a volume pass all requests through.
pub(crate) fn pause(client: &DaemonClient, args: &NameArgs) -> VerbResult {
    set(client, args, Caching::Paused, "Pausing")
}

/// Lets nothing else enter the cache.
pub(crate) fn freeze(client: &DaemonClient, args: &NameArgs) -> VerbResult {
    set(client, args, Caching::Frozen, "Freezing")
}

/// Caches again.
pub(crate) fn resume(client: &DaemonClient, args: &NameArgs) -> VerbResult {
    set(client, args, Caching::On, "Resuming")
}

fn set(client: &DaemonClient, args: &NameArgs, caching: Caching, doing: &str) -> VerbResult {
    let settings = Assignments::parse(&[format!("caching={caching}")])?;
    operate(client, &api::SET, &args.name, &SetRequest { settings }, doing)
}
