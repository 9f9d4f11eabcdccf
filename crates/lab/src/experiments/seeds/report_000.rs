//! EnhanceIO, bcache and dm-cache, 90 % reads of a zipf distribution, fio (2013).
//!
//! fio: libaio, direct, 4 KiB, four jobs of depth 8, zipf 1.2 over a file of 20 GB; before that 90 %
//! of the file are read sequentially. The disk has 100 GB, the cache device 20 GB. No device is
//! named; they are modelled from the rows of the bare devices:
//!
//! - SSD: 67,100 requests per second are 14.9 us each on one link, and 275 MB/s, so a SATA link of
//!   3 Gb/s: 280 MB/s, and the rest is overhead. The latencies are those of the SATA model; their
//!   difference is the published one of reads and writes (470 and 420 us).
//! - Disk: 3,840 requests per second with 27 ms for a write and 6.2 ms for a read. 32 requests
//!   under way at 27 ms are 1,175 operations of the mechanics per second, so 23 % of the reads
//!   reached them, and the others were answered by RAM. One 7,200 rpm disk does a quarter of
//!   that: the model is such a disk with mechanics of that many times the speed (an array, or
//!   15,000 rpm) and a read cache; these two parameters fit the two rows.

use forebay_core::{BlockSize, Durability, Mode, ReplacementKind};
use forebay_engine::Settings;

use crate::error::LabResult;

use super::measure::{Config, Context, Job, Measurement, Server};
use super::published::{DISK, Metric, Published, Report, SSD};
use crate::virtual_time::access::{Shape, Workload, Zipf};
use crate::virtual_time::clients::Span;
use crate::virtual_time::device::VirtualDevice;
use crate::virtual_time::timing::{Affine, CachedDisk, Link, Timing};
use crate::virtual_time::world::{Plan, World};

const GIB: u64 = 1 << 30;
const DISK_BYTES: u64 = 100 * GIB;
const SSD_BYTES: u64 = 20 * GIB;
const FILE: u64 = 20 * GIB;

/// Four jobs of 20 GB each, at the speed of the bare SSD.
const SECONDS: f64 = 300.0;
const COLD_SECONDS: f64 = 120.0;
const REQUESTS: u64 = 4 * FILE / 4096;

const DISK_SPEED: f64 = 5.05;
const DISK_CACHE_BLOCKS: usize = 1060;

fn disk() -> CachedDisk {
    CachedDisk { speed: DISK_SPEED, cached_blocks: DISK_CACHE_BLOCKS, hit: 100_000 }
}

fn ssd() -> Affine {
    let total = (235.87 + 26.21) * 256.0;
    let per_byte = 1e9 / 280e6;
    let overhead = 1e9 / total - 4096.0 * per_byte;
    let link = |latency| Link { overhead, per_byte, latency };
    Affine { read: link(90_000.0), write: link(40_000.0), shared: true, sync: 200_000 }
}

/// Experiment, system: read ms, write ms, read MiB/s, write MiB/s.
const ROWS: [(&str, &str, [f64; 4]); 6] = [
    ("writethrough", "enhanceio", [1.58, 16.53, 32.91, 3.65]),
    ("writethrough", "bcache", [0.58, 31.05, 27.17, 3.02]),
    ("writethrough", "dm-cache", [0.24, 27.45, 31.05, 3.44]),
    ("writeback", "enhanceio", [0.34, 4.98, 138.72, 15.40]),
    ("writeback", "bcache", [0.95, 1.76, 106.82, 11.85]),
    ("writeback", "dm-cache", [0.58, 0.55, 193.76, 21.52]),
];
const BARE_DISK: [f64; 4] = [6.22, 27.23, 13.51, 1.49];
const BARE_SSD: [f64; 4] = [0.47, 0.42, 235.87, 26.21];

pub(super) fn report() -> Report {
    let metrics = [
        Metric::ReadMibPerSecond,
        Metric::WriteMibPerSecond,
        Metric::ReadMeanMs,
        Metric::WriteMeanMs,
    ];
    let places = [2, 3, 0, 1];
    let mut published = Vec::new();
    for experiment in ["writeback", "writethrough"] {
        for (metric, place) in metrics.into_iter().zip(places) {
            let mut values = vec![(DISK, BARE_DISK[place]), (SSD, BARE_SSD[place])];
            let systems = ROWS.iter().filter(|(of, ..)| *of == experiment);
            values.extend(systems.map(|(_, system, numbers)| (*system, numbers[place])));
            published.push(Published::new(experiment, metric, &values));
        }
    }
    Report {
        number: "000",
        title: "EnhanceIO, bcache and dm-cache, 90 % reads, zipf 1.2",
        published,
        goal,
        cautions: &[
            "The file is as large as the cache device: nobody can hold all of it.",
            "The report says that EnhanceIO and bcache acknowledge when data and metadata are on \
             the SSD, and that dm-cache may lose some recent writes: compare them with `strict` \
             and with `flush`. (bcache waits for its journal only if the request asks for it, and \
             EnhanceIO never flushes the SSD's write cache; `strict` here does.)",
            "dm-cache had blocks of 256 KiB. A log writes blocks whole, so Forebay keeps 4 KiB.",
            "Each row ends after 300 s or after 20 GB for each job, whichever comes first.",
        ],
    }
}

fn goal(published: &Published, measurement: &Measurement) -> Option<f64> {
    let config = measurement.config.as_str();
    match (published.metric, config) {
        (Metric::ReadMibPerSecond, "forebay/writeback") => Some(1.0),
        (Metric::ReadMibPerSecond, "forebay/writeback strict") => Some(0.9),
        (Metric::WriteMeanMs, "forebay/writeback") => Some(1.0),
        (Metric::ReadMibPerSecond, "forebay/writethrough") => {
            published.best_share().map(|(_, share)| share)
        }
        _ => None,
    }
}

fn settings(mode: Mode, durability: Durability, dirty: Option<(u8, u8)>) -> Settings {
    let mut settings = Settings { mode, durability, sequential_cutoff: 0, ..Settings::default() };
    settings.policy = ReplacementKind::Lru;
    if let Some((high, low)) = dirty {
        (settings.dirty_high, settings.dirty_low) = (high, low);
    }
    settings
}

fn configs() -> Vec<Config> {
    use Durability::{Flush, Strict};
    use Mode::{Writeback, Writethrough};
    let config = |name, system, settings, note| Config { name, system, settings, note };
    vec![
        config(
            "forebay/writeback",
            None,
            settings(Writeback, Flush, None),
            Some(
                "Above the bare SSD because what is written often is also read often here, and is read \
                 from the log's buffers in RAM.",
            ),
        ),
        config("forebay/writeback strict", None, settings(Writeback, Strict, None), None),
        config(
            "forebay as enhanceio",
            Some("enhanceio"),
            settings(Writeback, Strict, Some((30, 10))),
            Some("Writeback from 30 % of dirty blocks on, down to 10 %."),
        ),
        config(
            "forebay as bcache",
            Some("bcache"),
            settings(Writeback, Strict, Some((10, 9))),
            Some("Writeback from 10 % of dirty blocks on."),
        ),
        config(
            "forebay as dm-cache",
            Some("dm-cache"),
            settings(Writeback, Flush, Some((100, 75))),
            Some("Writeback when nothing else happens, or when the cache is full."),
        ),
        config(
            "forebay/writethrough",
            None,
            settings(Writethrough, Flush, None),
            Some(
                "Bound: a tenth of the requests are writes, and each is an operation of the disk, \
                 which does about 1,175 of them per second with all 32 under way: 11,750 requests, \
                 a share of .175, if no read missed and the disk were never synced.",
            ),
        ),
        config(
            "forebay/writethrough strict",
            None,
            settings(Writethrough, Strict, None),
            Some("Every write waits for a sync of the disk, which empties its queue."),
        ),
    ]
}

fn workload(zipf: std::sync::Arc<Zipf>) -> Workload {
    Workload { shape: Shape::Zipf(zipf), start: 0, span: FILE, len: 4096, writes: 10, depth: 32 }
}

fn zipf() -> std::sync::Arc<Zipf> {
    Zipf::new((FILE / 4096) as u32)
}

fn span() -> Span {
    Span { requests: Some(REQUESTS), ..Span::seconds(SECONDS) }
}

fn raw(context: &Context) -> LabResult<Vec<Measurement>> {
    let zipf = zipf();
    let mut measurements = Vec::new();
    for (server, timing) in [
        (Server::Hdd, Timing::cached_disk(disk(), DISK_BYTES)),
        (Server::Ssd, Timing::affine(ssd())),
    ] {
        let warm = Span { warm_up: 10.0, ..span() };
        let found = context.raw(timing, "mix", workload(zipf.clone()), warm)?;
        for experiment in ["writeback", "writethrough"] {
            measurements.push(Measurement::of_model(server, experiment, vec![found.clone()]));
        }
    }
    Ok(measurements)
}

/// The same load on an empty cache: how long until it is warm.
fn cold() -> Config {
    Config {
        name: "forebay/writeback cold",
        system: None,
        settings: settings(Mode::Writeback, Durability::Flush, None),
        note: Some("Begins with an empty cache, to show how it warms up; 120 s."),
    }
}

fn cached(context: &Context, config: &Config, cold: bool) -> LabResult<Vec<Measurement>> {
    let mut world = World::new(Plan {
        ssd: VirtualDevice::cache(SSD_BYTES, Timing::affine(ssd())),
        disk: VirtualDevice::origin(DISK_BYTES, Timing::cached_disk(disk(), DISK_BYTES)),
        settings: config.settings.clone(),
        block: BlockSize::DEFAULT,
        segment_bytes: None,
        seed: context.seed,
        never_full: false,
    })?;
    let span = if cold {
        Span::seconds(COLD_SECONDS)
    } else {
        world.prefetch(0..FILE / 10 * 9)?;
        span()
    };
    let found = context.volume(&mut world, "mix", 0, workload(zipf()), span)?;
    let writes_through = config.settings.mode == Mode::Writethrough;
    let experiment = if writes_through { "writethrough" } else { "writeback" };
    Ok(vec![Measurement::of_volume(config, experiment, vec![found])])
}

pub(super) fn jobs() -> Vec<Job> {
    let mut jobs = vec![Job::new("000", "bare models", 6.0, raw)];
    for config in configs() {
        let through = config.settings.mode == Mode::Writethrough;
        let weight = if through { 15.0 } else { 40.0 };
        let name = config.name;
        jobs.push(Job::new("000", name, weight, move |context| cached(context, &config, false)));
    }
    jobs.push(Job::new("000", "cold", 20.0, |context| cached(context, &cold(), true)));
    jobs
}
