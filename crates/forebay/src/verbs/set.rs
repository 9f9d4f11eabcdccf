//! `forebay set`: changes settings of a volume.

use forebay_admin::{Assignments, SetRequest};

use super::operate;
use crate::cli::SetArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Changes settings.
pub(super) fn run(client: &Client, args: &SetArgs) -> Outcome {
    let settings = Assignments::parse(&args.settings)?;
    operate(client, &args.name, "set", &SetRequest { settings }, "Changing")
}
