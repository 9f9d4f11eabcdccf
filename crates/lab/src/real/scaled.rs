//! `forebay-lab seeds --real`: scaled-down experiments of the reports in real time, with fio over NBD
//! against modelled devices; and the rows of the report on dm-writeboost that stand on RAM, in
//! process and over NBD.
//!
//! - `experiment`: what is run, as data; the same data can be run in virtual time
//! - `twin`: the same in virtual time; `agreement`: how far the two are apart
//! - `server`: an engine and NBD in this process, on a lane of its own
//! - `nbd`: fio on such a server
//! - `in_process`: the rows on RAM without NBD
//! - `report_004`: the cells of the report on deferred writes

mod agreement;
pub(crate) mod experiment;
mod in_process;
mod nbd;
mod report_004;
mod server;
mod twin;

use serde::Serialize;

use crate::error::{LabError, LabResult};
use crate::fio::Measured;
use crate::output::{Goal, Table, print_json};
use crate::process::Stop;
use crate::progress::Progress;
use crate::real::run::table::latency;
use crate::virtual_time::cpu::CpuCosts;
use agreement::Agreement;
use experiment::{Configuration, Experiment};

/// What `only` may name: reports, and the rows of 003 on RAM.
const KNOWN: [&str; 5] = ["000", "001", "003", report_004::NUMBER, "ram"];

/// One experiment with one configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) report: String,
    pub(crate) experiment: String,
    pub(crate) config: &'static str,
    pub(crate) parameters: Experiment,
    pub(crate) measured: Vec<Measured>,
    /// Both directions together.
    pub(crate) bytes_per_second: f64,
    pub(crate) iops: f64,
    /// Of reads; `None` where there is no cache or there were no reads.
    pub(crate) hit_ratio: Option<f64>,
    /// The same of reads and writes.
    pub(crate) hit_ratio_of_all: Option<f64>,
    /// CPU time of the lane that serves, for each request.
    pub(crate) server_cpu_us: f64,
    /// CPU time of fio, its start included, for each request.
    pub(crate) client_cpu_us: f64,
    /// Share of the time in which that lane had a CPU.
    pub(crate) server_busy: f64,
    /// Share of the CPU time of the whole machine that was used by anything. Near 1, it is not the
    /// devices that limit the row.
    pub(crate) machine_busy: f64,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    /// The rows whose devices are modelled, in virtual time too.
    agreement: Vec<Agreement>,
    in_process: Vec<in_process::Row>,
    /// Four jobs against one, by depth, over NBD on RAM.
    four_jobs_over_nbd: Vec<FourJobs>,
}

/// What the report on dm-writeboost collapsed at: four jobs on RAM.
#[derive(Serialize)]
struct FourJobs {
    depth: u32,
    one_job_per_second: f64,
    four_jobs_per_second: f64,
    goal: Goal,
}

/// Runs the experiments of the reports in `only`, or all, with `time` percent of the time for each,
/// and prints what they gave; `costs` and `seed` are for virtual time.
/// Errors: fio is missing or fails, there is not enough memory, or somebody interrupts it: then
/// nothing is left behind.
pub(crate) fn run(
    only: &[String],
    time: u64,
    costs: CpuCosts,
    seed: u64,
    json: bool,
) -> LabResult<()> {
    if let Some(wrong) = only.iter().find(|name| !KNOWN.contains(&name.as_str())) {
        let known = KNOWN.join(", ");
        return Err(LabError::Usage(format!("--only {wrong}: with --real, choose from {known}")));
    }
    let stop = Stop::on_signals()?;
    // The cells of 004 take half an hour, so they are run only on request.
    let usual = |name: &str| only.is_empty() && name != report_004::NUMBER;
    let wanted = |name: &str| usual(name) || only.iter().any(|only| only == name);
    let mut all: Vec<(Experiment, Vec<Configuration>)> = Vec::new();
    let cells = report_004::experiments();
    for (experiment, configurations) in experiment::scaled_down()?.into_iter().chain(cells) {
        let name = if experiment.on_ram() { "ram" } else { &experiment.report };
        if wanted(name) {
            all.push((experiment.with_time(time), configurations));
        }
    }
    if all.is_empty() {
        return Err(LabError::Usage("--only: there is nothing to run".to_owned()));
    }
    let seconds =
        all.iter().map(|(one, configurations)| one.about_seconds() * configurations.len() as u64);
    let in_process_steps = if wanted("ram") { in_process::STEPS } else { 0 };
    let progress = Progress::new(seconds.sum::<u64>() + in_process_steps, "starting");
    let mut report = Report {
        rows: Vec::new(),
        agreement: Vec::new(),
        in_process: Vec::new(),
        four_jobs_over_nbd: Vec::new(),
    };
    for (experiment, configurations) in &all {
        for configuration in configurations {
            stop.check()?;
            let name =
                format!("{}/{} {}", experiment.report, experiment.name, configuration.name());
            progress.label(name);
            let row = nbd::measure(experiment, *configuration, &stop)?;
            // The cells of 004 depend on the CPU time of a request, which differs over NBD.
            if !experiment.on_ram() && experiment.report != report_004::NUMBER {
                let found = agreement::of(&row, experiment, *configuration, costs, seed)?;
                report.agreement.push(found);
            }
            report.rows.push(row);
            progress.advance(experiment.about_seconds());
        }
    }
    if wanted("ram") {
        report.in_process = in_process::measure(time, &stop, &progress)?;
        report.four_jobs_over_nbd = four_jobs(&report.rows);
    }
    drop(progress);
    if json { print_json(&report) } else { print(&report) }
}

fn four_jobs(rows: &[Row]) -> Vec<FourJobs> {
    let find = |jobs, depth| {
        rows.iter().find(|row| {
            let same = (row.parameters.jobs, row.parameters.depth) == (jobs, depth);
            row.parameters.on_ram() && same && row.config == Configuration::Writeback.name()
        })
    };
    [4, 32]
        .into_iter()
        .filter_map(|depth| {
            let (one, four) = (find(1, depth)?.iops, find(4, depth)?.iops);
            Some(FourJobs {
                depth,
                one_job_per_second: one,
                four_jobs_per_second: four,
                goal: Goal::at_least(1.0, four / one.max(1e-9)),
            })
        })
        .collect()
}

fn print(report: &Report) -> LabResult<()> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rows = || report.rows.iter().filter(|row| row.report != report_004::NUMBER);
    if rows().next().is_some() {
        let mut table = Table::new(
            "EXPERIMENT | CONFIG | MB/s | IOPS | READ | READ P99 | WRITE | \
            WRITE P99 | HITS | SERVER CPU us | CLIENT CPU us | SERVER BUSY | MACHINE BUSY",
        );
        for row in rows() {
            let of = |direction| row.measured.iter().find(|one| one.direction == direction);
            let cell = |direction, field: fn(&Measured) -> f64| {
                of(direction).map_or_else(|| "-".into(), |one| latency(field(one)))
            };
            table.row([
                format!("{}/{}", row.report, row.experiment),
                row.config.to_owned(),
                format!("{:.1}", row.bytes_per_second / 1e6),
                format!("{:.0}", row.iops),
                cell("read", |one| one.mean_us),
                cell("read", |one| one.p99_us),
                cell("write", |one| one.mean_us),
                cell("write", |one| one.p99_us),
                row.hit_ratio.map_or_else(|| "-".into(), percent),
                format!("{:.2}", row.server_cpu_us),
                format!("{:.2}", row.client_cpu_us),
                percent(row.server_busy),
                percent(row.machine_busy),
            ]);
        }
        println!("{}", table.render());
        println!(
            "fio over NBD, modelled devices in real time. Where the machine is busy, its CPUs limit\n\
             the row and not the devices.\n"
        );
    }
    report_004::print(&report.rows);
    agreement::print(&report.agreement);
    in_process::print(&report.in_process);
    if !report.four_jobs_over_nbd.is_empty() {
        let mut table = Table::new("RAM, OVER NBD | ONE JOB/s | FOUR JOBS/s | RATIO | GOAL");
        for row in &report.four_jobs_over_nbd {
            table.row([
                format!("depth {}", row.depth),
                format!("{:.0}", row.one_job_per_second),
                format!("{:.0}", row.four_jobs_per_second),
                format!("{:.2}", row.four_jobs_per_second / row.one_job_per_second.max(1e-9)),
                row.goal.show(">=", 1),
            ]);
        }
        println!("{}", table.render());
    }
    Ok(())
}
