//! `forebay-lab seeds`: the experiments of five published reports, in virtual time, at their full
//! sizes, on modelled devices, with the real engine.
//!
//! - `report_000` to `report_004`: the published experiments, and the jobs that repeat them
//! - `pages`: rows, and their details, for pages of results
//! - `measure`, `published`, `row`, `table`: from runs to rows

mod measure;
mod pages;
mod published;
mod report_000;
mod report_001;
mod report_002;
mod report_003;
mod report_004;
mod row;
mod table;

use std::sync::Arc;

use crate::bench::measure::thread_cpu;
use crate::error::{LabResult, other, usage};
use crate::output::print_json;
use crate::pool;
use crate::progress::Progress;
use crate::report::rows::Rows;
use crate::virtual_time::cpu::CpuCosts;

use measure::{Context, Job, Measurement};
use published::Report;

/// The reports' experiments in virtual time, or some of them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these reports: 000, 001, 002, 003, 004
    #[arg(long, value_delimiter = ',', value_name = "REPORT")]
    only: Vec<String>,
    /// Only jobs whose name contains this; rows then lack what other jobs measure
    #[arg(long, value_name = "TEXT", hide = true)]
    jobs_named: Option<String>,
    /// Same seed, same table
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; as many as there are CPUs unless said otherwise
    #[arg(long, value_name = "THREADS")]
    threads: Option<usize>,
    /// Measure this share of the reports' times, to get an impression quickly
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    scale: f64,
    /// With --json: add to each row how the run went over time, and its latencies
    #[arg(long)]
    details: bool,
    /// Say on standard error how much CPU time each job took
    #[arg(long)]
    times: bool,
    #[command(flatten)]
    costs: CpuCosts,
    #[command(flatten)]
    pages: pages::Options,
}

/// Returns the reports and the jobs of each.
fn reports() -> LabResult<Vec<(Arc<Report>, Vec<Job>)>> {
    let with_jobs = |report: Report, jobs: fn(&Arc<Report>) -> Vec<Job>| {
        let report = Arc::new(report);
        let jobs = jobs(&report);
        (report, jobs)
    };
    Ok(vec![
        with_jobs(report_000::report()?, report_000::jobs),
        with_jobs(report_001::report()?, report_001::jobs),
        with_jobs(report_002::report()?, report_002::jobs),
        with_jobs(report_003::report()?, report_003::jobs),
        with_jobs(report_004::report()?, report_004::jobs),
    ])
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let all = reports()?;
    let known: Vec<&str> = all.iter().map(|(report, _)| &*report.text.number).collect();
    if let Some(wrong) = args.only.iter().find(|only| !known.contains(&only.as_str())) {
        return Err(usage(format!("'{wrong}' is not a report; choose from {}", known.join(", "))));
    }
    if !(args.scale > 0.0 && args.scale <= 1.0) {
        return Err(usage("the share must be above 0 and at most 1"));
    }
    args.pages.try_out()?;
    let wanted = |report: &str| args.only.is_empty() || args.only.iter().any(|o| o == report);
    let named = |name: &str| args.jobs_named.as_ref().is_none_or(|part| name.contains(part));
    let (mut reports, mut jobs): (Vec<Arc<Report>>, Vec<Job>) = (Vec::new(), Vec::new());
    for (report, own) in all {
        if wanted(&report.text.number) {
            reports.push(report);
            jobs.extend(own.into_iter().filter(|job| named(&job.name)));
        }
    }
    let measured = run_jobs(args, &jobs)?;
    let mut rows = Vec::new();
    for report in &reports {
        let own = jobs.iter().zip(&measured).filter(|(job, _)| job.report == report.text.number);
        let own: Vec<Measurement> = own.flat_map(|(_, found)| found.iter().cloned()).collect();
        let own = row::rows(report, &own, args.details || args.pages.wanted());
        if !json {
            table::print(report, &own)?;
            report_004::print_shares(&own);
        }
        rows.extend(own);
    }
    let mut output = Rows { seed: args.seed, scale: args.scale, rows, about: None };
    if args.pages.wanted() {
        output.about = Some(pages::about(args, &reports));
        let text = serde_json::to_string(&output)
            .map_err(|error| other(format!("the result cannot be written: {error}")))?;
        args.pages.write(&text)?;
        output.about = None;
    }
    if json {
        if !args.details {
            output.rows.iter_mut().for_each(|row| row.detail = None);
        }
        return print_json(&output);
    }
    let rows = &output.rows;
    let goals = rows.iter().filter_map(|row| row.goal);
    let (met, all) = (goals.clone().filter(|goal| goal.met).count(), goals.count());
    println!("\n{met} of {all} goals are met.");
    Ok(())
}

/// Runs the jobs on some threads, long ones first; results in the order of the jobs.
fn run_jobs(args: &Args, jobs: &[Job]) -> LabResult<Vec<Vec<Measurement>>> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|one, other| jobs[*other].weight.total_cmp(&jobs[*one].weight));
    let total: f64 = jobs.iter().map(|job| job.weight).sum();
    let progress = Progress::new((total * 10.0) as u64, "in virtual time");
    pool::run(jobs, &order, pool::threads(args.threads, jobs.len()), |job| {
        let name = format!("{} {}", job.report, job.name);
        progress.label(name.clone());
        let context = Context { costs: args.costs, seed: args.seed, scale: args.scale };
        let started = thread_cpu();
        let measured = (job.run)(&context).map_err(|error| other(format!("{name}: {error}")));
        if args.times {
            let took = (thread_cpu() - started).as_secs_f64();
            eprintln!("{name}: {took:.1} s of {}", job.weight);
        }
        progress.advance((job.weight * 10.0) as u64);
        measured
    })
}
