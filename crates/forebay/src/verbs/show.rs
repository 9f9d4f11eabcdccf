//! `forebay show`: everything about one volume.

use forebay_admin::VolumeReport;

use crate::cli::ShowArgs;
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::{json, print_text, volume};

/// Shows a volume.
pub(super) fn run(client: &Client, args: &ShowArgs) -> Outcome {
    let report: VolumeReport = client.get(&format!("/volumes/{}", args.name))?;
    if args.json { json::print(&report) } else { print_text(&volume::render(&report)) }
}
