//! The reports' experiments, scaled down until they run in real time on a small machine: data only, in
//! `crates/lab/published/scaled.toml`, so that the same experiment can be run in virtual time at the same
//! size.

use std::collections::BTreeMap;

use std::time::Duration;

use forebay_core::{Durability, Mode};
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use serde::{Deserialize, Serialize};

use crate::error::{LabResult, other};

const MIB: u64 = 1 << 20;

/// The RAM tier and the time for which writes are deferred: 1:16 of the report's.
const RAM_BYTES: u64 = 64 * MIB;
const DEFER: Duration = Duration::from_millis(625);

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DeviceKind {
    /// RAM, as fast as it is.
    Ram,
    /// See [`ModelKind::Hdd7200`].
    Hdd7200,
    /// See [`ModelKind::SataSsd`].
    SataSsd,
}

impl DeviceKind {
    /// The model that makes it that slow.
    pub(crate) fn model(self) -> Option<ModelKind> {
        match self {
            DeviceKind::Ram => None,
            DeviceKind::Hdd7200 => Some(ModelKind::Hdd7200),
            DeviceKind::SataSsd => Some(ModelKind::SataSsd),
        }
    }
}

/// The order of addresses within the span.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Addresses {
    /// From the start to the end, again and again.
    Sequential,
    /// Independent and uniform.
    Uniform,
    /// Independent; the k-th most popular block has a share that falls with k to this power.
    Zipf(f64),
}

/// What is done before the clock runs: the first `bytes` of the span are read or written in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Preparation {
    pub(crate) write: bool,
    pub(crate) bytes: u64,
    pub(crate) block: u64,
    pub(crate) depth: u32,
}

/// One experiment. Sizes are in bytes, times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Experiment {
    /// Number of the report.
    pub(crate) report: String,
    pub(crate) name: String,
    pub(crate) origin: DeviceKind,
    pub(crate) origin_bytes: u64,
    pub(crate) cache: DeviceKind,
    pub(crate) cache_bytes: u64,
    pub(crate) preparation: Option<Preparation>,
    /// Bytes from the start of the volume that are worked on.
    pub(crate) span: u64,
    pub(crate) block: u64,
    /// Writes among a hundred requests.
    pub(crate) write_percent: u32,
    pub(crate) addresses: Addresses,
    pub(crate) jobs: u32,
    /// Requests in flight for each job.
    pub(crate) depth: u32,
    /// Under load and not measured.
    pub(crate) ramp_seconds: u64,
    pub(crate) seconds: u64,
}

/// What the experiment is run on. No configuration has a sequential cut-off: preparations are
/// sequential, and in the reports it was off or not mentioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Configuration {
    /// The origin alone, by passthrough.
    Origin,
    /// A device like the cache device alone, by passthrough.
    CacheDevice,
    /// Writeback, acknowledged in RAM until a flush.
    Writeback,
    /// Writeback, acknowledged on stable media.
    Strict,
    /// Writethrough.
    Writethrough,
    /// A RAM tier with blocks of 4 KiB that defers writes, before a device like the cache device.
    Deferred4K,
    /// The same with blocks of 16 KiB.
    Deferred16K,
}

impl Configuration {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Configuration::Origin => "model/hdd",
            Configuration::CacheDevice => "model/ssd",
            Configuration::Writeback => "forebay/writeback",
            Configuration::Strict => "forebay/writeback-strict",
            Configuration::Writethrough => "forebay/writethrough",
            Configuration::Deferred4K => "forebay/ram 4k",
            Configuration::Deferred16K => "forebay/ram 16k",
        }
    }

    /// Settings of the volume.
    pub(crate) fn settings(self) -> Settings {
        let with = |mode, durability| Settings {
            mode,
            durability,
            sequential_cutoff: 0,
            ..Settings::default()
        };
        let deferred = |ram_block| Settings {
            ram: RAM_BYTES,
            ram_block,
            defer: DEFER,
            ..with(Mode::Passthrough, Durability::Deferred)
        };
        match self {
            Configuration::Origin | Configuration::CacheDevice => {
                with(Mode::Passthrough, Durability::Flush)
            }
            Configuration::Writeback => with(Mode::Writeback, Durability::Flush),
            Configuration::Strict => with(Mode::Writeback, Durability::Strict),
            Configuration::Writethrough => with(Mode::Writethrough, Durability::Flush),
            Configuration::Deferred4K => deferred(4 << 10),
            Configuration::Deferred16K => deferred(16 << 10),
        }
    }

    /// What is behind the volume, and how large it is.
    pub(crate) fn origin(self, experiment: &Experiment) -> (DeviceKind, u64) {
        match self {
            Configuration::CacheDevice | Configuration::Deferred4K | Configuration::Deferred16K => {
                (experiment.cache, experiment.cache_bytes)
            }
            _ => (experiment.origin, experiment.origin_bytes),
        }
    }

    /// Bytes of the cache device; a volume that only passes through does not use it.
    pub(crate) fn cache_bytes(self, experiment: &Experiment) -> u64 {
        if self.cached() { experiment.cache_bytes } else { 64 << 20 }
    }

    /// Whether there is a cache device.
    pub(crate) fn cached(self) -> bool {
        use Configuration::{Strict, Writeback, Writethrough};
        matches!(self, Writeback | Strict | Writethrough)
    }
}

impl Experiment {
    /// Whether no device is modelled.
    pub(crate) fn on_ram(&self) -> bool {
        self.cache == DeviceKind::Ram
    }

    /// The same with so many percent of the time, at least a second.
    pub(crate) fn with_time(mut self, percent: u64) -> Self {
        self.ramp_seconds = self.ramp_seconds * percent / 100;
        self.seconds = (self.seconds * percent / 100).max(1);
        self
    }

    /// How long a run takes, roughly: for progress bars.
    pub(crate) fn about_seconds(&self) -> u64 {
        let bytes = self.preparation.map_or(0, |preparation| preparation.bytes);
        let preparing = if self.on_ram() { 1 } else { 1 + bytes / (100 * MIB) };
        preparing + self.ramp_seconds + self.seconds
    }
}

/// Experiments with much in common.
#[derive(Deserialize)]
struct Group {
    common: toml::Table,
    experiments: Vec<toml::Table>,
    configurations: Vec<Configuration>,
}

/// All experiments, each with the configurations that it is run with.
pub(crate) fn scaled_down() -> LabResult<Vec<(Experiment, Vec<Configuration>)>> {
    let bad = |error: toml::de::Error| other(format!("the scaled-down experiments: {error}"));
    let text = include_str!("../../../published/scaled.toml");
    let mut file: BTreeMap<String, Vec<Group>> = toml::from_str(text).map_err(bad)?;
    let mut all = Vec::new();
    for Group { common, experiments, configurations } in file.remove("group").unwrap_or_default() {
        for own in experiments {
            let mut table = common.clone();
            table.extend(own);
            all.push((table.try_into().map_err(bad)?, configurations.clone()));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_fits_its_devices() {
        let all = scaled_down().expect("well formed");
        for (experiment, configurations) in &all {
            let preparation = experiment.preparation.expect("all of these have one");
            let Preparation { bytes, block, .. } = preparation;
            let name = &experiment.name;
            assert!(
                bytes <= experiment.span && experiment.span <= experiment.origin_bytes,
                "{name}"
            );
            // The bare device is as large as the cache device.
            assert!(experiment.span <= experiment.cache_bytes, "{name}");
            for size in [bytes, experiment.span, experiment.origin_bytes, experiment.cache_bytes] {
                assert!(size % block == 0 && size % experiment.block == 0, "{name}");
            }
            assert!(!configurations.is_empty() && experiment.write_percent <= 100, "{name}");
            let short = experiment.clone().with_time(10);
            assert!(short.seconds >= 1 && short.seconds <= experiment.seconds, "{name}");
        }
        let of = |report| all.iter().filter(|(one, _)| one.report == report).count();
        assert_eq!((of("000"), of("001"), of("003")), (1, 5, 9));
    }
}
