//! What pages of results are made of: rows, and beside them series and latencies.
//!
//! This is what `forebay-lab seeds --json --details` prints, and what `--save` keeps. The
//! pages are always made from such a text, also right after a run, so that they are the same
//! whichever way they came about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Input {
    pub(crate) seed: u64,
    /// Share of the reports' times that was run.
    pub(crate) scale: f64,
    #[serde(default)]
    pub(crate) about: About,
    pub(crate) rows: Vec<Row>,
}

/// How the rows came about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct About {
    /// What to run for the same rows.
    pub(crate) command: Option<String>,
    /// Of the sources.
    pub(crate) revision: Option<String>,
    pub(crate) reports: Vec<ReportText>,
}

/// What is to be said about a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReportText {
    pub(crate) number: String,
    pub(crate) title: String,
    pub(crate) cautions: Vec<String>,
}

/// One row; the fields are those of the rows of `seeds`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) report: String,
    pub(crate) experiment: String,
    pub(crate) config: String,
    pub(crate) metric: String,
    pub(crate) published: BTreeMap<String, f64>,
    pub(crate) published_sd: BTreeMap<String, f64>,
    pub(crate) model_hdd: Option<f64>,
    pub(crate) model_ssd: Option<f64>,
    pub(crate) value: Option<f64>,
    pub(crate) sd: Option<f64>,
    pub(crate) repetitions: usize,
    pub(crate) share_of_ssd: Option<f64>,
    pub(crate) published_share: Option<f64>,
    pub(crate) published_system: Option<String>,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) ssd_bytes_per_user_byte: Option<f64>,
    pub(crate) disk_busy: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) durability: Option<String>,
    pub(crate) sequential_cutoff: Option<u64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) baseline: Option<Baseline>,
    pub(crate) goal: Option<Goal>,
    pub(crate) note: Option<String>,
    pub(crate) detail: Option<Detail>,
}

/// See the rows of `seeds`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Baseline {
    /// Relative.
    pub(crate) error: f64,
    pub(crate) good: bool,
}

/// See the rows of `seeds`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Goal {
    pub(crate) at_least: f64,
    pub(crate) met: bool,
}

/// How a run went over time, and its latencies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Detail {
    /// Over time, or one for each repetition.
    pub(crate) series: Vec<Sample>,
    /// Lower ends of buckets in microseconds, and requests.
    pub(crate) read_latencies: Vec<(f64, u64)>,
    pub(crate) write_latencies: Vec<(f64, u64)>,
}

/// See the rows of `seeds`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Sample {
    /// Since the run began, warm-up included.
    pub(crate) second: f64,
    pub(crate) hit_ratio: f64,
    pub(crate) dirty_bytes: f64,
    /// A share of the time.
    pub(crate) disk_busy: f64,
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
