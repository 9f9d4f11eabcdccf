//! All rows of a replay, and how they are printed.

use forebay_core::units::format_size;
use serde::Serialize;

use crate::output::Table;

use super::row::Row;

/// What is printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) trace: String,
    pub(super) format: &'static str,
    pub(super) requests: u64,
    /// To blocks of 4 KiB.
    pub(super) accesses: u64,
    /// Different ones.
    pub(super) blocks: u64,
    pub(super) align: u64,
    pub(super) rows: Vec<Row>,
}

impl Report {
    pub(super) fn print(&self) {
        println!(
            "{}: {} requests, {} accesses to {} blocks of 4K",
            self.trace, self.requests, self.accesses, self.blocks
        );
        match self.rows.as_slice() {
            [only] => only.print(),
            rows => compare(rows),
        }
    }
}

/// Prints rows with and without RAM side by side.
fn compare(rows: &[Row]) {
    let mut table = Table::new(
        "CACHE | RAM | POLICY | DEFERRED | IN RAM | BLOCKS MISSED | READS MISSED | SSD WRITTEN | \
         READ MEAN us | p99 | WRITE MEAN us | p99 | DISK BUSY",
    );
    for row in rows {
        let ram = row.ram.as_ref();
        let dash = || "-".to_owned();
        let share = |value: f64| format!("{value:.4}");
        let [reads, writes] = [row.reads, row.writes].map(|latency| {
            let latency =
                latency.map(|it| (format!("{:.1}", it.mean_us), format!("{:.1}", it.p99_us)));
            latency.unwrap_or_else(|| (dash(), dash()))
        });
        table.row([
            format_size(row.misses.capacity_blocks * row.block_bytes),
            ram.map_or_else(dash, |ram| format_size(ram.bytes)),
            ram.map_or_else(dash, |ram| ram.policy.to_owned()),
            ram.map_or_else(dash, |ram| format!("{} s", ram.deferred_seconds)),
            ram.map_or_else(dash, |ram| share(ram.block_hit_ratio)),
            share(row.misses.block_miss_ratio),
            row.misses.read_request_miss_ratio.map_or_else(dash, share),
            format_size(row.ssd_written_bytes),
            reads.0,
            reads.1,
            writes.0,
            writes.1,
            format!("{:.1} s", row.disk_busy_drained_seconds),
        ]);
    }
    print!("{}", table.render());
    println!(
        "Missed: neither in RAM nor in the cache. The last row has no RAM, and a cache for which the\n\
         same money was spent (--price). DISK BUSY includes the writeback of the rest."
    );
}
