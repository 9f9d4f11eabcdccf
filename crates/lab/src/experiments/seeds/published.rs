//! What was published: systems and values by experiment, and how each value is measured here.

use super::measure::{Measurement, Server};
use crate::virtual_time::tally::Found;

const MIB: f64 = 1_048_576.0;

/// What a report gives for an experiment, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Iops,
    MbPerSecond,
    MibPerSecond,
    KibPerSecond,
    ReadMibPerSecond,
    WriteMibPerSecond,
    ReadMeanMs,
    WriteMeanMs,
}

impl Metric {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Metric::Iops => "iops",
            Metric::MbPerSecond => "mb_per_s",
            Metric::MibPerSecond => "mib_per_s",
            Metric::KibPerSecond => "kib_per_s",
            Metric::ReadMibPerSecond => "read_mib_per_s",
            Metric::WriteMibPerSecond => "write_mib_per_s",
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
            Metric::MbPerSecond => found.bytes() as f64 / seconds / 1e6,
            Metric::MibPerSecond => found.bytes() as f64 / seconds / MIB,
            Metric::KibPerSecond => found.bytes() as f64 / seconds / 1024.0,
            Metric::ReadMibPerSecond => found.reads.bytes as f64 / seconds / MIB,
            Metric::WriteMibPerSecond => found.writes.bytes as f64 / seconds / MIB,
            Metric::ReadMeanMs => found.reads.mean() / 1e6,
            Metric::WriteMeanMs => found.writes.mean() / 1e6,
        }
    }
}

/// The name of the disk and of the SSD among published values.
pub(crate) const DISK: &str = "disk";
pub(crate) const SSD: &str = "ssd";

/// One number for each system.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) experiment: String,
    pub(crate) metric: Metric,
    pub(crate) values: Vec<(&'static str, f64)>,
    /// Standard deviations of the values that have one.
    pub(crate) deviations: Vec<(&'static str, f64)>,
    /// The experiment of which the SSD model's value is what shares refer to, if not this one.
    pub(crate) ssd_reference: Option<&'static str>,
    /// The row of the report stands by itself, also where there are measurements.
    pub(crate) only_published: bool,
    pub(crate) note: Option<String>,
}

impl Published {
    pub(crate) fn new(
        experiment: impl Into<String>,
        metric: Metric,
        values: &[(&'static str, f64)],
    ) -> Self {
        Published {
            experiment: experiment.into(),
            metric,
            values: values.to_vec(),
            deviations: Vec::new(),
            ssd_reference: None,
            only_published: false,
            note: None,
        }
    }

    pub(crate) fn get(&self, system: &str) -> Option<f64> {
        self.values.iter().find(|(name, _)| *name == system).map(|(_, value)| *value)
    }

    /// The experiment that holds the baseline of a model.
    pub(crate) fn reference(&self, server: Server) -> &str {
        match self.ssd_reference {
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

    /// What a system reaches of the SSD.
    pub(crate) fn share_of(&self, system: &str) -> Option<f64> {
        let ssd = self.get("ssd maximum").or_else(|| self.get(SSD))?;
        Some(self.get(system)? / ssd)
    }

    /// The cache with the best share.
    pub(crate) fn best_share(&self) -> Option<(&'static str, f64)> {
        let caches =
            self.values.iter().filter(|(name, _)| ![DISK, SSD, "ssd maximum"].contains(name));
        let shares = caches.filter_map(|(name, _)| Some((*name, self.share_of(name)?)));
        let less = self.metric.less_is_better();
        shares.reduce(|best, other| if (other.1 < best.1) == less { other } else { best })
    }
}

/// A goal for the share of the SSD of a measurement, if there is one.
pub(crate) type GoalOf = fn(&Published, &Measurement) -> Option<f64>;

/// One report.
pub(crate) struct Report {
    pub(crate) number: &'static str,
    pub(crate) title: &'static str,
    pub(crate) published: Vec<Published>,
    pub(crate) goal: GoalOf,
    /// What to know before comparing.
    pub(crate) cautions: &'static [&'static str],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_best() {
        let values = [(DISK, 1.0), (SSD, 10.0), ("a", 5.0), ("b", 8.0)];
        let rate = Published::new("x", Metric::Iops, &values);
        assert_eq!(rate.best_share(), Some(("b", 0.8)));
        let latency = Published::new("x", Metric::ReadMeanMs, &values);
        assert_eq!(latency.best_share(), Some(("a", 0.5)));
    }
}
