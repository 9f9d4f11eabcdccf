//! `forebay-lab writeback`: the speed of writeback to a disk, and its effect on clients. In
//! virtual time, with the real engine on the modelled 7,200 rpm disk and SATA SSD.
//!
//! - `deferred`: random writes to a RAM tier in front of the disk, beside a cache on an SSD
//! - `density`: blocks per second when a share of the blocks in a range is dirty
//! - `flushes`: writes with a flush after each, beside the bare SSD
//! - `lazy`: how long the disk of a small office's server sleeps
//! - `pressure`: latency of writes when a full, dirty cache is written to faster than the disk can
//!   take
//!
//! The same seed gives the same rows on every machine.

mod deferred;
mod density;
mod flushes;
mod lazy;
mod pressure;

use serde::Serialize;

use crate::error::{LabResult, other};
use crate::output::{Row, print_json, table};
use crate::progress::Progress;
use crate::virtual_time::cpu::CpuCosts;

/// Arguments of `forebay-lab writeback`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this part: density, pressure, deferred, flushes or lazy
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Shares of the blocks that are dirty
    #[arg(long, value_delimiter = ',', default_value = "0.001,0.01,0.03,0.1,0.3,0.6,0.9")]
    densities: Vec<f64>,
    /// Dirty blocks of each density
    #[arg(long, default_value_t = 40_000, value_name = "BLOCKS")]
    blocks: u64,
    /// Requests that clients have under way together
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    depths: Vec<usize>,
    /// Virtual seconds for which latencies are measured
    #[arg(long, default_value_t = 300.0)]
    seconds: f64,
    /// Same seed, same rows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    costs: CpuCosts,
}

#[derive(Serialize)]
struct Report {
    seed: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    densities: Vec<density::Drained>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pressure: Vec<pressure::Pressed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deferred: Vec<deferred::Deferred>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flushes: Vec<flushes::Flushing>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lazy: Vec<lazy::Slept>,
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    if args.densities.iter().any(|share| !(0.0001..=1.0).contains(share)) {
        return Err(other("densities are shares of 0.0001 to 1"));
    }
    if !(1000..=1_000_000).contains(&args.blocks) || args.depths.contains(&0) {
        return Err(other("1000 to 1000000 dirty blocks, and depths of 1 or more, please"));
    }
    let wanted = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    if !["density", "pressure", "deferred", "flushes", "lazy"].into_iter().any(wanted) {
        return Err(other("a part is density, pressure, deferred, flushes or lazy"));
    }
    let cells = || density::cells(&args.densities, args.blocks);
    let cells = wanted("density").then(cells).unwrap_or_default();
    let presses = if wanted("pressure") { pressure::jobs(&args.depths) } else { Vec::new() };
    let stacks = wanted("deferred").then(deferred::jobs).unwrap_or_default();
    let flushers = wanted("flushes").then(flushes::jobs).unwrap_or_default();
    let offices = wanted("lazy").then(lazy::jobs).unwrap_or_default();
    let steps = cells.len() + presses.len() + stacks.len() + flushers.len() + offices.len();
    let progress = Progress::new(steps as u64, "in virtual time");
    let (costs, seed) = (args.costs, args.seed);
    let mut report = Report {
        seed,
        densities: each(&progress, &cells, |cell| {
            progress.label(format!("density {}", cell.share));
            density::measure(cell, seed)
        })?,
        pressure: each(&progress, &presses, |job| {
            progress.label(format!("a full cache, {} under way", job.depth));
            pressure::measure(job, costs, args.seconds, seed)
        })?,
        deferred: each(&progress, &stacks, |stack| {
            progress.label(format!("deferred writes, {} under way", stack.depth));
            deferred::measure(stack, costs, seed)
        })?,
        flushes: each(&progress, &flushers, |job| {
            progress.label(format!("a flush after each write, {} under way", job.depth));
            flushes::measure(job, costs, flushes::SECONDS, seed)
        })?,
        lazy: each(&progress, &offices, |writeback| {
            progress.label(format!("an office for two weeks, {writeback} writeback"));
            lazy::measure(*writeback, 1, seed)
        })?,
    };
    deferred::Deferred::relate(&mut report.deferred);
    flushes::Flushing::relate(&mut report.flushes);
    drop(progress);
    if json {
        return print_json(&report);
    }
    print(&report)
}

/// Measures the rows of a part, one after the other.
fn each<J, R>(
    progress: &Progress,
    jobs: &[J],
    measure: impl Fn(&J) -> LabResult<R>,
) -> LabResult<Vec<R>> {
    let row = |job| {
        let row = measure(job)?;
        progress.advance(1);
        Ok(row)
    };
    jobs.iter().map(row).collect()
}

fn print(report: &Report) -> LabResult<()> {
    part("Writeback of blocks of 4K to a 7,200 rpm disk, all at once", &report.densities)?;
    part("Random writes of 4K to a cache that is full of dirty blocks", &report.pressure)?;
    let title =
        "Random writes of 4K within 1G of a 7,200 rpm disk, deferred for 10 s where there is RAM";
    part(title, &report.deferred)?;
    part("Random writes of 4K within 1G, a flush after each", &report.flushes)?;
    let title = "A small office's server for a week; the disk goes to sleep after 10 min";
    part(title, &report.lazy)?;
    let densities = report.densities.iter().flat_map(|row| [row.goal, row.sweep_goal]);
    let goals = densities.chain(report.pressure.iter().map(|row| row.goal)).flatten();
    let (met, all) = (goals.clone().filter(|goal| goal.met).count(), goals.count());
    if all > 0 {
        println!("{met} of {all} goals are met.");
    }
    Ok(())
}

fn part<R: Row>(title: &str, rows: &[R]) -> LabResult<()> {
    if !rows.is_empty() {
        println!("{title}\n{}", table(rows)?);
    }
    Ok(())
}
