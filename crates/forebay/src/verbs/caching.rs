//! `forebay pause`, `freeze` and `resume`: short for `set NAME caching=`.

use forebay_admin::{Assignments, SetRequest, api};
use forebay_core::Caching;

use super::{NameArgs, operate};
use crate::client::Client;
use crate::exit::Outcome;

/// Has a volume pass all requests through.
pub(crate) fn pause(client: &Client, args: &NameArgs) -> Outcome {
    set(client, args, Caching::Paused, "Pausing")
}

/// Lets nothing else enter the cache.
pub(crate) fn freeze(client: &Client, args: &NameArgs) -> Outcome {
    set(client, args, Caching::Frozen, "Freezing")
}

/// Caches again.
pub(crate) fn resume(client: &Client, args: &NameArgs) -> Outcome {
    set(client, args, Caching::On, "Resuming")
}

fn set(client: &Client, args: &NameArgs, caching: Caching, doing: &str) -> Outcome {
    let settings = Assignments::parse(&[format!("caching={caching}")])?;
    operate(client, &api::SET, &args.name, &SetRequest { settings }, doing)
}
