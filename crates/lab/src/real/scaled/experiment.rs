//! The reports' experiments, scaled down until they run in real time on a small machine: data only,
//! so that the same experiment can be run in virtual time at the same size.
//!
//! What is kept of the reports is the ratio of sizes, the mix, the distribution, jobs and depth, and
//! the order of preparation and measurement.

use forebay_core::{Durability, Mode};
use forebay_device::model::ModelKind;
use serde::Serialize;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Preparation {
    pub(crate) write: bool,
    pub(crate) bytes: u64,
    pub(crate) block: u64,
    pub(crate) depth: u32,
}

/// One experiment. Sizes are in bytes, times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Experiment {
    /// Number of the report.
    pub(crate) report: &'static str,
    pub(crate) name: &'static str,
    pub(crate) origin: DeviceKind,
    pub(crate) origin_bytes: u64,
    pub(crate) cache: DeviceKind,
    pub(crate) cache_bytes: u64,
    pub(crate) preparation: Preparation,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        }
    }

    /// Mode and durability of the volume.
    pub(crate) fn settings(self) -> (Mode, Durability) {
        match self {
            Configuration::Origin | Configuration::CacheDevice => {
                (Mode::Passthrough, Durability::Flush)
            }
            Configuration::Writeback => (Mode::Writeback, Durability::Flush),
            Configuration::Strict => (Mode::Writeback, Durability::Strict),
            Configuration::Writethrough => (Mode::Writethrough, Durability::Flush),
        }
    }

    /// Whether there is a cache at all.
    pub(crate) fn cached(self) -> bool {
        !matches!(self, Configuration::Origin | Configuration::CacheDevice)
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
        let bytes = self.preparation.bytes;
        let preparing = if self.on_ram() { 1 } else { 1 + bytes / (100 * MIB) };
        preparing + self.ramp_seconds + self.seconds
    }
}

use Configuration::{CacheDevice, Origin, Strict, Writeback, Writethrough};

/// 000, 1:50: a disk of 2 GiB, cache device and file of 400 MiB each.
const MAIL: Experiment = Experiment {
    report: "000",
    name: "mail",
    origin: DeviceKind::Hdd7200,
    origin_bytes: 2048 * MIB,
    cache: DeviceKind::SataSsd,
    cache_bytes: 400 * MIB,
    preparation: Preparation { write: false, bytes: 360 * MIB, block: 4 * KIB, depth: 8 },
    span: 400 * MIB,
    block: 4 * KIB,
    write_percent: 10,
    addresses: Addresses::Zipf(1.2),
    jobs: 4,
    depth: 8,
    ramp_seconds: 4,
    seconds: 16,
};

/// 001, 1:200 of the span: the cache device holds all of it four times over, as 800 GB hold 100.
/// The sequential tests have one job: those of the report ran side by side.
const MAXIO: Experiment = Experiment {
    report: "001",
    name: "",
    origin: DeviceKind::Hdd7200,
    origin_bytes: 512 * MIB,
    cache: DeviceKind::SataSsd,
    cache_bytes: 2048 * MIB,
    preparation: Preparation { write: true, bytes: 512 * MIB, block: 256 * KIB, depth: 16 },
    span: 512 * MIB,
    block: 4 * KIB,
    write_percent: 100,
    addresses: Addresses::Uniform,
    jobs: 4,
    depth: 64,
    ramp_seconds: 1,
    seconds: 5,
};

/// 003: the cache device holds what is written in the time, as in the report.
const WRITEBOOST: Experiment = Experiment {
    report: "003",
    name: "",
    origin: DeviceKind::Hdd7200,
    origin_bytes: 256 * MIB,
    cache: DeviceKind::SataSsd,
    cache_bytes: 2560 * MIB,
    preparation: Preparation { write: true, bytes: 256 * MIB, block: 256 * KIB, depth: 16 },
    span: 256 * MIB,
    block: 4 * KIB,
    write_percent: 100,
    addresses: Addresses::Uniform,
    jobs: 1,
    depth: 4,
    ramp_seconds: 1,
    seconds: 5,
};

/// All experiments, each with the configurations that it is run with.
pub(crate) fn scaled_down() -> Vec<(Experiment, &'static [Configuration])> {
    const BOTH: &[Configuration] = &[CacheDevice, Writeback];
    let mut all: Vec<(Experiment, &'static [Configuration])> =
        vec![(MAIL, &[Origin, CacheDevice, Writethrough, Writeback, Strict])];
    let sequential = Experiment {
        block: 256 * KIB,
        addresses: Addresses::Sequential,
        jobs: 1,
        depth: 16,
        ..MAXIO
    };
    for (name, write_percent, shape) in [
        ("sata/seq-write", 100, sequential),
        ("sata/seq-read", 0, sequential),
        ("sata/rand-write", 100, MAXIO),
        ("sata/rand-read", 0, MAXIO),
        ("sata/rand-mix", 25, MAXIO),
    ] {
        all.push((Experiment { name, write_percent, ..shape }, BOTH));
    }
    let ram = Experiment {
        origin: DeviceKind::Ram,
        origin_bytes: 1024 * MIB,
        cache: DeviceKind::Ram,
        cache_bytes: 2048 * MIB,
        span: 1024 * MIB,
        preparation: Preparation { write: true, bytes: 1024 * MIB, block: 256 * KIB, depth: 16 },
        ..WRITEBOOST
    };
    for (name, jobs, depth) in [("1x4", 1, 4), ("1x32", 1, 32), ("4x4", 4, 4), ("4x32", 4, 32)] {
        let configurations: &[Configuration] = &[CacheDevice, Writeback, Strict];
        all.push((Experiment { name, jobs, depth, ..WRITEBOOST }, configurations));
    }
    for (name, jobs, depth) in
        [("ram/1x4", 1, 4), ("ram/1x32", 1, 32), ("ram/4x4", 4, 4), ("ram/4x32", 4, 32)]
    {
        all.push((Experiment { name, jobs, depth, ..ram }, BOTH));
    }
    all.push((
        Experiment { name: "ram/512k", block: 512 * KIB, jobs: 4, depth: 32, ..ram },
        &[CacheDevice],
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_fits_its_devices() {
        let all = scaled_down();
        for (experiment, configurations) in &all {
            let Preparation { bytes, block, .. } = experiment.preparation;
            let name = experiment.name;
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
            let short = experiment.with_time(10);
            assert!(short.seconds >= 1 && short.seconds <= experiment.seconds, "{name}");
        }
        let of = |report| all.iter().filter(|(one, _)| one.report == report).count();
        assert_eq!((of("000"), of("001"), of("003")), (1, 5, 9));
    }
}
