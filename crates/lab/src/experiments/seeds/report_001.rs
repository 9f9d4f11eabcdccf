//! MaxIO 1.1.1 on a SATA and on a PCIe SSD, fio, 100 GB of 800 GB (2015).
//!
//! fio: libaio, direct, four threads, depth 16 with 256 KiB sequentially and 64 with 4 KiB at
//! random, 300 s. The disk is a 7,200 rpm one of 2 TB, of which 100 GB are used; the SSDs have
//! 800 GB. The models are those of `forebay-device`, which fit these baselines.

use std::sync::Arc;

use forebay_device::model::ModelKind;

use crate::error::LabResult;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::Span;
use crate::virtual_time::timing::{Affine, Link, Timing};
use crate::virtual_time::world::{Plan, World};

use super::measure::{Context, Job, Measurement};
use super::published::{Config, Report, Server};

const GB: u64 = 1_000_000_000;
const DISK_BYTES: u64 = 100 * GB / 4096 * 4096;
const SSD_BYTES: u64 = 800 * GB / 4096 * 4096;
const SEQUENTIAL: u64 = 256 << 10;

/// An SSD, and for how long runs on it are measured.
#[derive(Clone, Copy)]
struct Ssd {
    name: &'static str,
    kind: ModelKind,
    seconds: f64,
}

/// More than a million requests take longer to simulate than the report's 300 s are worth.
const SATA: Ssd = Ssd { name: "sata", kind: ModelKind::SataSsd, seconds: 30.0 };
const PCIE: Ssd = Ssd { name: "pcie", kind: ModelKind::PcieSsd, seconds: 10.0 };

impl Ssd {
    fn timing(&self, test: &str) -> Timing {
        match test {
            "rand-mix" => Timing::affine(mixed(self.kind)),
            _ => Timing::model(self.kind, SSD_BYTES),
        }
    }
}

pub(super) fn report() -> LabResult<Report> {
    Report::parse(include_str!("../../../published/001.toml"))
}

fn workload(test: &str) -> Workload {
    let (shape, len, writes, depth) = match test {
        "seq-write" => (Shape::Sequential, SEQUENTIAL, 100, 64),
        "seq-read" => (Shape::Sequential, SEQUENTIAL, 0, 64),
        "rand-write" => (Shape::Random, 4096, 100, 256),
        "rand-read" => (Shape::Random, 4096, 0, 256),
        _ => (Shape::Random, 4096, 25, 256),
    };
    Workload { shape, start: 0, span: DISK_BYTES / len * len, len, writes, depth }
}

/// Upper bound of a mix as a share of the bare SSD, if its writes are sequential, in records of 126
/// blocks and a header, and no read is answered from RAM.
fn mix_bound(kind: ModelKind) -> f64 {
    let Affine { read, write, .. } = mixed(kind);
    let block = |link: Link| link.overhead + 4096.0 * link.per_byte;
    let record = write.overhead + 127.0 * 4096.0 * write.per_byte;
    let bare = 0.75 * block(read) + 0.25 * block(write);
    bare / (0.75 * block(read) + 0.25 * record / 126.0)
}

/// The SSD under a mix of reads and writes, from the figures of the models and of the mixed row.
///
/// The models know reads and writes alone. Added up on one link, they give 46,200 requests on
/// SATA where 49,870 were published, and 160,300 on PCIe where 156,077 were; on two links PCIe
/// would do 219,000. So there is one link, on which the overheads of both directions are as many
/// times as large as fits the row.
fn mixed(kind: ModelKind) -> Affine {
    let (read, write, mixed, latencies) = match kind {
        ModelKind::PcieSsd => ((4.11, 2077.5), (4.49, 1832.7), 156_077.0, (80.0, 20.0)),
        _ => ((5.53, 280.65), (11.14, 271.09), 49_870.0, (90.0, 40.0)),
    };
    let transfer = |rate: f64| 4096.0 / rate;
    let overheads = 0.75 * read.0 + 0.25 * write.0;
    let factor = (1e6 / mixed - 0.75 * transfer(read.1) - 0.25 * transfer(write.1)) / overheads;
    let link = |(overhead, rate): (f64, f64), latency: f64| Link {
        overhead: overhead * factor * 1000.0,
        per_byte: 1000.0 / rate,
        latency: latency * 1000.0,
    };
    let (read, write) = (link(read, latencies.0), link(write, latencies.1));
    let sync = if kind == ModelKind::PcieSsd { 50_000 } else { 200_000 };
    Affine { read, write, shared: true, sync }
}

/// Share of the others' time that is measured with `strict` durability.
const STRICT_SHARE: f64 = 0.2;
const STRICT: &str = "forebay/writeback strict";

/// One test after the other on one cache.
struct Chain {
    name: &'static str,
    weight: f64,
    config: &'static str,
    warm: bool,
    tests: &'static [(Ssd, &'static str)],
}

/// The SSDs share a cache that is filled once: the first mix overwrites a hundredth of it, and
/// precedes nothing but the second.
const CHAINS: [Chain; 6] = [
    Chain {
        name: "reads and mix",
        weight: 60.0,
        config: "forebay/writeback",
        warm: true,
        tests: &[
            (SATA, "seq-read"),
            (SATA, "rand-read"),
            (PCIE, "seq-read"),
            (PCIE, "rand-read"),
            (SATA, "rand-mix"),
            (PCIE, "rand-mix"),
        ],
    },
    Chain {
        name: "strict",
        weight: 60.0,
        config: STRICT,
        warm: true,
        tests: &[
            (SATA, "rand-write"),
            (PCIE, "rand-write"),
            (SATA, "seq-write"),
            (PCIE, "seq-write"),
            (SATA, "rand-mix"),
            (PCIE, "rand-mix"),
        ],
    },
    writes("sata random writes", &[(SATA, "rand-write")]),
    writes("sata sequential writes", &[(SATA, "seq-write")]),
    writes("pcie random writes", &[(PCIE, "rand-write")]),
    writes("pcie sequential writes", &[(PCIE, "seq-write")]),
];

const fn writes(name: &'static str, tests: &'static [(Ssd, &'static str)]) -> Chain {
    Chain { name, weight: 25.0, config: "forebay/writeback", warm: false, tests }
}

fn run_chain(context: &Context, config: &Config, chain: &Chain) -> LabResult<Vec<Measurement>> {
    let ssd = (SSD_BYTES, Timing::model(ModelKind::SataSsd, SSD_BYTES));
    let disk = (DISK_BYTES, Timing::model(ModelKind::Hdd7200, DISK_BYTES));
    let plan = Plan::new(ssd, disk, config.settings.clone(), context.seed);
    let mut world = World::new(Plan { never_full: true, ..plan })?;
    if chain.warm {
        let share = context.scale.min(1.0);
        world.warm(0..(DISK_BYTES as f64 * share) as u64 / SEQUENTIAL * SEQUENTIAL)?;
    }
    let mut measurements = Vec::new();
    for (ssd, test) in chain.tests {
        let experiment = format!("{}/{test}", ssd.name);
        let mut workload = workload(test);
        if chain.warm && context.scale < 1.0 {
            workload.span = (DISK_BYTES as f64 * context.scale) as u64 / SEQUENTIAL * SEQUENTIAL;
        }
        world.replace_ssd(ssd.timing(test))?;
        // With `strict` nothing is put off that more time would show.
        let share = if chain.config == STRICT { STRICT_SHARE } else { 1.0 };
        let span = Span::seconds(ssd.seconds * share);
        let found = context.volume(&mut world, &experiment, 0, workload, span)?;
        let mut measured = Measurement::of_volume(config, experiment, vec![found]);
        if *test == "rand-mix" {
            let bound = mix_bound(ssd.kind);
            measured.note = Some(format!(
                "Bound: {bound:.3} of the bare SSD, if no read is answered from RAM; the reads are \
                 as many as before, and only the overhead of each write is saved."
            ));
        }
        if config.name == "forebay/writeback" {
            measurements.push(measured.also_as("forebay as maxio", "maxio"));
        }
        measurements.push(measured);
    }
    Ok(measurements)
}

fn raw(context: &Context) -> LabResult<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for ssd in [SATA, PCIE] {
        for test in ["seq-write", "seq-read", "rand-write", "rand-read", "rand-mix"] {
            let experiment = format!("{}/{test}", ssd.name);
            let mut run = |server, timing| {
                let span = Span::seconds(ssd.seconds);
                let found = context.raw(timing, &experiment, workload(test), span)?;
                measurements.push(Measurement::of_model(server, experiment.clone(), vec![found]));
                LabResult::Ok(())
            };
            run(Server::Hdd, Timing::model(ModelKind::Hdd7200, DISK_BYTES))?;
            run(Server::Ssd, ssd.timing(test))?;
        }
    }
    Ok(measurements)
}

pub(super) fn jobs(report: &Arc<Report>) -> Vec<Job> {
    let mut jobs = vec![Job::new("001", "bare models", 10.0, raw)];
    for chain in &CHAINS {
        let configs = report.configs.iter().filter(|known| known.name == chain.config);
        jobs.extend(configs.cloned().map(|config| {
            let work = move |context: &Context| run_chain(context, &config, chain);
            Job::new("001", chain.name, chain.weight, work)
        }));
    }
    jobs
}
