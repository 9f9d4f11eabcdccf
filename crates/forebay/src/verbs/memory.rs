//! `forebay memory`: shows the daemon's memory, or changes its limit.

use forebay_admin::MemoryRequest;
use forebay_admin::report::DaemonMemory;
use forebay_core::units::format_size;

use crate::cli::MemoryArgs;
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::table::{Column, Table};
use crate::output::{json, print_text};

/// Shows the memory, after a change of the limit if one is asked for.
pub(super) fn run(client: &Client, args: &MemoryArgs) -> Outcome {
    let memory: DaemonMemory = match args.limit {
        Some(limit_bytes) => client.post("/memory", &MemoryRequest { limit_bytes })?,
        None => client.get("/memory")?,
    };
    if args.json { json::print(&memory) } else { print_text(&render(&memory)) }
}

fn render(memory: &DaemonMemory) -> String {
    let mut table = Table::new(&[Column::left("MEMORY"), Column::right("SIZE")]);
    let used = memory.used_bytes;
    let rows = [("limit", memory.limit_bytes), ("used", used.total())];
    for (name, bytes) in rows.into_iter().chain(used.parts()) {
        table.row([name.to_owned(), format_size(bytes)]);
    }
    table.render()
}
