//! `forebay show`: prints the full report of a volume, or its lost ranges.

use forebay_admin::VolumeReport;
use forebay_admin::lost::LostReport;

use crate::cli::ShowArgs;
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::{json, lost, print_text, volume};

/// Prints a volume.
pub(super) fn run(client: &Client, args: &ShowArgs) -> Outcome {
    if args.lost {
        let report: LostReport = client.get(&format!("/volumes/{}/lost", args.name))?;
        return if args.json { json::print(&report) } else { print_text(&lost::render(&report)) };
    }
    let report: VolumeReport = client.get(&format!("/volumes/{}", args.name))?;
    if args.json { json::print(&report) } else { print_text(&volume::render(&report)) }
}
