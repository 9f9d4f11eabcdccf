//! `forebay-lab amplification`: bytes written to the cache device for each byte that a client
//! wrote, everything included: headers, marks, checkpoints, superblocks, what reclaim reinserts.
//!
//! How much that is depends on how much of the cache stays live, so several spans are measured:
//! random writes over a part of the cache's size, over all of it, and over several times as much.

use std::sync::Arc;

use forebay_core::units::format_size;
use forebay_core::{Op, parse_size};
use forebay_device::{OpCounts, RamDevice};
use forebay_engine::Settings;
use forebay_lane::MonotonicClock;
use serde::Serialize;
use serde_json::json;

use crate::bench::driver::Driver;
use crate::bench::pattern::{MOST_BLOCKS, uniform};
use crate::error::{LabResult, other};
use crate::output::{Goal, Row, show};
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, Plan, Rig};

/// Steps between two looks at the progress bar.
const SOME: usize = 1 << 14;

/// Promised bytes written to the cache device per byte of the clients, without flushes.
const GOAL: f64 = 1.02;

/// Arguments of `forebay-lab amplification`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of the cache device, in RAM
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = parse_size)]
    cache: u64,
    /// Ranges that are written to, in percent of the cache's size
    #[arg(long, value_delimiter = ',', default_value = "25,50,80,100,400")]
    spans: Vec<u64>,
    /// Warm-up before counting starts, as a multiple of the size of the cache
    #[arg(long, default_value_t = 3)]
    warm_up: u64,
    /// Data written while it is counted, as a multiple of the size of the cache
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Writes that are each followed by a flush
    #[arg(long, default_value_t = 50_000)]
    flushed_writes: u64,
}

#[derive(Serialize)]
struct Written {
    span_percent: u64,
    flush_each: bool,
    user_bytes: u64,
    cache_bytes: u64,
    origin_bytes: u64,
    device_writes: u64,
    syncs: u64,
    amplification: f64,
    goal: Option<Goal>,
}

impl Row for Written {
    const COLUMNS: &'static str = "SPAN %=span_percent | FLUSH=flush_each:never/each | USER=user_bytes:bytes | \
        TO CACHE=cache_bytes:bytes | TO ORIGIN=origin_bytes:bytes | WRITES=device_writes | \
        SYNCS=syncs | CACHE/USER=amplification:4 | GOAL=goal:<=2";
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let cache = args.cache;
    let too_large = args.spans.iter().any(|span| cache / BLOCK * span / 100 >= MOST_BLOCKS);
    if cache < 16 << 20 || !cache.is_multiple_of(BLOCK) || too_large || args.spans.contains(&0) {
        return Err(other("a cache of at least 16M, a multiple of 4K, and spans below 8T, please"));
    }
    let per_span = (args.warm_up + args.rounds) * (cache / BLOCK);
    let total = per_span * args.spans.len() as u64 + args.flushed_writes;
    let progress = Progress::new(total, "writing");
    let mut rows = Vec::new();
    for &span in &args.spans {
        rows.push(measure(args, cache, span, false, &progress)?);
    }
    rows.push(measure(args, cache, 100, true, &progress)?);
    drop(progress);
    show(json, json!({ "cache_bytes": cache }), &rows, |table| {
        format!("random writes of 4K, cache of {}\n{table}", format_size(cache))
    })
}

fn measure(
    args: &Args,
    cache: u64,
    span: u64,
    flush: bool,
    progress: &Progress,
) -> LabResult<Written> {
    let blocks = (cache / BLOCK * span / 100).max(1);
    let (device, origin) =
        (RamDevice::new("cache", cache)?, RamDevice::new("origin", blocks * BLOCK)?);
    let plan = Plan::new(device, origin, Settings::default());
    let rig = Rig::create(LocalLane::new(0, Arc::new(MonotonicClock::new())), plan)?;
    let mut driver = Driver::new(rig.local.clone(), rig.target()?);
    let mut seed = 1;
    let mut write = |driver: &mut Driver, count: u64| -> LabResult<()> {
        let mut left = count as usize;
        while left > 0 {
            let some = left.min(SOME);
            let steps = uniform(seed, blocks as u32, true, some);
            seed += 1;
            if flush {
                for step in &steps {
                    driver.step(*step)?;
                    driver.plain(Op::Flush, 0, 0)?;
                    driver.local.turn();
                }
            } else {
                driver.steps(&steps)?;
            }
            progress.advance(some as u64);
            left -= some;
        }
        Ok(())
    };
    let size = cache / BLOCK;
    if !flush {
        write(&mut driver, args.warm_up * size)?;
    }
    let volume = driver.target.volume().clone();
    let counts = || {
        let totals = volume.stats.totals();
        let [_, writes, syncs, _] = rig.engine.cache.meter.counts();
        let number = |of: &OpCounts| of.latency.ranges.iter().sum::<u64>();
        [
            writes.bytes,
            number(&writes),
            number(&syncs),
            totals.user_written_bytes,
            totals.origin_written_bytes,
        ]
    };
    let before = counts();
    write(&mut driver, if flush { args.flushed_writes } else { args.rounds * size })?;
    // Blocks still in the log's buffers belong to the counted writes.
    rig.commit()?;
    let after = counts();
    let [cache_bytes, device_writes, syncs, user_bytes, origin_bytes] =
        std::array::from_fn(|index| after[index] - before[index]);
    let amplification = cache_bytes as f64 / user_bytes.max(1) as f64;
    Ok(Written {
        span_percent: span,
        flush_each: flush,
        user_bytes,
        cache_bytes,
        origin_bytes,
        device_writes,
        syncs,
        amplification,
        goal: (!flush).then(|| Goal::at_most(GOAL, amplification)),
    })
}
