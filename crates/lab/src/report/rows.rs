//! Rows: published values, values of the models, and values of Forebay, side by side. And their
//! details: origin, series and latencies.
//!
//! `forebay-lab seeds --json --details` prints this, and `--save` keeps it. Pages are always made
//! from such a text, also right after a run, so that they are the same whichever way they came
//! about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use crate::virtual_time::tally::Sample;

/// A number that is printed with six digits, so that a row does not pretend to more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Number(pub(crate) f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = format!("{:.5e}", self.0);
        serializer.serialize_f64(text.parse().unwrap_or(self.0))
    }
}

/// All rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rows {
    pub(crate) seed: u64,
    /// Share of the reports' times that was run.
    pub(crate) scale: f64,
    pub(crate) rows: Vec<Row>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) about: Option<About>,
}

/// Origin of the rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct About {
    /// Command that gives the same rows.
    pub(crate) command: Option<String>,
    /// Revision of the sources.
    pub(crate) revision: Option<String>,
    pub(crate) reports: Vec<ReportText>,
}

/// Text about a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReportText {
    pub(crate) number: String,
    pub(crate) title: String,
    /// Notes to read before comparing.
    pub(crate) cautions: Vec<String>,
}

/// A goal for a share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Goal {
    pub(crate) at_least: Number,
    pub(crate) met: bool,
}

/// Comparison of a model's baseline with the published one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Baseline {
    #[serde(default)]
    pub(crate) published: Number,
    /// Relative.
    pub(crate) error: Number,
    /// Within 3 %.
    pub(crate) good: bool,
}

/// One row. Fields that do not apply are null.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) report: String,
    pub(crate) experiment: String,
    /// `model/hdd`, `model/ssd`, `forebay/...`, or `forebay as ...`.
    pub(crate) config: String,
    pub(crate) metric: String,
    /// By system: `disk`, `ssd`, and the caches.
    pub(crate) published: BTreeMap<String, Number>,
    /// Standard deviations of these, where the report has them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) published_sd: BTreeMap<String, Number>,
    pub(crate) model_hdd: Option<Number>,
    pub(crate) model_ssd: Option<Number>,
    pub(crate) value: Option<Number>,
    /// Standard deviation, where there are repetitions.
    pub(crate) sd: Option<Number>,
    pub(crate) repetitions: usize,
    pub(crate) share_of_ssd: Option<Number>,
    /// Share of the published SSD: by the system that the config corresponds to, else the best one.
    pub(crate) published_share: Option<Number>,
    pub(crate) published_system: Option<String>,
    pub(crate) hit_ratio: Option<Number>,
    pub(crate) ssd_bytes_per_user_byte: Option<Number>,
    pub(crate) disk_busy: Option<Number>,
    pub(crate) p50_us: Option<Number>,
    pub(crate) p99_us: Option<Number>,
    pub(crate) durability: Option<String>,
    /// Streams longer than this many bytes went round the cache; 0: none did.
    pub(crate) sequential_cutoff: Option<u64>,
    /// Virtual seconds that were measured, all repetitions together.
    pub(crate) seconds: Option<Number>,
    pub(crate) baseline: Option<Baseline>,
    pub(crate) goal: Option<Goal>,
    pub(crate) note: Option<String>,
    /// Details that are too large for the table, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Detail>,
}

/// Beside a row: how a run went over time, and its latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Detail {
    /// Samples of the first run, or one for each repetition where there are some.
    pub(crate) series: Vec<Sample>,
    /// Lower ends of buckets in microseconds, and requests.
    pub(crate) read_latencies: Vec<(f64, u64)>,
    pub(crate) write_latencies: Vec<(f64, u64)>,
}

impl Row {
    /// Whether this is Forebay, not a model.
    pub(crate) fn is_forebay(&self) -> bool {
        self.config.starts_with("forebay")
    }

    /// Whether less of this metric is better.
    pub(crate) fn less_is_better(&self) -> bool {
        self.metric.ends_with("_ms") || self.metric.ends_with("_us")
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
}
