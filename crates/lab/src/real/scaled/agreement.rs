//! Real time against virtual time: the same experiment in both, and how far they are apart.

use serde::Serialize;

use super::Row;
use super::experiment::{Configuration, Experiment};
use super::twin;
use crate::error::LabResult;
use crate::output::{Goal, Table};
use crate::virtual_time::cpu::CpuCosts;

/// How far apart the two may be.
const TOLERANCE: f64 = 0.15;
/// Share of the machine's CPU time from which on its CPUs may be the limit and not the devices.
const BUSY: f64 = 0.9;

/// One experiment in both times.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Agreement {
    report: String,
    experiment: String,
    config: &'static str,
    real_bytes_per_second: f64,
    virtual_bytes_per_second: f64,
    real_to_virtual: f64,
    /// Of reads and writes; `None` if there is no cache.
    real_hit_ratio: Option<f64>,
    virtual_hit_ratio: Option<f64>,
    machine_busy: f64,
    /// The larger of the two by the smaller, which is to be below 1.15; `None` where the machine is so
    /// busy that devices are not the limit.
    goal: Option<Goal>,
}

/// The same experiment as `row` in virtual time.
pub(crate) fn of(
    row: &Row,
    experiment: &Experiment,
    configuration: Configuration,
    costs: CpuCosts,
    seed: u64,
) -> LabResult<Agreement> {
    let in_virtual = twin::measure(experiment, configuration, costs, seed)?;
    let ratio = row.bytes_per_second / in_virtual.bytes_per_second.max(1e-9);
    Ok(Agreement {
        report: row.report.clone(),
        experiment: row.experiment.clone(),
        config: row.config,
        real_bytes_per_second: row.bytes_per_second,
        virtual_bytes_per_second: in_virtual.bytes_per_second,
        real_hit_ratio: row.hit_ratio_of_all,
        virtual_hit_ratio: in_virtual.hit_ratio,
        real_to_virtual: ratio,
        machine_busy: row.machine_busy,
        goal: (row.machine_busy < BUSY)
            .then(|| Goal::at_most(1.0 + TOLERANCE, ratio.max(1.0 / ratio.max(1e-9)))),
    })
}

/// Prints the table.
pub(crate) fn print(rows: &[Agreement]) {
    if rows.is_empty() {
        return;
    }
    let hits = |ratio: Option<f64>| {
        ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2} %", ratio * 100.0))
    };
    let mut table = Table::new(
        "EXPERIMENT | CONFIG | REAL MB/s | VIRTUAL MB/s | REAL/VIRTUAL | \
        HITS REAL | VIRTUAL | MACHINE BUSY | WITHIN 15 %",
    );
    for row in rows {
        let within = match row.goal {
            None => "CPUs are the limit",
            Some(goal) if goal.met => "yes",
            Some(_) => "NO",
        };
        table.row([
            format!("{}/{}", row.report, row.experiment),
            row.config.to_owned(),
            format!("{:.1}", row.real_bytes_per_second / 1e6),
            format!("{:.1}", row.virtual_bytes_per_second / 1e6),
            format!("{:.3}", row.real_to_virtual),
            hits(row.real_hit_ratio),
            hits(row.virtual_hit_ratio),
            format!("{:.0} %", row.machine_busy * 100.0),
            within.to_owned(),
        ]);
    }
    println!("{}", table.render());
}
