//! Advice about RAM in front of a cache.

use forebay_admin::curve::{CurveReport, CurveRow, RamRow};
use forebay_core::units::format_size;

use super::Advice;
use super::words::{self, beyond, of, percent};
use crate::output::table::{Column, Table};

/// Returns the smallest size in bytes that helps and that no larger size improves enough.
pub(super) fn take(rows: &[RamRow]) -> Option<u64> {
    let row = |row: &RamRow| CurveRow { bytes: row.bytes, reads: Some(row.ram), all: row.ram };
    words::take(&rows.iter().map(row).collect::<Vec<_>>())
}

/// Returns the text for a trace; empty if it has nothing.
pub(super) fn of_trace(advice: &Advice) -> String {
    match advice.accesses {
        0 => String::new(),
        _ => text(&advice.ram_rows, advice.ram_before, advice.footprint, of(advice.reads)),
    }
}

/// Returns the text for a volume; empty if nothing was read or written.
pub(super) fn of_volume(report: &CurveReport) -> String {
    if report.accesses == 0 {
        return String::new();
    }
    let of = of(report.reads);
    let present = report.ram.as_ref().map_or_else(String::new, |row| present(row, of));
    text(&report.ram_rows, report.present.bytes, report.footprint, of) + &present
}

/// Returns the table of the shares that RAM serves in front of a cache of `cache` bytes (0: there
/// is none), with a recommendation. `of` names the whole that the shares refer to.
fn text(rows: &[RamRow], cache: u64, footprint: u64, of: &str) -> String {
    let before = match cache {
        0 => "the origin alone".to_owned(),
        bytes => format!("a cache of {}", format_size(bytes)),
    };
    let mut table = Table::new(&[
        Column::right("RAM"),
        Column::right("FROM RAM"),
        Column::right("±"),
        Column::right("FROM CACHE"),
        Column::right("FROM ORIGIN"),
        Column::right("±"),
    ]);
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let error = |error: f64| format!("{:.1}", error * 100.0);
    for row in rows {
        table.row([
            format_size(row.bytes),
            share(row.ram.share),
            error(row.ram.error),
            share(row.cache),
            share(row.origin.share),
            error(row.origin.error),
        ]);
    }
    let taken = take(rows).and_then(|bytes| rows.iter().find(|row| row.bytes == bytes));
    let verdict = match taken {
        Some(row) => format!(
            "Take {} of RAM: it serves {} of {of}; {}.",
            format_size(row.bytes),
            percent(row.ram),
            beyond(row.bytes, rows.iter().map(|row| row.bytes), footprint)
        ),
        None => format!("RAM of these sizes serves few of the {of}."),
    };
    format!(
        "\nRAM in front of {before}, by who serves the {of}:\n\n{}\n{verdict}\n",
        table.render()
    )
}

/// Returns the line about RAM of the present size.
fn present(row: &RamRow, of: &str) -> String {
    format!(
        "RAM of the present size, {}: {} of {of}; the cache {:.0} %, the origin {}.\n",
        format_size(row.bytes),
        percent(row.ram),
        row.cache * 100.0,
        percent(row.origin),
    )
}

#[cfg(test)]
mod tests {
    use forebay_admin::curve::Hits;

    use super::*;

    fn row(mib: u64, ram: f64, cache: f64) -> RamRow {
        let hits = |share| Hits { share, error: 0.02 };
        RamRow { bytes: mib << 20, ram: hits(ram), cache, origin: hits(1.0 - ram - cache) }
    }

    #[test]
    fn each_size_has_a_line_with_all_three_and_one_is_recommended() {
        let rows = [row(64, 0.3, 0.4), row(256, 0.6, 0.1), row(1024, 0.62, 0.08)];
        let text = text(&rows, 2 << 30, 4 << 30, "reads");
        assert!(text.contains("RAM in front of a cache of 2G, by who serves the reads:"), "{text}");
        let line = ["256M", "60.0", "%", "2.0", "10.0", "%", "30.0", "%", "2.0"];
        assert!(text.lines().any(|found| found.split_whitespace().eq(line)), "{text}");
        assert!(text.contains("Take 256M of RAM: it serves 60 % of reads"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 90), "{text}");
        assert_eq!(take(&rows), Some(256 << 20));
        let present = present(&rows[0], "reads");
        assert!(
            present.ends_with("64M: 30 % of reads; the cache 40 %, the origin 30 %.\n"),
            "{present}"
        );
    }

    #[test]
    fn where_ram_does_not_help_or_there_is_no_cache_that_is_said() {
        let text = text(&[row(64, 0.01, 0.0)], 0, 1 << 30, "accesses");
        assert!(text.contains("in front of the origin alone"), "{text}");
        assert!(text.contains("RAM of these sizes serves few of the accesses."), "{text}");
    }
}
