//! The rows of the report on dm-writeboost that stand on RAM, in process: jobs by depth, on as many
//! lanes as there are CPUs. There one job reached 1,459 MB/s and four 371: a single lock. Here four
//! must not be slower than one.

use std::sync::Arc;
use std::time::Duration;

use forebay_device::Device;
use serde::Serialize;

use crate::bench::engine::Sizes;
use crate::bench::engine::cases::Case;
use crate::bench::engine::closed_loop::{self, Load, Way};
use crate::bench::engine::jobs::bare;
use crate::bench::engine::worker::{Crew, Worker};
use crate::bench::measure::Rates;
use crate::error::LabResult;
use crate::output::{Goal, Table};
use crate::process::Stop;
use crate::progress::Progress;
use crate::rig::BLOCK;
use crate::statistics::median_of;

const GIB: u64 = 1 << 30;
const LARGE: u64 = 512 << 10;
const SHAPES: [(usize, usize); 4] = [(1, 4), (1, 32), (4, 4), (4, 32)];
/// Samples of each, of which one is not counted.
const SAMPLES: usize = 6;

/// Steps of the progress bar.
pub(crate) const STEPS: u64 = (SHAPES.len() * SAMPLES) as u64;

/// One number of jobs and one depth.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    jobs: usize,
    depth: usize,
    lanes: usize,
    bytes_per_second: f64,
    cpu_us: f64,
    /// The bare device in the same loop, 4 KiB and 512 KiB at a time.
    raw_bytes_per_second: f64,
    raw_large_bytes_per_second: f64,
    share_of_raw: f64,
    share_of_raw_large: f64,
    /// Against one job of the same depth, by time on the wall and by CPU time.
    against_one_job: Option<f64>,
    against_one_job_by_cpu: Option<f64>,
    goal: Option<Goal>,
}

#[derive(Clone, Copy)]
enum What {
    Engine,
    Raw(u64),
}

/// Measures all rows.
/// Errors: There is not enough memory, or the engine fails; `Interrupted`.
pub(crate) fn measure(percent: u64, stop: &Stop, progress: &Progress) -> LabResult<Vec<Row>> {
    progress.label("in process: preparing");
    let sizes = Sizes {
        cache_bytes: 2 * GIB,
        origin_bytes: 2 * GIB,
        working_set_blocks: GIB / BLOCK,
        ..Sizes::default()
    };
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let crew = Crew::start(sizes, cpus.min(4), true)?;
    let raw = bare(&crew, GIB)?;
    crew.prepare(Case::WriteDefault)?;
    let time = Duration::from_millis(5 * percent);
    let mut all = SHAPES.map(|_| [Vec::new(), Vec::new(), Vec::new()]);
    // All shapes in turn, again and again: what the machine does otherwise hits all of them.
    for sample in 0..SAMPLES {
        for ((jobs, depth), found) in SHAPES.into_iter().zip(&mut all) {
            stop.check()?;
            progress.label(format!("in process: {jobs}x{depth}"));
            let whats = [What::Engine, What::Raw(BLOCK), What::Raw(LARGE)];
            for (what, found) in whats.into_iter().zip(found) {
                let rates = together(&crew, &raw, what, jobs, depth, time)?;
                if sample > 0 {
                    found.push(rates);
                }
            }
            progress.advance(1);
        }
    }
    Ok(rows(&all, crew.lanes()))
}

/// Samples on as many lanes as there are jobs for, all at the same time.
fn together(
    crew: &Crew,
    raw: &Arc<dyn Device>,
    what: What,
    jobs: usize,
    depth: usize,
    time: Duration,
) -> LabResult<Rates> {
    let (lanes, sizes, raw) = (jobs.min(crew.lanes()), crew.sizes(), raw.clone());
    let samples = crew.together(lanes, move |worker: &mut Worker, lane| {
        // Jobs that cannot be shared out evenly go to the first lanes.
        let own = jobs / lanes + usize::from(lane < jobs % lanes);
        let load = Load { jobs: own, depth, time, once: false };
        let steps = |job| Case::WriteDefault.steps(sizes, lane * jobs + job, jobs);
        match what {
            What::Engine => closed_loop::engine(worker, Way::FrontEnd, load, steps),
            What::Raw(block) => closed_loop::raw(worker, &raw, block, load, steps),
        }
    })?;
    Ok(Rates::of(&samples.into_iter().collect::<LabResult<Vec<_>>>()?))
}

fn rows(all: &[[Vec<Rates>; 3]], lanes: usize) -> Vec<Row> {
    let one_job = |depth: usize, field: fn(&Rates) -> f64| {
        let place = SHAPES.iter().position(|shape| *shape == (1, depth))?;
        Some(median_of(&all.get(place)?[0], field))
    };
    SHAPES
        .into_iter()
        .zip(all)
        .map(|((jobs, depth), [engine, raw, large])| {
            let bytes = median_of(engine, |rates| rates.per_second) * BLOCK as f64;
            let raw_bytes = median_of(raw, |rates| rates.per_second) * BLOCK as f64;
            let large_bytes = median_of(large, |rates| rates.per_second) * LARGE as f64;
            let against = |field: fn(&Rates) -> f64| {
                let one = one_job(depth, field).filter(|one| jobs > 1 && *one > 0.0)?;
                Some(median_of(engine, field) / one)
            };
            let by_cpu = against(|rates| rates.per_cpu_second);
            Row {
                jobs,
                depth,
                lanes: jobs.min(lanes),
                bytes_per_second: bytes,
                cpu_us: median_of(engine, |rates| rates.cpu_us),
                raw_bytes_per_second: raw_bytes,
                raw_large_bytes_per_second: large_bytes,
                share_of_raw: bytes / raw_bytes.max(1e-9),
                share_of_raw_large: bytes / large_bytes.max(1e-9),
                against_one_job: against(|rates| rates.per_second),
                against_one_job_by_cpu: by_cpu,
                // As for all in-process figures: what other processes take is left out.
                goal: by_cpu.map(|ratio| Goal::at_least(1.0, ratio)),
            }
        })
        .collect()
}

/// The rows for people; nothing if there are none.
pub(crate) fn print(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let mut table = Table::new(
        "RAM, IN PROCESS | LANES | MB/s | CPU us | RAW 4K MB/s | \
        RAW 512K MB/s | OF RAW 4K | OF RAW 512K | TO ONE JOB (wall) | (cpu) | GOAL",
    );
    let ratio =
        |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    for row in rows {
        table.row([
            format!("{}x{}", row.jobs, row.depth),
            row.lanes.to_string(),
            format!("{:.0}", row.bytes_per_second / 1e6),
            format!("{:.3}", row.cpu_us),
            format!("{:.0}", row.raw_bytes_per_second / 1e6),
            format!("{:.0}", row.raw_large_bytes_per_second / 1e6),
            format!("{:.2}", row.share_of_raw),
            format!("{:.2}", row.share_of_raw_large),
            ratio(row.against_one_job),
            ratio(row.against_one_job_by_cpu),
            row.goal.map_or_else(|| "-".into(), |goal| goal.show(">=", 1)),
        ]);
    }
    println!("{}", table.render());
}
