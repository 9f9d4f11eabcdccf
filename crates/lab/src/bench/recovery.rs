//! `forebay-lab recovery`: how long it takes until a volume is served again after a crash.
//!
//! A cache on a device in RAM is filled, everything is dropped without closing it, and a new
//! engine opens the device, several times from the same state. The time is from the first look
//! at the device until the volume takes requests; the whole index and recovery's own new checkpoint
//! are in it. With `--size`, the time until the first request of a cache of any size.

use std::sync::Arc;
use std::thread::available_parallelism;

use forebay_core::parse_size;
use forebay_core::units::format_size;
use forebay_device::Device;
use forebay_lane::MonotonicClock;
use forebay_store::{RecoveryReport, StoreOptions};
use serde::Serialize;
use serde_json::json;

use crate::bench::device::SparseDevice;
use crate::bench::driver::{Driver, fill_clean, fill_dirty, random_order};
use crate::bench::measure::Stopwatch;
use crate::bench::memory::cache_size;
use crate::bench::pattern::MOST_BLOCKS;
use crate::error::{LabResult, other, usage};
use crate::output::{Goal, Row, show};
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, Plan, Rig, no_writeback};
use crate::statistics::Estimate;

mod first;

/// Nanoseconds that are promised for a block.
const GOAL: f64 = 100.0;

/// Arguments of `forebay-lab recovery`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Blocks that are cached
    #[arg(long, default_value_t = 4_000_000)]
    blocks: u64,
    /// Number of recoveries from each crash
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Blocks between two commits, as many as a device takes in one commit interval. Recovery has
    /// to read the payloads that were written after the last commit in the log
    #[arg(long, default_value_t = 65536)]
    commit_every: u64,
    /// Measure the time to the first request instead, with a full cache of this size, as 512G,
    /// after an orderly stop
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// With --size, after a crash that left a log of so many bytes behind the checkpoint
    #[arg(long, requires = "size", value_parser = parse_size)]
    log: Option<u64>,
    /// With --size, lanes that take part in reading the log; by default one for each CPU, as in the
    /// daemon
    #[arg(long, requires = "size")]
    lanes: Option<usize>,
}

/// Content of the last checkpoint before the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    Everything,
    Half,
}

#[derive(Serialize)]
struct Recovered {
    state: &'static str,
    checkpoint: &'static str,
    blocks: u64,
    dirty: u64,
    records_replayed: u64,
    records_torn: u64,
    bytes_read: u64,
    /// Opening the cache.
    open_ms: f64,
    /// Starting its volume.
    start_ms: f64,
    wall_ns_per_block: Estimate,
    cpu_ns_per_block: Estimate,
    goal: Goal,
}

impl Row for Recovered {
    const COLUMNS: &'static str = "STATE=state | IN CHECKPOINT=checkpoint | BLOCKS=blocks | RECORDS=records_replayed | \
        READ=bytes_read:bytes | OPEN ms=open_ms:0 | START ms=start_ms:0 | \
        WALL ns/BLOCK=wall_ns_per_block | CPU ns/BLOCK=cpu_ns_per_block | GOAL=goal:<=0";
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    if args.rounds == 0 {
        return Err(usage("choose a round or more"));
    }
    if let Some(size) = args.size {
        let run = first::Run {
            cache_bytes: size.next_multiple_of(4 << 20).max(64 << 20),
            log_bytes: args.log,
            lanes: args.lanes.unwrap_or_else(|| available_parallelism().map_or(1, usize::from)),
            rounds: args.rounds,
        };
        return first::run(&run, json);
    }
    if !(1 << 14..MOST_BLOCKS).contains(&args.blocks) || args.commit_every == 0 {
        return Err(usage("choose 16384 blocks or more, below 2^31, with a commit or more"));
    }
    let cache_bytes = cache_size(args.blocks, 90);
    let progress = Progress::new(4 * args.blocks, "filling");
    let mut rows = Vec::new();
    for dirty in [false, true] {
        for covered in [Covered::Everything, Covered::Half] {
            rows.push(measure(args, cache_bytes, dirty, covered, &progress)?);
        }
    }
    drop(progress);
    let rounds = args.rounds;
    show(json, json!({ "cache_bytes": cache_bytes, "rounds": rounds }), &rows, |table| {
        let size = format_size(cache_bytes);
        format!("cache of {size}, {rounds} recoveries of each crash\n{table}")
    })
}

struct Devices {
    cache: Arc<SparseDevice>,
    origin: Arc<SparseDevice>,
}

/// A cache device as a crash leaves it.
fn crashed(
    args: &Args,
    cache_bytes: u64,
    dirty: bool,
    covered: Covered,
    progress: &Progress,
) -> LabResult<Devices> {
    let cache = SparseDevice::new("cache", cache_bytes);
    let origin = SparseDevice::new("origin", args.blocks * BLOCK);
    let plan = Plan::new(cache.clone(), origin.clone(), no_writeback());
    let rig = Rig::create(LocalLane::new(0, Arc::new(MonotonicClock::new())), plan)?;
    let mut driver = Driver::new(rig.local.clone(), rig.target()?);
    driver.repeat_payload();
    let order = random_order(1, args.blocks);
    let middle = match covered {
        Covered::Everything => args.blocks,
        Covered::Half => args.blocks / 2,
    };
    for part in [0..middle, middle..args.blocks] {
        let mut start = part.start;
        while start < part.end {
            let some = start..part.end.min(start + args.commit_every);
            start = some.end;
            if dirty {
                let order = &order[some.start as usize..some.end as usize];
                fill_dirty(&mut driver, order, progress)?;
            } else {
                fill_clean(&driver, some, progress)?;
            }
            rig.commit()?;
        }
        if part.start == 0 {
            rig.checkpoint()?;
        }
    }
    drop(driver);
    rig.crash();
    Ok(Devices { cache, origin })
}

fn measure(
    args: &Args,
    cache_bytes: u64,
    dirty: bool,
    covered: Covered,
    progress: &Progress,
) -> LabResult<Recovered> {
    let devices = crashed(args, cache_bytes, dirty, covered, progress)?;
    let (mut wall, mut cpu, mut open, mut start) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut last = RecoveryReport::default();
    for _ in 0..args.rounds {
        let cache: Arc<dyn Device> = devices.cache.fork();
        let local = LocalLane::new(0, Arc::new(MonotonicClock::new()));
        let watch = Stopwatch::start();
        // As a small cache, so that the whole index is in the time.
        let options = StoreOptions { load_later_from: u64::MAX, ..StoreOptions::default() };
        let (rig, report) = Rig::open(local, cache, options)?;
        let opened = watch.wall();
        rig.attach(devices.origin.clone())?;
        rig.target()?;
        let sample = watch.sample(report.blocks);
        // When nearly all is dirty some of it is written back, whatever the settings.
        let is_dirty = report.dirty >= args.blocks / 10 * 9;
        if report.clean || report.blocks != args.blocks || is_dirty != dirty {
            return Err(other(format!(
                "the content is not that from before the crash: {report:?}"
            )));
        }
        wall.push(sample.wall.as_nanos() as f64 / report.blocks as f64);
        cpu.push(sample.cpu.as_nanos() as f64 / report.blocks as f64);
        open.push(opened.as_secs_f64() * 1e3);
        start.push((sample.wall - opened).as_secs_f64() * 1e3);
        last = report;
        rig.crash();
    }
    let cpu_ns_per_block = Estimate::of(&cpu);
    Ok(Recovered {
        state: if dirty { "dirty" } else { "clean" },
        checkpoint: match covered {
            Covered::Everything => "all",
            Covered::Half => "half",
        },
        blocks: last.blocks,
        dirty: last.dirty,
        records_replayed: last.records,
        records_torn: last.torn,
        bytes_read: last.bytes_read,
        open_ms: crate::statistics::median(&open),
        start_ms: crate::statistics::median(&start),
        wall_ns_per_block: Estimate::of(&wall),
        cpu_ns_per_block,
        goal: Goal::at_most(GOAL, cpu_ns_per_block.median),
    })
}
