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
    let rows = [("limit", memory.limit_bytes), ("accounted for", used.total())];
    let rss = Some(("resident (RSS)", memory.resident_bytes)).filter(|(_, bytes)| *bytes > 0);
    for (name, bytes) in rows.into_iter().chain(rss) {
        table.row([name.to_owned(), format_size(bytes)]);
    }
    for (name, bytes) in used.parts() {
        table.row([format!("  {name}"), format_size(bytes)]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_a_line_beside_what_is_accounted_for() {
        let mut memory = DaemonMemory { limit_bytes: 1 << 30, ..DaemonMemory::default() };
        (memory.used_bytes.index, memory.resident_bytes) = (64 << 20, 96 << 20);
        let text = render(&memory);
        for words in
            [&["limit", "1G"][..], &["accounted", "for", "64M"], &["resident", "(RSS)", "96M"]]
        {
            let has = |line: &str| line.split_whitespace().eq(words.iter().copied());
            assert!(text.lines().any(has), "{words:?} is not in\n{text}");
        }
        assert!(text.contains("\n  index"), "the parts stand below the sum: {text}");
        memory.resident_bytes = 0;
        assert!(!render(&memory).contains("RSS"), "an older daemon does not say");
    }
}
