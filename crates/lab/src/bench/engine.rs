//! `forebay-lab engine`: the engine on RAM devices, 4 KiB at a time, as a share of what copying
//! the same bytes costs in the same run.
//!
//! Engine and copy alternate, sample by sample, on the same threads. The copy goes over an area as
//! large as the cache, in huge pages like the devices: from random blocks into one small buffer
//! for reads, the other way for writes.

pub(crate) mod cases;
pub(crate) mod closed_loop;
mod counters;
mod deferred;
mod distance;
pub(crate) mod jobs;
mod scaling;
mod shared;
pub(crate) mod worker;

use std::time::Duration;

use forebay_core::parse_size;
use serde::Serialize;
use serde_json::json;

use crate::bench::measure::in_turns;
use crate::bench::pattern::MOST_BLOCKS;
use crate::error::{LabResult, usage};
use crate::output::{Goal, Row, show, table};
use crate::progress::Progress;
use crate::rig::BLOCK;
use crate::statistics::{Estimate, median_of};
use cases::Case;
use counters::{background, ratios};
use worker::{Crew, Work};

/// Arguments of `forebay-lab engine`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of samples; fewer than 15 say little on a machine that is not quiet
    #[arg(long, default_value_t = 15)]
    pub(crate) pairs: usize,
    /// Size of the cache device, in RAM [default: 1G, with --jobs 2G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) cache: Option<u64>,
    /// Size of the origin, in RAM [default: 4G, with --jobs 2G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) origin: Option<u64>,
    /// Percent of the cache that the cases other than zipf work on
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=80))]
    pub(crate) working_set: u64,
    /// Put a RAM tier of this size in front of the cache
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub(crate) ram: u64,
    /// Duration of one sample
    #[arg(long, default_value_t = 0.3)]
    pub(crate) seconds_per_sample: f64,
    /// Numbers of lanes
    #[arg(long, default_value = "1,2", value_delimiter = ',')]
    pub(crate) lanes: Vec<usize>,
    /// Cases [default: read-hit,overwrite-dirty,write-clean,zipf, with --ram also
    /// defer-dirty,defer-clean,defer-absent; with --jobs overwrite-dirty,write-default,
    /// write-through,read-hit]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cases: Vec<Case>,
    /// Give each lane a part of the blocks to itself
    #[arg(long)]
    pub(crate) disjoint: bool,
    /// Let a thread of its own copy to the cache device, as an SSD does by DMA
    #[arg(long)]
    pub(crate) dma: bool,
    /// Do not tie lanes to CPUs
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Requests that each job of the closed loop keeps in flight, on one lane; several, and the
    /// rows multiply
    #[arg(long, requires = "jobs", value_delimiter = ',')]
    pub(crate) depth: Vec<usize>,
    /// Jobs of the closed loop
    #[arg(long, requires = "depth", value_delimiter = ',')]
    pub(crate) jobs: Vec<usize>,
}

/// Sizes, checked.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sizes {
    pub(crate) cache_bytes: u64,
    pub(crate) origin_bytes: u64,
    pub(crate) working_set_blocks: u64,
    /// Size of the RAM tier; 0 without one.
    pub(crate) ram_bytes: u64,
    /// Whether each lane has a part of the blocks to itself.
    pub(crate) disjoint: bool,
    /// Whether a thread of its own copies to the cache device.
    pub(crate) dma: bool,
}

impl Args {
    fn sizes(&self) -> LabResult<Sizes> {
        // The closed loop has the sizes that the kernel's caches were measured with.
        let (cache, origin) = if self.jobs.is_empty() { (1, 4) } else { (2, 2) };
        let cache = self.cache.unwrap_or(cache << 30);
        let origin = self.origin.unwrap_or(origin << 30);
        let whole = |bytes: u64| bytes > 0 && bytes.is_multiple_of(BLOCK);
        let working_set = cache / BLOCK * self.working_set / 100;
        if !whole(cache) || !whole(origin) || origin / BLOCK >= MOST_BLOCKS {
            return Err(usage("sizes must be multiples of 4K, below 8T"));
        }
        if working_set * BLOCK > origin {
            return Err(usage("the origin is smaller than the working set; see --working-set"));
        }
        let largest = self.lanes.iter().max().copied().unwrap_or(0);
        if !(1..=64).contains(&largest) || self.lanes.contains(&0) {
            return Err(usage("there can be 1 to 64 lanes"));
        }
        Ok(Sizes {
            cache_bytes: cache,
            origin_bytes: origin,
            working_set_blocks: working_set,
            ram_bytes: self.ram,
            disjoint: self.disjoint,
            dma: self.dma,
        })
    }

    /// The cases that were asked for, or else these.
    pub(crate) fn cases(&self, default: &[Case]) -> Vec<Case> {
        if self.cases.is_empty() { default.to_vec() } else { self.cases.clone() }
    }

    fn sample_time(&self) -> LabResult<Duration> {
        Duration::try_from_secs_f64(self.seconds_per_sample)
            .ok()
            .filter(|time| !time.is_zero())
            .ok_or_else(|| usage("a sample must take more than no time"))
    }
}

/// Activity of the cache during the engine's samples.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Background {
    /// Bytes appended to the log for each byte that clients wrote.
    pub(crate) log_bytes_per_user_byte: f64,
    /// Segments that were filled, so about as many were reclaimed.
    pub(crate) segments_filled: f64,
    pub(crate) origin_written_bytes: u64,
    pub(crate) read_hit_share: f64,
    /// Requests that could not be answered at once.
    pub(crate) submitted_share: f64,
    /// Deferred data that the RAM tier wrote down.
    pub(crate) written_down_bytes: u64,
}

#[derive(Serialize)]
struct Share {
    case: String,
    lanes: usize,
    engine_per_second: f64,
    memcpy_per_second: f64,
    share: Estimate,
    share_of_cpu: Estimate,
    share_goal: Option<Goal>,
    cpu_us: f64,
    memcpy_cpu_us: f64,
    cpu_goal: Option<Goal>,
    /// Share of the wall time in which the engine's threads had a CPU.
    on_cpu: f64,
    background: Background,
}

impl Row for Share {
    const COLUMNS: &'static str = "CASE=case | LANES=lanes | ENGINE/s=engine_per_second:rate | \
        MEMCPY/s=memcpy_per_second:rate | SHARE (wall)=share | SHARE (cpu)=share_of_cpu | \
        GOAL=share_goal:>=1 | CPU us=cpu_us:3 | COPY us=memcpy_cpu_us:3 | GOAL=cpu_goal:<=1 | \
        ON CPU=on_cpu:0% | LOG/USER=background.log_bytes_per_user_byte:3 | \
        SEGMENTS=background.segments_filled:0 | \
        TO ORIGIN=background.origin_written_bytes:bytes | \
        READ HITS=background.read_hit_share:2% | SUBMITTED=background.submitted_share:3% | \
        WRITTEN DOWN=background.written_down_bytes:bytes";
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let sizes = args.sizes()?;
    let time = args.sample_time()?;
    if !args.jobs.is_empty() {
        return jobs::run(args, sizes, time, &args.jobs, &args.depth, json);
    }
    let mut default = vec![Case::ReadHit, Case::OverwriteDirty, Case::WriteClean, Case::Zipf];
    if sizes.ram_bytes > 0 {
        default.extend([Case::DeferDirty, Case::DeferClean, Case::DeferAbsent]);
    }
    let cases = args.cases(&default);
    cases.iter().try_for_each(|case| sizes.check(*case))?;
    let (mut rows, mut scaling): (Vec<Share>, Vec<scaling::Gain>) = (Vec::new(), Vec::new());
    let runs: usize = args.lanes.iter().map(|lanes| 1 + usize::from(*lanes > 1)).sum();
    let progress = Progress::new((runs * cases.len() * args.pairs) as u64, "preparing");
    for &lanes in &args.lanes {
        let crew = Crew::start(sizes, lanes, !args.no_pin)?;
        for &case in &cases {
            progress.label(format!("{} on {lanes} lane(s)", case.name()));
            crew.prepare(case)?;
            rows.push(shares(&crew, case, args.pairs, time, &progress)?);
            if lanes > 1 {
                scaling.push(scaling::measure(&crew, case, args.pairs, time, &progress)?);
            }
        }
    }
    drop(progress);
    let (pairs, seconds) = (args.pairs, args.seconds_per_sample);
    let common = json!({
        "pairs": pairs, "seconds_per_sample": seconds, "sizes": sizes, "scaling": scaling
    });
    let gains = if scaling.is_empty() { String::new() } else { table(&scaling)? };
    show(json, common, &rows, |table| {
        format!(
            "{table}\n{gains}\n{pairs} pairs of {seconds} s; medians with 95 % intervals. (cpu): per second of CPU\n\
             time, which is what the goals are held against; it leaves out what other processes take."
        )
    })
}

fn shares(
    crew: &Crew,
    case: Case,
    pairs: usize,
    time: Duration,
    progress: &Progress,
) -> LabResult<Share> {
    let lanes = crew.lanes();
    let points = in_turns((pairs, 2), progress, |turn| {
        let work = [Work::Engine, Work::Copy][turn];
        if work == Work::Engine {
            crew.before_sample(case)?;
        }
        crew.counted(|| crew.sample(case, work, time, lanes))
    })?;
    let (engine, copies) = (&points[0], &points[1]);
    let share_of_cpu = ratios(engine, copies, |rates| rates.per_cpu_second);
    let cpu_us = median_of(engine, |one| one.rates.cpu_us);
    Ok(Share {
        case: case.name(),
        lanes,
        engine_per_second: median_of(engine, |one| one.rates.per_second),
        memcpy_per_second: median_of(copies, |one| one.rates.per_second),
        share: ratios(engine, copies, |rates| rates.per_second),
        share_of_cpu,
        share_goal: case.share_goal().map(|goal| Goal::at_least(goal, share_of_cpu.median)),
        cpu_us,
        memcpy_cpu_us: median_of(copies, |one| one.rates.cpu_us),
        cpu_goal: case.cpu_goal().map(|goal| Goal::at_most(goal, cpu_us)),
        on_cpu: median_of(engine, |one| one.rates.on_cpu),
        background: background(engine, crew.segment_bytes()),
    })
}
