//! `forebay-lab whatif`: predictions of a running volume for other settings, beside measurements
//! with these settings.
//!
//! A volume with the present settings runs under a workload, in virtual time, and tells its
//! predictions. Then each of the other settings runs under the same workload.
//!
//! - `workload`: traces, and generated workloads

mod workload;

use std::path::PathBuf;

use forebay_core::{Admission, Mode, ReplacementKind, parse_size};
use forebay_engine::Settings;
use forebay_policy::whatif::{Prediction, Rules};
use serde::Serialize;
use serde_json::json;

use crate::error::{LabResult, other, usage};
use crate::experiments::replay::{Loaded, Ran, ran};
use crate::experiments::source::Reading;
use crate::output::{Goal, Row, show};
use crate::pool;
use crate::virtual_time::world::UNIT;

use workload::Workload;

/// Promised error of a prediction.
const GOAL: f64 = 0.02;

/// Arguments of `forebay-lab whatif`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A trace, which may be compressed with zstd; without one, workloads are generated
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// Generated workloads: zipf, scans, loop, writes
    #[arg(long, value_delimiter = ',', conflicts_with = "trace", value_name = "NAMES")]
    workloads: Vec<Workload>,
    /// Sizes of the cache, as shares of the blocks in the workload
    #[arg(long, value_delimiter = ',', default_value = "0.05,0.2", value_name = "SHARES")]
    sizes: Vec<f64>,
    /// Mode of the cache
    #[arg(long, default_value = "writeback", value_name = "MODE")]
    mode: Mode,
    /// Streams longer than this go round the cache; 0: none does
    #[arg(long, default_value = "4M", value_name = "SIZE", value_parser = parse_size)]
    sequential_cutoff: u64,
    /// The present policy
    #[arg(long, default_value = "s3-fifo", value_name = "POLICY")]
    policy: ReplacementKind,
    /// The present rule of admission
    #[arg(long, default_value_t, value_name = "RULE")]
    admission: Admission,
    /// Threads; all processors by default
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
}

/// One setting under one workload.
#[derive(Clone, Debug, Serialize)]
struct Compared {
    workload: String,
    /// Share of the workload's blocks, and the blocks that may live in the cache.
    size: f64,
    capacity_blocks: u64,
    /// Assignment as for `forebay set`.
    setting: String,
    /// Share of the blocks read that were hits, as predicted and in fact.
    predicted: f64,
    real: f64,
    difference: f64,
    /// Difference of the share of hits to that with the present settings.
    predicted_gain: f64,
    real_gain: f64,
    gain_difference: f64,
    /// Error of the gain according to the prediction.
    error: f64,
    /// Bytes written to the cache device as a multiple of those with the present settings, without
    /// and with what reclaim writes once more.
    predicted_written: f64,
    real_written: f64,
    real_written_all: f64,
}

impl Row for Compared {
    const COLUMNS: &'static str = "WORKLOAD=workload | SIZE=size:0% | SETTING=setting | PREDICTED=predicted:4 | \
        REAL=real:4 | DIFFERENCE=difference:+4 | GAIN=predicted_gain:+4 | REAL=real_gain:+4 | \
        DIFFERENCE=gain_difference:+4 | SAYS ±=error:4 | WRITTEN=predicted_written:3 | \
        REAL=real_written:3 | WITH RECLAIM=real_written_all:3";
}

/// Returns how a prediction differs from the present settings, as for `forebay set`.
fn setting(now: &Rules, rules: &Rules) -> String {
    if rules.policy != now.policy {
        return format!("policy={}", rules.policy.name());
    }
    if rules.admission != now.admission {
        return format!("admission={}", rules.admission);
    }
    if rules.ram != now.ram {
        return format!("ram={}", forebay_core::units::format_size(rules.ram * UNIT));
    }
    "now".to_owned()
}

fn changed(settings: &Settings, rules: &Rules) -> Settings {
    let Rules { policy, admission, ram, ram_policy } = *rules;
    Settings { policy, admission, ram: ram * UNIT, ram_policy, ..settings.clone() }
}

/// One workload at one size.
struct Case<'a> {
    name: &'a str,
    trace: &'a Loaded,
    size: f64,
}

impl Case<'_> {
    fn rows(&self, settings: &Settings, threads: Option<usize>) -> LabResult<Vec<Compared>> {
        let blocks = (self.trace.blocks as f64 * self.size) as u64;
        let base = ran(self.trace, settings.clone(), blocks)?;
        let now = base.predictions.first().copied();
        let now = now.ok_or_else(|| other("the volume predicts nothing"))?;
        let others = base.predictions.get(1..).unwrap_or_default();
        let order: Vec<usize> = (0..others.len()).collect();
        let found = pool::run(others, &order, pool::threads(threads, others.len()), |one| {
            ran(self.trace, changed(settings, &one.rules), blocks)
        })?;
        let all = [(&now, &base)].into_iter().chain(others.iter().zip(&found));
        Ok(all.map(|(one, ran)| self.row((&now, &base), one, ran)).collect())
    }

    fn row(&self, (now, base): (&Prediction, &Ran), one: &Prediction, ran: &Ran) -> Compared {
        let (predicted_gain, real_gain) = (one.reads_gain.share, ran.reads - base.reads);
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        Compared {
            workload: self.name.to_owned(),
            size: self.size,
            capacity_blocks: ran.capacity_blocks,
            setting: setting(&now.rules, &one.rules),
            predicted: one.reads.share,
            real: ran.reads,
            difference: one.reads.share - ran.reads,
            predicted_gain,
            real_gain,
            gain_difference: predicted_gain - real_gain,
            error: one.reads_gain.error,
            predicted_written: share(one.written, now.written),
            real_written: share(ran.appended, base.appended),
            real_written_all: share(ran.ssd_written, base.ssd_written),
        }
    }
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let sequential_cutoff = args.sequential_cutoff;
    if args.sizes.iter().any(|size| !(*size > 0.0 && *size <= 1.0)) {
        return Err(usage("--sizes are shares, above 0, up to 1"));
    }
    let settings = Settings {
        mode: args.mode,
        policy: args.policy,
        admission: args.admission,
        sequential_cutoff,
        ..Settings::default()
    };
    let loads = match &args.trace {
        Some(path) => vec![workload::trace(path, &args.reading)?],
        None if args.workloads.is_empty() => Workload::all()?,
        None => args.workloads.iter().map(|one| one.load()).collect::<LabResult<_>>()?,
    };
    let mut rows = Vec::new();
    for (name, trace) in &loads {
        for size in &args.sizes {
            rows.extend(Case { name, trace, size: *size }.rows(&settings, args.threads)?);
        }
    }
    let largest = |of: fn(&Compared) -> f64| {
        rows.iter().map(of).fold(0.0f64, |most, one| most.max(one.abs()))
    };
    let difference = largest(|row| row.difference);
    let gain_difference = largest(|row| row.gain_difference);
    let goal = Goal::at_most(GOAL, difference);
    let common = json!({
        "mode": args.mode.name(),
        "sequential_cutoff": sequential_cutoff,
        "difference": difference,
        "gain_difference": gain_difference,
        "goal": goal,
    });
    show(json, common, &rows, |table| {
        let goal = goal.show("<=", 2);
        format!(
            "{table}\nlargest difference {difference:.4}, {goal}; of gains {gain_difference:.4}"
        )
    })
}
