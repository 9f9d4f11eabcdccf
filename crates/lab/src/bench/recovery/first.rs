//! `forebay-lab recovery --size`: how long it takes until the first request is answered, whatever
//! the size of the cache, after an orderly stop or after a crash.
//!
//! The cache is made without writing all of its blocks: the entries are put into the index, and the
//! checkpoint has them. Of a segment only the pages exist that recovery examines: its opening and
//! its first header. The payload is zeroes, as everything that was never written to the device in
//! RAM, and verified when it is read. Before a crash random blocks are written.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::Op;
use forebay_core::units::format_size;
use forebay_lane::{LaneId, LaneOptions, LaneThread, MonotonicClock};
use forebay_store::{Helper, RecoveryReport, StoreOptions};
use serde::Serialize;

use crate::bench::commands::image;
use crate::bench::device::SparseDevice;
use crate::bench::driver::{Driver, fill_dirty};
use crate::bench::measure::Stopwatch;
use crate::bench::pattern::Step;
use crate::error::{LabResult, other, usage};
use crate::output::{Goal, Row, print_json, table};
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, Plan, Rig, no_writeback};
use crate::statistics::Estimate;

/// Promised time until the first request is answered.
const GOAL: Duration = Duration::from_secs(1);

/// Share of the segments that have blocks, in percent.
const FULL: u64 = 90;

/// Requests that are timed.
const REQUESTS: u64 = 64;

/// Blocks between two commits before a crash.
const COMMIT_EVERY: usize = 1 << 14;

#[derive(Serialize)]
struct Report {
    cache_bytes: u64,
    /// Lanes that read the log.
    lanes: usize,
    /// Bytes of blocks written after the checkpoint and before the crash; none: an orderly stop.
    log_bytes: Option<u64>,
    records_replayed: u64,
    /// Cached blocks at the time of the checkpoint.
    blocks: u64,
    dirty: u64,
    /// Number of times that the cache was opened from the same state.
    rounds: usize,
    /// From opening the cache until the volume takes requests.
    open_ms: Estimate,
    /// From opening the cache until the first request is answered: a read of a cached block.
    first_ms: Estimate,
    /// CPU time of that on the lane that opens the cache.
    first_cpu_ms: Estimate,
    /// Longest of the requests that follow, each of a random block, cached or not.
    slowest_ms: f64,
    /// From opening the cache until the whole index is loaded.
    loaded_ms: f64,
    /// CPU time of that for a block.
    loaded_cpu_ns: f64,
    bytes_read: u64,
    goal: Goal,
}

impl Row for Report {
    const COLUMNS: &'static str = "OPEN ms=open_ms.median:0 | FIRST REQUEST ms=first_ms | CPU ms=first_cpu_ms.median:0 | \
        SLOWEST OF 64 ms=slowest_ms:1 | LOADED ms=loaded_ms:0 | CPU ns/BLOCK=loaded_cpu_ns:0 | \
        READ TO OPEN=bytes_read:bytes | GOAL=goal:<=0";
}

/// Parameters of the measurement.
pub(super) struct Run {
    pub(super) cache_bytes: u64,
    /// Written after the checkpoint and before a crash; none: the cache was closed in order.
    pub(super) log_bytes: Option<u64>,
    pub(super) lanes: usize,
    pub(super) rounds: usize,
}

pub(super) fn run(run: &Run, json: bool) -> LabResult<()> {
    let Run { cache_bytes, log_bytes, .. } = *run;
    // With less free space, reclaim would have to find headers that are not there.
    let most = cache_bytes * (100 - FULL) / 100 * 3 / 4;
    if log_bytes.is_some_and(|log| log > most) {
        let most = format_size(most);
        return Err(usage(format!("--log: at most {most} with a cache of this size")));
    }
    let cache = SparseDevice::untouched("cache", cache_bytes);
    let origin = SparseDevice::untouched("origin", cache_bytes / 2 * 3);
    let blocks = fill(&cache, &origin, log_bytes)?;
    let report = measure(run, cache, &origin, blocks)?;
    if json { print_json(&report) } else { print(&report) }
}

/// Makes a cache with nearly all of its segments full, and closes it in order or drops it. Returns
/// the number of blocks in its last checkpoint.
fn fill(
    cache: &Arc<SparseDevice>,
    origin: &Arc<SparseDevice>,
    log_bytes: Option<u64>,
) -> LabResult<u64> {
    let plan = Plan::new(cache.clone(), origin.clone(), no_writeback());
    let rig = Rig::create(LocalLane::new(0, Arc::new(MonotonicClock::new())), plan)?;
    let store = rig.engine.cache.store.clone();
    let volume = rig.target()?.volume().id;
    let space = store.space_of(volume).ok_or_else(|| other("the volume has no blocks"))?;
    let headers = image::fill(&store, &space, FULL)?;
    headers.openings().for_each(|(offset, pages)| cache.put(offset, &pages));
    let blocks = store.index.len();
    match log_bytes {
        Some(bytes) => {
            rig.checkpoint()?;
            write(&rig, headers.end().0, bytes / BLOCK)?;
            rig.crash();
        }
        None => {
            let stopping = rig.engine.clone();
            rig.local.block_on("closing the cache", async move { stopping.close().await })??;
        }
    }
    Ok(blocks)
}

/// Writes `count` random blocks below `end`.
fn write(rig: &Rig, end: u64, count: u64) -> LabResult<()> {
    let mut driver = Driver::new(rig.local.clone(), rig.target()?);
    driver.repeat_payload();
    let mut random = fastrand::Rng::with_seed(5);
    let progress = Progress::new(count, "writing");
    let mut left = count;
    while left > 0 {
        let some = left.min(COMMIT_EVERY as u64);
        let steps: Vec<Step> =
            (0..some).map(|_| Step::new(random.u64(0..end) as u32, true)).collect();
        fill_dirty(&mut driver, &steps, &progress)?;
        rig.commit()?;
        left -= some;
    }
    Ok(())
}

/// A cache that has answered a request.
struct Answered {
    rig: Rig,
    opened: RecoveryReport,
    driver: Driver,
    watch: Stopwatch,
    open_ms: f64,
    first_ms: f64,
    cpu_ms: f64,
}

/// Opens a cache, and reads a cached block.
fn answer(
    cache: Arc<SparseDevice>,
    origin: &Arc<SparseDevice>,
    lanes: usize,
) -> LabResult<Answered> {
    let clock = Arc::new(MonotonicClock::new());
    let local = LocalLane::new(0, clock.clone());
    let others = (1..lanes as u16).map(|number| {
        let (name, clock) = (format!("lane-{number}"), clock.clone());
        LaneThread::spawn(&name, LaneId(number), clock, LaneOptions::default(), |_| ())
    });
    let others: Vec<LaneThread> = others.collect::<Result<_, _>>()?;
    let helper = |lane: &LaneThread| Helper::without_ring(lane.remote().clone());
    let helpers = others.iter().map(helper).collect();
    let watch = Stopwatch::start();
    let (rig, opened) =
        Rig::open(local, cache, StoreOptions { helpers, ..StoreOptions::default() })?;
    rig.attach(origin.clone())?;
    let target = rig.target()?;
    let open_ms = watch.wall().as_secs_f64() * 1e3;
    let driver = Driver::new(rig.local.clone(), target);
    driver.plain(Op::Read, BLOCK, BLOCK)?;
    let sample = watch.sample(1);
    let (first_ms, cpu_ms) = (sample.wall.as_secs_f64() * 1e3, sample.cpu.as_secs_f64() * 1e3);
    Ok(Answered { rig, opened, driver, watch, open_ms, first_ms, cpu_ms })
}

fn measure(
    run: &Run,
    cache: Arc<SparseDevice>,
    origin: &Arc<SparseDevice>,
    blocks: u64,
) -> LabResult<Report> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut note = |answered: &Answered| {
        let Answered { open_ms, first_ms, cpu_ms, .. } = *answered;
        times.iter_mut().zip([open_ms, first_ms, cpu_ms]).for_each(|(all, ms)| all.push(ms));
    };
    for _ in 1..run.rounds {
        let answered = answer(cache.fork(), origin, run.lanes)?;
        note(&answered);
        answered.rig.crash();
    }
    let answered = answer(cache, origin, run.lanes)?;
    note(&answered);
    let Answered { rig, opened, driver, watch, .. } = answered;
    let ms = || watch.wall().as_secs_f64() * 1e3;
    let mut random = fastrand::Rng::with_seed(7);
    let mut slowest_ms = 0f64;
    for _ in 0..REQUESTS {
        let before = ms();
        let block = random.u64(0..blocks);
        driver.plain(Op::Read, block * BLOCK, BLOCK)?;
        slowest_ms = slowest_ms.max(ms() - before);
    }
    let store = rig.engine.cache.store.clone();
    let loaded = store.clone();
    let whole = rig.local.block_on("loading", async move { loaded.loaded().await })?;
    let sample = watch.sample(blocks);
    let as_left = opened.clean == run.log_bytes.is_none() && opened.blocks == blocks;
    if !as_left || !whole || store.index.len() < blocks {
        return Err(other(format!("the content is not that from before: {opened:?}")));
    }
    let [open_ms, first_ms, first_cpu_ms] = times.map(|all| Estimate::of(&all));
    Ok(Report {
        cache_bytes: run.cache_bytes,
        lanes: run.lanes,
        rounds: run.rounds,
        log_bytes: run.log_bytes,
        records_replayed: opened.records,
        blocks,
        dirty: opened.dirty,
        open_ms,
        first_ms,
        first_cpu_ms,
        slowest_ms,
        loaded_ms: sample.wall.as_secs_f64() * 1e3,
        loaded_cpu_ns: sample.cpu.as_nanos() as f64 / blocks as f64,
        bytes_read: opened.bytes_read,
        goal: Goal::at_most(GOAL.as_secs_f64() * 1e3, first_ms.median),
    })
}

fn print(report: &Report) -> LabResult<()> {
    let end = match report.log_bytes {
        Some(bytes) => format!("a crash {} later", format_size(bytes)),
        None => "an orderly stop".to_owned(),
    };
    println!(
        "cache of {}, {} blocks in the checkpoint, {} of them dirty, and {end}; lanes: {}",
        format_size(report.cache_bytes),
        report.blocks,
        report.dirty,
        report.lanes
    );
    print!("{}", table(std::slice::from_ref(report))?);
    Ok(())
}
