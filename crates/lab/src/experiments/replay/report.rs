//! All rows of a replay, and how they are printed.

use serde::Serialize;

use crate::error::LabResult;
use crate::output::table;

use super::row::Replayed;

/// The printed table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) trace: String,
    pub(super) format: &'static str,
    pub(super) requests: u64,
    /// Accesses to blocks of 4 KiB.
    pub(super) accesses: u64,
    /// Different blocks.
    pub(super) blocks: u64,
    pub(super) align: u64,
    pub(super) rows: Vec<Replayed>,
}

impl Report {
    pub(super) fn print(&self) -> LabResult<()> {
        println!(
            "{}: {} requests, {} accesses to {} blocks of 4K",
            self.trace, self.requests, self.accesses, self.blocks
        );
        match self.rows.as_slice() {
            [only] => only.print(),
            rows => {
                print!("{}", table(rows)?);
                println!(
                    "Missed: neither in RAM nor in the cache. The last row has no RAM, and a cache for \
                     which the\nsame money was spent (--price). DISK BUSY includes the writeback of the rest."
                );
                Ok(())
            }
        }
    }
}
