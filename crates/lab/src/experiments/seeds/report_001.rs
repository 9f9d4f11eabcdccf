//! MaxIO 1.1.1 on a SATA and on a PCIe SSD, fio, 100 GB of 800 GB (2015).
//!
//! fio: libaio, direct, four threads, depth 16 with 256 KiB sequentially and 64 with 4 KiB at
//! random, 300 s. The disk is a 7,200 rpm one of 2 TB, of which 100 GB are used; the SSDs have
//! 800 GB. The models are those of `forebay-device`, which fit these baselines.

use forebay_core::{BlockSize, Durability};
use forebay_device::model::ModelKind;
use forebay_engine::Settings;

use crate::error::LabResult;

use super::measure::{Config, Context, Job, Measurement, Server};
use super::published::{DISK, Metric, Published, Report, SSD};
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::Span;
use crate::virtual_time::device::VirtualDevice;
use crate::virtual_time::timing::{Affine, Link, Timing};
use crate::virtual_time::world::{Plan, World};

const GB: u64 = 1_000_000_000;
const DISK_BYTES: u64 = 100 * GB / 4096 * 4096;
const SSD_BYTES: u64 = 800 * GB / 4096 * 4096;
const SEQUENTIAL: u64 = 256 << 10;

/// The two SSDs, and for how long runs on them are measured: 48 million requests take longer to
/// simulate than the report's 300 s are worth.
const SSDS: [(&str, ModelKind, f64); 2] =
    [("sata", ModelKind::SataSsd, 300.0), ("pcie", ModelKind::PcieSsd, 30.0)];

const MAXIO: &str = "maxio";

pub(super) fn report() -> Report {
    let mut published = Vec::new();
    for (ssd, rows) in [
        (
            "sata",
            [
                ("seq-write", Metric::MbPerSecond, Some(107.0), 268.0, 270.0),
                ("seq-read", Metric::MbPerSecond, Some(113.0), 279.0, 298.0),
                ("rand-write", Metric::Iops, Some(238.0), 38_092.0, 38_279.0),
                ("rand-read", Metric::Iops, Some(233.0), 49_687.0, 49_721.0),
                ("rand-mix", Metric::Iops, None, 49_870.0, 48_048.0),
            ],
        ),
        (
            "pcie",
            [
                ("seq-write", Metric::MbPerSecond, Some(107.0), 1777.0, 1454.0),
                ("seq-read", Metric::MbPerSecond, Some(113.0), 2012.0, 1700.0),
                ("rand-write", Metric::Iops, Some(238.0), 148_768.0, 101_667.0),
                ("rand-read", Metric::Iops, Some(233.0), 164_449.0, 151_199.0),
                ("rand-mix", Metric::Iops, None, 156_077.0, 139_588.0),
            ],
        ),
    ] {
        for (test, metric, disk, raw, maxio) in rows {
            let mut values = vec![(SSD, raw), (MAXIO, maxio)];
            values.extend(disk.map(|disk| (DISK, disk)));
            published.push(Published::new(format!("{ssd}/{test}"), metric, &values));
        }
    }
    Report {
        number: "001",
        title: "MaxIO on SATA and PCIe SSDs, fio",
        published,
        goal,
        cautions: &[
            "100 GB of 800 GB: nothing is ever evicted, and writeback does not begin within a run.",
            "The report's hit ratios of 70 to 99 % follow runs for which the cache was emptied; \
             here reads begin with all of the range cached, writes with an empty cache.",
            "Mixed reads and writes are on one link whose overheads are fitted to the mixed row: \
             commands of one direction overlap with transfers of the other.",
            "PCIe runs are measured for 30 of the 300 s.",
        ],
    }
}

fn goal(published: &Published, measurement: &Measurement) -> Option<f64> {
    if measurement.config != "forebay/writeback" {
        return None;
    }
    match published.experiment.as_str() {
        "sata/rand-write" => Some(1.6),
        "pcie/rand-write" => Some(2.5),
        "sata/rand-mix" | "pcie/rand-mix" => Some(1.1),
        _ => Some(0.98),
    }
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

fn settings(durability: Durability, sequential_cutoff: u64) -> Settings {
    Settings { durability, sequential_cutoff, ..Settings::default() }
}

fn best() -> Config {
    Config {
        name: "forebay/writeback",
        system: None,
        settings: settings(Durability::Flush, 0),
        note: None,
    }
}

fn strict() -> Config {
    Config { name: "forebay/writeback strict", settings: settings(Durability::Strict, 0), ..best() }
}

fn defaults() -> Config {
    Config {
        name: "forebay/writeback defaults",
        system: None,
        settings: Settings::default(),
        note: Some("Streams above 4 MiB go to the disk, as by default, to spare the SSD."),
    }
}

/// What a mix can reach at most of the bare SSD if its writes are written sequentially, in records
/// of 126 blocks and a header, and no read is answered from RAM.
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

fn world(kind: ModelKind, config: &Config, seed: u64) -> LabResult<World> {
    World::new(Plan {
        ssd: VirtualDevice::cache(SSD_BYTES, Timing::model(kind, SSD_BYTES)),
        disk: VirtualDevice::origin(DISK_BYTES, Timing::model(ModelKind::Hdd7200, DISK_BYTES)),
        settings: config.settings.clone(),
        block: BlockSize::DEFAULT,
        segment_bytes: None,
        seed,
        never_full: true,
    })
}

/// Share of the others' time that is measured with `strict` durability.
const STRICT_SHARE: f64 = 0.2;

/// One test after the other on one cache.
#[derive(Clone, Copy)]
struct Chain {
    warm: bool,
    tests: &'static [&'static str],
}

fn run_chain(
    context: &Context,
    (ssd, kind, seconds): (&str, ModelKind, f64),
    config: &Config,
    chain: Chain,
) -> LabResult<Vec<Measurement>> {
    let mut world = world(kind, config, context.seed)?;
    if chain.warm {
        let share = context.scale.min(1.0);
        world.prefetch(0..(DISK_BYTES as f64 * share) as u64 / SEQUENTIAL * SEQUENTIAL)?;
    }
    let mut measurements = Vec::new();
    for test in chain.tests {
        let experiment = format!("{ssd}/{test}");
        let mut workload = workload(test);
        if chain.warm && context.scale < 1.0 {
            workload.span = (DISK_BYTES as f64 * context.scale) as u64 / SEQUENTIAL * SEQUENTIAL;
        }
        if *test == "rand-mix" {
            world.replace_ssd(Timing::affine(mixed(kind)))?;
        }
        let span = Span::seconds(seconds);
        let found = context.volume(&mut world, &experiment, 0, workload, span)?;
        let mut measured = Measurement::of_volume(config, experiment, vec![found]);
        if *test == "rand-mix" {
            let bound = mix_bound(kind);
            measured.note = Some(format!(
                "Bound: {bound:.3} of the bare SSD, if no read is answered from RAM; the reads are \
                 as many as before, and only the overhead of each write is saved."
            ));
        }
        if config.name == "forebay/writeback" {
            measurements.push(measured.also_as("forebay as maxio", MAXIO));
        }
        measurements.push(measured);
    }
    Ok(measurements)
}

fn raw(context: &Context) -> LabResult<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (ssd, kind, seconds) in SSDS {
        for test in ["seq-write", "seq-read", "rand-write", "rand-read", "rand-mix"] {
            let experiment = format!("{ssd}/{test}");
            let mut run = |server, timing| {
                let span = Span::seconds(seconds);
                let found = context.raw(timing, &experiment, workload(test), span)?;
                measurements.push(Measurement::of_model(server, experiment.clone(), vec![found]));
                LabResult::Ok(())
            };
            run(Server::Hdd, Timing::model(ModelKind::Hdd7200, DISK_BYTES))?;
            let alone = || Timing::model(kind, SSD_BYTES);
            run(
                Server::Ssd,
                if test == "rand-mix" { Timing::affine(mixed(kind)) } else { alone() },
            )?;
        }
    }
    Ok(measurements)
}

pub(super) fn jobs() -> Vec<Job> {
    const WRITES: Chain = Chain { warm: false, tests: &["rand-write"] };
    const STREAM: Chain = Chain { warm: false, tests: &["seq-write"] };
    const READS: Chain = Chain { warm: true, tests: &["seq-read", "rand-read", "rand-mix"] };
    const STRICT: Chain = Chain { warm: true, tests: &["rand-write", "seq-write", "rand-mix"] };
    const DEFAULTS: Chain = Chain { warm: false, tests: &["seq-write", "seq-read"] };
    let mut jobs = vec![Job::new("001", "bare models", 10.0, raw)];
    for ssd in SSDS {
        let mut add = |name: &str, weight, config: fn() -> Config, chain| {
            let (device, kind, seconds) = ssd;
            // With `strict` nothing is put off that more time would show.
            let seconds = if name == "strict" { seconds * STRICT_SHARE } else { seconds };
            let name = format!("{device} {name}");
            jobs.push(Job::new("001", name, weight, move |context| {
                run_chain(context, (device, kind, seconds), &config(), chain)
            }));
        };
        add("random writes", 40.0, best, WRITES);
        add("sequential writes", 40.0, best, STREAM);
        add("reads and mix", 120.0, best, READS);
        add("strict", 100.0, strict, STRICT);
        add("defaults", 5.0, defaults, DEFAULTS);
    }
    jobs
}
