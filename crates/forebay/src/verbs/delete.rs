//! `forebay delete`: removes a volume from its cache.

use forebay_admin::DeleteRequest;

use super::operate;
use crate::cli::DeleteArgs;
use crate::client::Client;
use crate::exit::Outcome;

/// Removes a volume.
pub(super) fn run(client: &Client, args: &DeleteArgs) -> Outcome {
    let request = DeleteRequest { discard_dirty: args.discard_dirty };
    operate(client, &args.name, "delete", &request, "Deleting")
}
