//! `forebay-lab commands`: cost of operator commands on a cache of terabytes.
//!
//! 90 % of the cache is full and 30 % of that is dirty. Its blocks are not written: see [`image`].
//! Each command runs on a lane that also serves two clients, one of another volume of the same
//! cache and one of a volume on a cache of its own. The results are the command's time, the longest
//! time that it holds the lane, the clients' longest requests, and memory.

pub(crate) mod image;
mod stage;
mod verbs;
mod watch;

use clap::ValueEnum;
use forebay_core::units::format_size;
use forebay_core::{BlockSize, parse_size};
use serde::Serialize;
use serde_json::json;

use crate::error::{LabResult, usage};
use crate::output::{Goal, Row, show, table};
use stage::Image;
use watch::{HOLD, Took};

/// Promised maximum of a neighbour's requests, in milliseconds.
const REQUEST: f64 = 100.0;

/// Arguments of `forebay-lab commands`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of the cache, as 1T. A block takes nearly 20 bytes of RAM: 236 million of 4 KiB are in
    /// 1 TiB
    #[arg(long, default_value = "64G", value_parser = parse_size)]
    size: u64,
    /// Size of a block, as 4K
    #[arg(long, default_value = "4K", value_parser = parse_size)]
    block: u64,
    /// Blocks that were written between the last checkpoint and a crash, as bytes
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    log: u64,
    /// Only these
    #[arg(long, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    only: Vec<Part>,
}

/// Commands that are measured one after the other on one copy of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Start after an orderly stop, show, flush, stop, start again, hand-over
    Orderly,
    /// Start after a crash
    Crash,
    /// Start on an origin that was written elsewhere
    Changed,
    /// Evict half of the blocks, drop the others
    Drop,
    /// Delete a volume that runs
    Delete,
    /// Delete one that is stopped
    DeleteStopped,
    /// Check the device
    Check,
}

impl std::fmt::Display for Part {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&crate::output::name_of(*self))
    }
}

#[derive(Clone, Debug, Serialize)]
struct Cost {
    command: &'static str,
    #[serde(flatten)]
    took: Took,
    goal_of_hold: Goal,
    goal_of_requests: Goal,
}

impl Cost {
    fn new(command: &'static str, took: Took) -> Self {
        let longest = took.read_ms.max(took.write_ms).max(took.flush_ms);
        let goal_of_hold = Goal::at_most(HOLD, took.hold_ms);
        Cost { command, goal_of_hold, goal_of_requests: Goal::at_most(REQUEST, longest), took }
    }
}

impl Row for Cost {
    const COLUMNS: &'static str = "COMMAND=command | TIME ms=wall_ms:0 | CPU ms=cpu_ms:0 | TURN ms=turn_ms:1 | \
        HOLD ms=hold_ms:1 | OVER 10 ms=long_holds | OF=holds | GOAL=goal_of_hold:<=0 | \
        READ ms=read_ms:1 | WRITE ms=write_ms:1 | FLUSH ms=flush_ms:1 | \
        PROCESS GREW=grown_bytes:bytes";
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let cache_bytes = args.size.next_multiple_of(4 << 20).max(1 << 30);
    let block = BlockSize::new(args.block)
        .ok_or_else(|| usage("--block: choose a power of two from 2K to 1M"))?;
    let log_bytes = args.log;
    if log_bytes > cache_bytes / 20 {
        return Err(usage(format!("--log: at most {}", format_size(cache_bytes / 20))));
    }
    let image = Image::make(cache_bytes, block)?;
    let mut all = Vec::new();
    for part in &args.only {
        let rows = match part {
            Part::Orderly => verbs::orderly(&image),
            Part::Crash => verbs::crash(&image, log_bytes),
            Part::Changed => verbs::changed(&image),
            Part::Drop => verbs::drop_clean(&image),
            Part::Delete => verbs::delete(&image),
            Part::DeleteStopped => verbs::delete_stopped(&image),
            Part::Check => verbs::check(&image),
        }?;
        let rows: Vec<Cost> =
            rows.into_iter().map(|(command, took)| Cost::new(command, took)).collect();
        if !json {
            eprint!("{}", table(&rows)?);
        }
        all.extend(rows);
    }
    let (blocks, block_bytes) = (image.blocks, block.bytes());
    let common = json!({
        "cache_bytes": cache_bytes,
        "block_bytes": block_bytes,
        "log_bytes": log_bytes,
        "blocks": blocks,
    });
    show(json, common, &all, |table| {
        let [cache, block, log] = [cache_bytes, block_bytes, log_bytes].map(format_size);
        format!(
            "cache of {cache}, blocks of {block}: {blocks} cached, 30 % of them dirty; {log} written \
             before the crash\n{table}"
        )
    })
}
