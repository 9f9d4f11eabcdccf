//! Published results: systems and values by experiment, the settings that are run beside them, and
//! the computation of each metric. The reports themselves are files: `crates/lab/published`.

use std::collections::BTreeMap;

use forebay_engine::Settings;
use forebay_settings::Assignments;
use serde::{Deserialize, Deserializer};

use crate::error::{LabResult, other};
use crate::report::rows::ReportText;
use crate::virtual_time::tally::Found;

const MIB: f64 = 1_048_576.0;

/// Quantity that a report gives for an experiment, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    Iops,
    MbPerS,
    MibPerS,
    KibPerS,
    ReadMibPerS,
    WriteMibPerS,
    ReadMeanMs,
    WriteMeanMs,
}

impl Metric {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Metric::Iops => "iops",
            Metric::MbPerS => "mb_per_s",
            Metric::MibPerS => "mib_per_s",
            Metric::KibPerS => "kib_per_s",
            Metric::ReadMibPerS => "read_mib_per_s",
            Metric::WriteMibPerS => "write_mib_per_s",
            Metric::ReadMeanMs => "read_mean_ms",
            Metric::WriteMeanMs => "write_mean_ms",
        }
    }

    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Metric::ReadMeanMs | Metric::WriteMeanMs)
    }

    pub(crate) fn of(self, found: &Found) -> f64 {
        let seconds = found.seconds.max(1e-9);
        match self {
            Metric::Iops => found.requests() as f64 / seconds,
            Metric::MbPerS => found.bytes() as f64 / seconds / 1e6,
            Metric::MibPerS => found.bytes() as f64 / seconds / MIB,
            Metric::KibPerS => found.bytes() as f64 / seconds / 1024.0,
            Metric::ReadMibPerS => found.reads.bytes as f64 / seconds / MIB,
            Metric::WriteMibPerS => found.writes.bytes as f64 / seconds / MIB,
            Metric::ReadMeanMs => found.reads.mean() / 1e6,
            Metric::WriteMeanMs => found.writes.mean() / 1e6,
        }
    }
}

/// Subject of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Hdd,
    Ssd,
    Forebay,
}

/// The name of the disk and of the SSD among published values.
pub(crate) const DISK: &str = "disk";
pub(crate) const SSD: &str = "ssd";

/// Published value of one system.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Only(f64),
    /// A mean and its standard deviation.
    Spread(f64, f64),
}

impl Value {
    pub(crate) fn mean(self) -> f64 {
        match self {
            Value::Only(mean) | Value::Spread(mean, _) => mean,
        }
    }

    pub(crate) fn deviation(self) -> Option<f64> {
        match self {
            Value::Only(_) => None,
            Value::Spread(_, deviation) => Some(deviation),
        }
    }
}

/// One number for each system.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Published {
    pub(crate) experiment: String,
    pub(crate) metric: Metric,
    /// Experiment whose value of the SSD model is the base of the shares, if not this one.
    pub(crate) ssd_reference: Option<String>,
    pub(crate) note: Option<String>,
    #[serde(flatten)]
    pub(crate) values: BTreeMap<String, Value>,
}

impl Published {
    pub(crate) fn get(&self, system: &str) -> Option<f64> {
        self.values.get(system).map(|value| value.mean())
    }

    /// The experiment that holds the baseline of a model.
    pub(crate) fn reference(&self, server: Server) -> &str {
        match &self.ssd_reference {
            Some(other) if server == Server::Ssd => other,
            _ => &self.experiment,
        }
    }

    pub(crate) fn baseline(&self, server: Server) -> Option<f64> {
        match server {
            Server::Hdd => self.get(DISK),
            Server::Ssd => self.get(SSD),
            Server::Forebay => None,
        }
    }

    /// Returns a system's value as a share of the SSD's.
    pub(crate) fn share_of(&self, system: &str) -> Option<f64> {
        let ssd = self.get("ssd maximum").or_else(|| self.get(SSD))?;
        Some(self.get(system)? / ssd)
    }

    /// The cache with the best share.
    pub(crate) fn best_share(&self) -> Option<(&str, f64)> {
        let caches =
            self.values.keys().filter(|name| ![DISK, SSD, "ssd maximum"].contains(&&***name));
        let shares = caches.filter_map(|name| Some((name.as_str(), self.share_of(name)?)));
        let less = self.metric.less_is_better();
        shares.reduce(|best, other| if (other.1 < best.1) == less { other } else { best })
    }
}

/// Settings of a volume, and their name.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Config {
    pub(crate) name: String,
    /// The published system that it corresponds to.
    pub(crate) system: Option<String>,
    #[serde(default, deserialize_with = "settings")]
    pub(crate) settings: Settings,
    pub(crate) note: Option<String>,
}

fn settings<'de, D: Deserializer<'de>>(from: D) -> Result<Settings, D::Error> {
    let mut settings = Settings::default();
    let assignments = Assignments::deserialize(from)?;
    assignments.apply(&mut settings).map_err(serde::de::Error::custom)?;
    Ok(settings)
}

/// A goal for the share of the SSD, for rows that have all of this.
#[derive(Clone, Debug, Deserialize)]
struct GoalOf {
    config: String,
    /// End of the name of the experiment.
    experiment: Option<String>,
    metric: Option<Metric>,
    /// Least share; without it, the share of the best published cache.
    at_least: Option<f64>,
}

/// One report.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) text: ReportText,
    #[serde(default)]
    pub(crate) rows: Vec<Published>,
    #[serde(default)]
    goals: Vec<GoalOf>,
    #[serde(rename = "config")]
    pub(crate) configs: Vec<Config>,
}

impl Report {
    pub(crate) fn parse(text: &str) -> LabResult<Self> {
        toml::from_str(text).map_err(|error| other(format!("a published report: {error}")))
    }

    /// The share of the SSD that is wanted in a row, if there is one.
    pub(crate) fn goal(&self, published: &Published, config: &str) -> Option<f64> {
        let fits = |goal: &&GoalOf| {
            let ends = |end: &String| published.experiment.ends_with(end);
            goal.config == config
                && goal.experiment.as_ref().is_none_or(ends)
                && goal.metric.is_none_or(|metric| metric == published.metric)
        };
        let goal = self.goals.iter().find(fits)?;
        goal.at_least.or_else(|| published.best_share().map(|(_, share)| share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_best() {
        let row = |metric: &str| -> Published {
            let values = "disk = 1.0\nssd = 10.0\na = 5.0\nb = [8.0, 1.0]";
            let text = format!("experiment = \"x\"\nmetric = \"{metric}\"\n{values}");
            toml::from_str(&text).expect("a row")
        };
        assert_eq!(row("iops").best_share(), Some(("b", 0.8)));
        assert_eq!(row("read_mean_ms").best_share(), Some(("a", 0.5)));
    }
}
