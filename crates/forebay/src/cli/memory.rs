//! `forebay memory`: shows the daemon's memory, or changes its limit.

use clap::Args;
use forebay_admin::report::DaemonMemory;
use forebay_admin::{MemoryRequest, api};
use forebay_core::units::format_size;

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::table::{Column, Table};
use crate::output::{json, print_text};
use crate::values::memory_limit;

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// New limit, until the daemon ends; --memory-limit of 'forebay daemon' is for its next start
    #[arg(long, value_name = "SIZE", value_parser = memory_limit, allow_hyphen_values = true)]
    pub(crate) limit: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows the memory, after a change of the limit if one is asked for.
pub(crate) fn run(client: &DaemonClient, args: &MemoryArgs) -> VerbResult {
    let memory = match args.limit {
        Some(limit_bytes) => client.call(&api::SET_MEMORY, &(), &MemoryRequest { limit_bytes })?,
        None => client.get(&api::MEMORY, &())?,
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
