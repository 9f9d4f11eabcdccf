//! Rows: what was published, what the models do, what Forebay does, side by side.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::measure::{Measurement, Server};
use super::published::{Metric, Published, Report};
use crate::virtual_time::tally::Sample;

/// Baselines of models may be off by so much.
const TOLERANCE: f64 = 0.03;

/// A number with six digits, so that a table does not pretend to more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number(pub(crate) f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = format!("{:.5e}", self.0);
        serializer.serialize_f64(text.parse().unwrap_or(self.0))
    }
}

/// A goal for a share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    pub(crate) at_least: Number,
    pub(crate) met: bool,
}

/// How a model's baseline compares with the published one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Baseline {
    pub(crate) published: Number,
    /// Relative.
    pub(crate) error: Number,
    /// Within 3 %.
    pub(crate) good: bool,
}

/// One row. Fields that do not apply are null.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) report: &'static str,
    pub(crate) experiment: String,
    /// `model/hdd`, `model/ssd`, `forebay/...`, or `forebay as ...`.
    pub(crate) config: String,
    pub(crate) metric: &'static str,
    /// By system: `disk`, `ssd`, and the caches.
    pub(crate) published: BTreeMap<&'static str, Number>,
    /// Standard deviations of these, where the report has them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) published_sd: BTreeMap<&'static str, Number>,
    pub(crate) model_hdd: Option<Number>,
    pub(crate) model_ssd: Option<Number>,
    pub(crate) value: Option<Number>,
    /// Standard deviation, where there are repetitions.
    pub(crate) sd: Option<Number>,
    pub(crate) repetitions: usize,
    pub(crate) share_of_ssd: Option<Number>,
    /// Of the system that the config corresponds to, else the best one; to the published SSD.
    pub(crate) published_share: Option<Number>,
    pub(crate) published_system: Option<&'static str>,
    pub(crate) hit_ratio: Option<Number>,
    pub(crate) ssd_bytes_per_user_byte: Option<Number>,
    pub(crate) disk_busy: Option<Number>,
    pub(crate) p50_us: Option<Number>,
    pub(crate) p99_us: Option<Number>,
    pub(crate) durability: Option<&'static str>,
    /// Streams longer than this many bytes went round the cache; 0: none did.
    pub(crate) sequential_cutoff: Option<u64>,
    /// Virtual seconds that were measured, all repetitions together.
    pub(crate) seconds: Option<Number>,
    pub(crate) baseline: Option<Baseline>,
    pub(crate) goal: Option<Goal>,
    pub(crate) note: Option<String>,
    /// If asked for: what is too large for the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Detail>,
}

/// Beside a row: how a run went over time, and its latencies.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Detail {
    /// Of the first run, or a sample for each repetition where there are some.
    pub(crate) series: Vec<Sample>,
    /// Lower ends in microseconds, and requests.
    pub(crate) read_latencies: Vec<(f64, u64)>,
    pub(crate) write_latencies: Vec<(f64, u64)>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let sum: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (values.len() > 1).then(|| (sum / (values.len() - 1) as f64).sqrt())
}

/// The rows of a report, in the order of its experiments.
///
/// `details`: with what is too large for a table.
pub(crate) fn rows(report: &Report, measurements: &[Measurement], details: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for published in &report.published {
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
        if here.is_empty() || published.only_published {
            rows.push(bare(report, published));
        }
    }
    rows
}

fn values(measurement: &Measurement, metric: Metric) -> Vec<f64> {
    measurement.found.iter().map(|found| metric.of(found)).collect()
}

fn numbers(values: &[(&'static str, f64)]) -> BTreeMap<&'static str, Number> {
    values.iter().map(|(system, value)| (*system, Number(*value))).collect()
}

fn bare(report: &Report, published: &Published) -> Row {
    Row {
        report: report.number,
        experiment: published.experiment.clone(),
        config: "published only".into(),
        metric: published.metric.name(),
        published: numbers(&published.values),
        published_sd: numbers(&published.deviations),
        model_hdd: None,
        model_ssd: None,
        value: None,
        sd: None,
        repetitions: 0,
        share_of_ssd: None,
        published_share: published.best_share().map(|(_, share)| Number(share)),
        published_system: published.best_share().map(|(system, _)| system),
        hit_ratio: None,
        ssd_bytes_per_user_byte: None,
        disk_busy: None,
        p50_us: None,
        p99_us: None,
        durability: None,
        sequential_cutoff: None,
        seconds: None,
        baseline: None,
        goal: None,
        note: published.note.clone(),
        detail: None,
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
    let mut all = crate::virtual_time::tally::Found::default();
    for found in &measurement.found {
        all.add(found);
    }
    let forebay = measurement.server == Server::Forebay;
    let system = measurement.system.filter(|system| published.share_of(system).is_some());
    let compared = match system {
        Some(system) => published.share_of(system).map(|share| (system, share)),
        None => published.best_share(),
    };
    let compared = compared.filter(|_| forebay);
    let share = ssd.filter(|_| forebay).map(|ssd| value / ssd);
    let goal = (report.goal)(published, measurement).zip(share).map(|(at_least, share)| {
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
        Metric::ReadMeanMs | Metric::ReadMibPerSecond => all.reads.latencies.clone(),
        Metric::WriteMeanMs | Metric::WriteMibPerSecond => all.writes.latencies.clone(),
        _ => all.latencies(),
    };
    let notes = [measurement.note.clone(), published.note.clone()];
    let note: Vec<String> = notes.into_iter().flatten().collect();
    Row {
        report: report.number,
        experiment: published.experiment.clone(),
        config: measurement.config.clone(),
        metric: metric.name(),
        published: numbers(&published.values),
        published_sd: numbers(&published.deviations),
        model_hdd: hdd.map(Number),
        model_ssd: ssd.map(Number),
        value: Some(Number(value)),
        sd: deviation(&values).map(Number),
        repetitions: values.len(),
        share_of_ssd: share.map(Number),
        published_share: compared.map(|(_, share)| Number(share)),
        published_system: compared.map(|(system, _)| system),
        hit_ratio: all.gauges.hit_ratio().filter(|_| forebay).map(Number),
        ssd_bytes_per_user_byte: forebay
            .then(|| all.gauges.ssd_written as f64 / all.bytes().max(1) as f64)
            .map(Number),
        disk_busy: (measurement.server != Server::Ssd)
            .then(|| Number(all.gauges.disk_busy.0 as f64 / 1e9 / all.seconds.max(1e-9))),
        p50_us: Some(Number(latencies.quantile(0.50) / 1000.0)),
        p99_us: Some(Number(latencies.quantile(0.99) / 1000.0)),
        durability: measurement.durability,
        sequential_cutoff: measurement.sequential_cutoff,
        seconds: Some(Number(all.seconds)),
        baseline,
        goal,
        note: (!note.is_empty()).then(|| note.join(" ")),
        detail: measurement.detail.as_deref().cloned().filter(|_| details),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        let text = |value| serde_json::to_string(&Number(value)).unwrap_or_default();
        assert_eq!(text(1.0 / 3.0), "0.333333");
        assert_eq!(text(123_456_789.0), "123457000.0");
        assert_eq!(text(0.0), "0.0");
    }

    #[test]
    fn deviations_are_of_samples() {
        assert_eq!(deviation(&[5.0]), None);
        assert_eq!(deviation(&[1.0, 3.0]), Some(2.0_f64.sqrt()));
    }
}
