//! `forebay-lab engine --jobs J --depth D`: the closed loop of J jobs of depth D on one lane, in
//! turns over the engine and over a bare RAM device: the engine's share of the device's speed, and
//! the CPU time of a request, background work included.
//!
//! The goals compare with figures that were published for the caches of the Linux kernel, measured
//! by such a loop inside the kernel; `docs/notebook/beside-the-kernel.md` says what that means.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::units::format_size;
use forebay_device::{Device, RamDevice};
use serde::Serialize;
use serde_json::json;

use crate::bench::engine::closed_loop::{self, Load, Way};
use crate::bench::engine::counters::{Counted, background, ratios};
use crate::bench::engine::worker::{Crew, Worker};
use crate::bench::engine::{Args, Background, Case, Sizes};
use crate::bench::measure::{Sample, in_turns};
use crate::error::{LabResult, usage};
use crate::output::{Goal, Row, show};
use crate::progress::Progress;
use crate::rig::{BLOCK, touch};
use crate::statistics::{Estimate, median_of};

#[derive(Serialize)]
struct Loop {
    case: String,
    way: Way,
    jobs: usize,
    depth: usize,
    engine_per_second: f64,
    raw_per_second: f64,
    /// Share of the bare device's speed, by time on the wall and by CPU time.
    share: Estimate,
    share_of_cpu: Estimate,
    share_goal: Option<Goal>,
    cpu_us: f64,
    raw_cpu_us: f64,
    cpu_goal: Option<Goal>,
    background: Background,
}

impl Row for Loop {
    const COLUMNS: &'static str = "CASE=case | WAY=way | JOBS=jobs | DEPTH=depth | ENGINE/s=engine_per_second:rate | \
        RAW/s=raw_per_second:rate | SHARE (wall)=share | SHARE (cpu)=share_of_cpu | \
        GOAL=share_goal:>2 | CPU us=cpu_us:3 | RAW us=raw_cpu_us:3 | GOAL=cpu_goal:<=2 | \
        LOG/USER=background.log_bytes_per_user_byte:2 | \
        TO ORIGIN=background.origin_written_bytes:bytes";
}

/// Target of a sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Raw,
    Engine(Way),
}

const TURNS: [Turn; 3] = [Turn::Raw, Turn::Engine(Way::FrontEnd), Turn::Engine(Way::Submitted)];

pub(crate) fn run(
    args: &Args,
    sizes: Sizes,
    time: Duration,
    jobs: &[usize],
    depths: &[usize],
    json: bool,
) -> LabResult<()> {
    if jobs.iter().chain(depths).any(|count| !(1..=1024).contains(count)) {
        return Err(usage("--jobs and --depth take 1 to 1024"));
    }
    let cases =
        args.cases(&[Case::OverwriteDirty, Case::WriteDefault, Case::WriteThrough, Case::ReadHit]);
    if cases.iter().any(|case| case.defers()) {
        return Err(usage("--jobs measures without the RAM tier, so no writes are deferred"));
    }
    let crew = Crew::start(sizes, 1, !args.no_pin)?;
    let region_bytes = sizes.working_set_blocks * BLOCK;
    let raw = bare(&crew, region_bytes)?;
    let mut all = Vec::new();
    let rounds = cases.len() * jobs.len() * depths.len() * args.pairs;
    let progress = Progress::new(rounds as u64, "preparing");
    for &case in &cases {
        progress.label(format!("{}: preparing", case.name()));
        crew.prepare(case)?;
        for &jobs in jobs {
            for &depth in depths {
                progress.label(format!("{}, {jobs} job(s) of depth {depth}", case.name()));
                let load = Load { jobs, depth, time, once: case.once() };
                all.extend(rows(&crew, &raw, case, load, args.pairs, &progress)?);
            }
        }
    }
    drop(progress);
    let (pairs, seconds) = (args.pairs, time.as_secs_f64());
    let common = json!({
        "pairs": pairs,
        "seconds_per_sample": seconds,
        "sizes": sizes,
        "region_bytes": region_bytes,
    });
    show(json, common, &all, |table| {
        format!(
            "{table}{pairs} pairs of {seconds} s, 4 KiB, random within {}, one lane on one CPU with all of its\n\
             background work; RAW: a bare RAM device in the same loop. front-end: what can be answered\n\
             at once is, as for NBD; submitted: every request is submitted. Goals:\n\
             docs/notebook/beside-the-kernel.md.",
            format_size(region_bytes),
        )
    })
}

/// A bare device with its memory in place.
fn bare(crew: &Crew, bytes: u64) -> LabResult<Arc<dyn Device>> {
    let device: Arc<dyn Device> = RamDevice::new("bare", bytes)?;
    let inner = device.clone();
    crew.on(0, move |worker: &mut Worker| {
        let local = worker.driver.local.clone();
        let context = local.context.clone();
        local.block_on("taking memory", async move { touch(&context, &inner).await })?
    })??;
    Ok(device)
}

fn rows(
    crew: &Crew,
    raw: &Arc<dyn Device>,
    case: Case,
    load: Load,
    pairs: usize,
    progress: &Progress,
) -> LabResult<Vec<Loop>> {
    let points = in_turns((pairs, TURNS.len()), progress, |turn| {
        if TURNS[turn] != Turn::Raw {
            crew.before_sample(case)?;
        }
        crew.counted(|| Ok(vec![sample(crew, raw, case, load, TURNS[turn])?]))
    })?;
    let rows = TURNS.iter().zip(&points).filter_map(|(turn, engine)| match turn {
        Turn::Raw => None,
        Turn::Engine(way) => Some(row(case, *way, load, engine, &points[0], crew.segment_bytes())),
    });
    Ok(rows.collect())
}

fn sample(
    crew: &Crew,
    raw: &Arc<dyn Device>,
    case: Case,
    load: Load,
    turn: Turn,
) -> LabResult<Sample> {
    let (raw, sizes) = (raw.clone(), crew.sizes());
    crew.on(0, move |worker: &mut Worker| {
        let steps = |job| case.steps(sizes, job, load.jobs);
        match turn {
            Turn::Raw => closed_loop::raw(worker, &raw, BLOCK, load, steps),
            Turn::Engine(way) => closed_loop::engine(worker, way, load, steps),
        }
    })?
}

fn row(
    case: Case,
    way: Way,
    load: Load,
    engine: &[Counted],
    raw: &[Counted],
    segment_bytes: u64,
) -> Loop {
    let cpu_us = median_of(engine, |one| one.rates.cpu_us);
    let share_of_cpu = ratios(engine, raw, |rates| rates.per_cpu_second);
    let goals = case.beside_the_kernel();
    Loop {
        case: case.name(),
        way,
        jobs: load.jobs,
        depth: load.depth,
        engine_per_second: median_of(engine, |one| one.rates.per_second),
        raw_per_second: median_of(raw, |one| one.rates.per_second),
        share: ratios(engine, raw, |rates| rates.per_second),
        share_of_cpu,
        share_goal: goals.map(|goals| Goal::at_least(goals.share, share_of_cpu.median)),
        cpu_us,
        raw_cpu_us: median_of(raw, |one| one.rates.cpu_us),
        cpu_goal: goals.map(|goals| Goal::at_most(goals.cpu_us, cpu_us)),
        background: background(engine, segment_bytes),
    }
}
