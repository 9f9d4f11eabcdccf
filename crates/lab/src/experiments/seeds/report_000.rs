//! EnhanceIO, bcache and dm-cache, 90 % reads of a zipf distribution, fio (2013).
//!
//! fio: libaio, direct, 4 KiB, four jobs of depth 8, zipf 1.2 over a file of 20 GB; before that 90
//! % of the file are read sequentially. The disk has 100 GB, the cache device 20 GB. No device is
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

use std::sync::{Arc, LazyLock};

use forebay_core::Mode;

use crate::error::LabResult;
use crate::virtual_time::access::{Shape, Workload, Zipf};
use crate::virtual_time::clients::Span;
use crate::virtual_time::timing::{Affine, CachedDisk, Link, Timing};
use crate::virtual_time::world::{Plan, World};

use super::measure::{Context, Job, Measurement};
use super::published::{Config, Report, Server};

const GIB: u64 = 1 << 30;
const DISK_BYTES: u64 = 100 * GIB;
const SSD_BYTES: u64 = 20 * GIB;
const FILE: u64 = 20 * GIB;

/// Four jobs of 20 GB each, at the speed of the bare SSD. A quarter of that is run.
const SECONDS: f64 = 300.0;
const COLD_SECONDS: f64 = 120.0;
const REQUESTS: u64 = FILE / 4096;

fn disk() -> Timing {
    let disk = CachedDisk { speed: 5.05, cached_blocks: 1060, hit: 100_000 };
    Timing::cached_disk(disk, DISK_BYTES)
}

fn ssd() -> Timing {
    let total = (235.87 + 26.21) * 256.0;
    let per_byte = 1e9 / 280e6;
    let overhead = 1e9 / total - 4096.0 * per_byte;
    let link = |latency| Link { overhead, per_byte, latency };
    Timing::affine(Affine {
        read: link(90_000.0),
        write: link(40_000.0),
        shared: true,
        sync: 200_000,
    })
}

pub(super) fn report() -> LabResult<Report> {
    Report::parse(include_str!("../../../published/000.toml"))
}

fn workload() -> Workload {
    Workload {
        shape: Shape::Zipf(ZIPF.clone()),
        start: 0,
        span: FILE,
        len: 4096,
        writes: 10,
        depth: 32,
    }
}

/// The distribution of every run, which takes seconds to compute.
static ZIPF: LazyLock<Arc<Zipf>> = LazyLock::new(|| Zipf::new((FILE / 4096) as u32));

fn span() -> Span {
    Span { requests: Some(REQUESTS), ..Span::seconds(SECONDS) }
}

fn raw(context: &Context) -> LabResult<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (server, timing) in [(Server::Hdd, disk()), (Server::Ssd, ssd())] {
        let warm = Span { warm_up: 10.0, ..span() };
        let found = context.raw(timing, "mix", workload(), warm)?;
        for experiment in ["writeback", "writethrough"] {
            measurements.push(Measurement::of_model(server, experiment, vec![found.clone()]));
        }
    }
    Ok(measurements)
}

fn cached(context: &Context, config: &Config, cold: bool) -> LabResult<Vec<Measurement>> {
    let (ssd, disk) = ((SSD_BYTES, ssd()), (DISK_BYTES, disk()));
    let mut world = World::new(Plan::new(ssd, disk, config.settings.clone(), context.seed))?;
    let span = if cold {
        Span::seconds(COLD_SECONDS)
    } else {
        world.warm(0..FILE / 10 * 9)?;
        span()
    };
    let found = context.volume(&mut world, "mix", 0, workload(), span)?;
    Ok(vec![Measurement::of_volume(config, config.settings.mode.name(), vec![found])])
}

pub(super) fn jobs(report: &Arc<Report>) -> Vec<Job> {
    let mut jobs = vec![Job::new("000", "bare models", 6.0, raw)];
    for config in report.configs.clone() {
        let (name, weight, cold) = match config.settings.mode {
            Mode::Writethrough => (config.name.clone(), 15.0, false),
            _ if config.name.ends_with("cold") => ("cold".to_owned(), 20.0, true),
            _ => (config.name.clone(), 40.0, false),
        };
        jobs.push(Job::new("000", name, weight, move |context| cached(context, &config, cold)));
    }
    jobs
}
