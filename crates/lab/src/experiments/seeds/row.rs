//! Rows: published values, values of the models, and values of Forebay, side by side.

use crate::report::rows::{Baseline, Goal, Number, Row};
use crate::statistics::{deviation, mean};
use crate::virtual_time::tally::Found;

use super::measure::Measurement;
use super::published::{Metric, Published, Report, Server, Value};

/// Baselines of models may be off by so much.
const TOLERANCE: f64 = 0.03;

/// The rows of a report, in the order of its experiments.
///
/// `details`: the rows get series and latencies, which are too large for a table.
pub(crate) fn rows(report: &Report, measurements: &[Measurement], details: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for published in &report.rows {
        let here = measurements.iter().filter(|m| m.experiment == published.experiment);
        let here: Vec<&Measurement> = here.collect();
        let baseline = |server: Server| {
            let reference = |m: &&Measurement| {
                m.server == server && m.experiment == published.reference(server)
            };
            let measured = measurements.iter().find(reference)?;
            Some(mean(&values(measured, published.metric)))
        };
        let bases = (baseline(Server::Hdd), baseline(Server::Ssd));
        rows.extend(here.iter().map(|m| row(report, published, m, bases, details)));
        if here.is_empty() {
            rows.push(bare(report, published));
        }
    }
    rows
}

fn values(measurement: &Measurement, metric: Metric) -> Vec<f64> {
    measurement.found.iter().map(|found| metric.of(found)).collect()
}

/// The common fields of an experiment's rows, and the whole row of an experiment that is not run.
fn bare(report: &Report, published: &Published) -> Row {
    let numbers = |of: fn(Value) -> Option<f64>| {
        let values = published.values.iter();
        values.filter_map(|(system, value)| Some((system.clone(), Number(of(*value)?)))).collect()
    };
    Row {
        report: report.text.number.clone(),
        experiment: published.experiment.clone(),
        config: "published only".into(),
        metric: published.metric.name().into(),
        published: numbers(|value| Some(value.mean())),
        published_sd: numbers(Value::deviation),
        published_share: published.best_share().map(|(_, share)| Number(share)),
        published_system: published.best_share().map(|(system, _)| system.to_owned()),
        note: published.note.clone(),
        ..Row::default()
    }
}

fn row(
    report: &Report,
    published: &Published,
    measurement: &Measurement,
    (hdd, ssd): (Option<f64>, Option<f64>),
    details: bool,
) -> Row {
    let metric = published.metric;
    let values = values(measurement, metric);
    let value = mean(&values);
    let mut all = Found::default();
    for found in &measurement.found {
        all.add(found);
    }
    let forebay = measurement.server == Server::Forebay;
    let system = measurement.system.as_deref();
    let system = system.filter(|system| published.share_of(system).is_some());
    let compared = match system {
        Some(system) => published.share_of(system).map(|share| (system, share)),
        None => published.best_share(),
    };
    let compared = compared.filter(|_| forebay);
    let share = ssd.filter(|_| forebay).map(|ssd| value / ssd);
    let goal = report.goal(published, &measurement.config).zip(share).map(|(at_least, share)| {
        let met = if metric.less_is_better() { share <= at_least } else { share >= at_least };
        Goal { at_least: Number(at_least), met }
    });
    let baseline = published.baseline(measurement.server).map(|expected| {
        let error = value / expected - 1.0;
        Baseline {
            published: Number(expected),
            error: Number(error),
            good: error.abs() <= TOLERANCE,
        }
    });
    let latencies = match metric {
        Metric::ReadMeanMs | Metric::ReadMibPerS => all.reads.latencies.clone(),
        Metric::WriteMeanMs | Metric::WriteMibPerS => all.writes.latencies.clone(),
        _ => all.latencies(),
    };
    let notes = [measurement.note.clone(), published.note.clone()];
    let note: Vec<String> = notes.into_iter().flatten().collect();
    Row {
        config: measurement.config.clone(),
        model_hdd: hdd.map(Number),
        model_ssd: ssd.map(Number),
        value: Some(Number(value)),
        sd: deviation(&values).map(Number),
        repetitions: values.len(),
        share_of_ssd: share.map(Number),
        published_share: compared.map(|(_, share)| Number(share)),
        published_system: compared.map(|(system, _)| system.to_owned()),
        hit_ratio: all.gauges.hit_ratio().filter(|_| forebay).map(Number),
        ssd_bytes_per_user_byte: forebay
            .then(|| all.gauges.ssd_written as f64 / all.bytes().max(1) as f64)
            .map(Number),
        disk_busy: (measurement.server != Server::Ssd)
            .then(|| Number(all.gauges.disk_busy.0 as f64 / 1e9 / all.seconds.max(1e-9))),
        p50_us: Some(Number(latencies.quantile(0.50) / 1000.0)),
        p99_us: Some(Number(latencies.quantile(0.99) / 1000.0)),
        durability: measurement.durability.map(str::to_owned),
        sequential_cutoff: measurement.sequential_cutoff,
        seconds: Some(Number(all.seconds)),
        baseline,
        goal,
        note: (!note.is_empty()).then(|| note.join(" ")),
        detail: measurement.detail.as_deref().cloned().filter(|_| details),
        ..bare(report, published)
    }
}
