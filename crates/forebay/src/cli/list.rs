//! `forebay list`: lists the volumes, one per line.

use clap::Args;
use forebay_admin::{VolumeList, api};
use forebay_core::units::format_size;

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::table::{Column, Table};
use crate::output::volume::mode;
use crate::output::{json, print_text};

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print names only, one in a line
    #[arg(long, conflicts_with = "json")]
    pub(crate) names: bool,

    /// Only volumes with data that is not on the origin, or may not be
    #[arg(long)]
    pub(crate) dirty: bool,
}

/// Lists the volumes.
pub(crate) fn run(client: &DaemonClient, args: &ListArgs) -> VerbResult {
    let mut list = client.get(&api::LIST, &())?;
    if args.dirty {
        list.volumes.retain(|volume| !volume.known || volume.dirty > 0 || volume.deferred > 0);
    }
    if args.names {
        let lines = list.volumes.iter().map(|volume| format!("{}\n", volume.name));
        return print_text(&lines.collect::<String>());
    }
    if args.json { json::print(&list) } else { print_text(&render(&list, args.dirty)) }
}

fn render(list: &VolumeList, dirty: bool) -> String {
    if list.volumes.is_empty() {
        return if dirty {
            "The data of all volumes is on their origins.\n".to_owned()
        } else {
            "No volumes. Create one with 'forebay create'.\n".to_owned()
        };
    }
    let mut table = Table::new(&[
        Column::left("NAME"),
        Column::left("STATE"),
        Column::left("MODE"),
        Column::right("SIZE"),
        Column::right("RAM"),
        Column::right("CACHED"),
        Column::right("DIRTY"),
        Column::right("DEFERRED"),
        Column::left("ORIGIN"),
        Column::left("CACHE"),
        Column::left("DEVICE"),
        Column::left("NBD"),
    ]);
    for volume in &list.volumes {
        let known = volume.known;
        let held = |bytes| if known { format_size(bytes) } else { "?".to_owned() };
        table.row([
            volume.name.to_string(),
            volume.state.name().to_owned(),
            format!(
                "{}{}",
                mode(volume.mode, volume.caching),
                if volume.read_only { ", read-only" } else { "" }
            ),
            format_size(volume.size),
            if volume.ram > 0 { format_size(volume.ram) } else { "-".to_owned() },
            held(volume.used),
            held(volume.dirty),
            if volume.ram > 0 { format_size(volume.deferred) } else { "-".to_owned() },
            volume.origin.clone(),
            volume.cache.clone(),
            volume.device.clone().unwrap_or_else(|| "-".to_owned()),
            volume.nbd.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.render()
}
