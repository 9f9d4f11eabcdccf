//! The share of RAM, cache and origin in serving the requests of clients.

use forebay_admin::VolumeReport;
use forebay_admin::report::ServedBy;

use super::{grouped, percent};
use crate::output::table::{Column, Table};

/// Lists who served the requests of clients, in counts and shares that add up; empty if there were
/// none.
pub(super) fn served(report: &VolumeReport) -> String {
    let served = &report.served;
    if served.reads.total + served.writes.total == 0 {
        return String::new();
    }
    let mut table = Table::new(&[
        Column::left("SERVED BY"),
        Column::right("TOTAL"),
        Column::right("RAM"),
        Column::right(""),
        Column::right("CACHE"),
        Column::right(""),
        Column::right("ORIGIN"),
        Column::right(""),
    ]);
    for (what, by) in [("reads", &served.reads), ("writes", &served.writes)] {
        let ServedBy { total, ram, cache, origin } = *by;
        let shares =
            by.shares().map_or_else(|| [(); 3].map(|()| "-".to_owned()), |s| s.map(percent));
        let parts = [ram, cache, origin].into_iter().zip(shares);
        let parts = parts.flat_map(|(count, share)| [grouped(count), share]);
        table.row([what.to_owned(), grouped(total)].into_iter().chain(parts));
    }
    format!("{}\n", table.render())
}
