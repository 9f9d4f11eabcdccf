//! dm-writeboost and bcache, random writes of 4 KiB, fio, 15 s (2013).
//!
//! fio: libaio, direct, random writes, jobs x depth of 1x4, 1x32, 4x4 and 4x32. The SSD is a
//! Samsung 840 Pro of 256 GB, modelled by one link that fits the report's two measurements of it
//! exactly: 201.1 MiB/s with 4 KiB and 268.3 MiB/s with 512 KiB, four jobs of depth 32. Its latency
//! (40 us) and the time of a sync (200 us, alone on the link) are those of the SATA model, as no
//! measurement is behind them. The disk is the 7,200 rpm model; the cache never fills.
//!
//! The rows on a RAM device are limited by software, so virtual time cannot say anything of them.

use std::sync::Arc;

use forebay_core::Durability;
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
const SSD_BYTES: u64 = 256 * GB / 4096 * 4096;
const MIB: f64 = 1_048_576.0;
const SECONDS: f64 = 15.0;

const SMALL: f64 = 201.1;
const LARGE: f64 = 268.3;
/// The experiment that holds the SSD's sequential maximum.
const MAXIMUM: &str = "file/ssd 4x32 512k";

/// Jobs, and the depth of each.
const LOADS: [(usize, usize); 4] = [(1, 4), (1, 32), (4, 4), (4, 32)];

/// The link that takes these times for 4 KiB and for 512 KiB.
fn ssd() -> Affine {
    let (small, large) = (4096.0 * 1e9 / (SMALL * MIB), 524_288.0 * 1e9 / (LARGE * MIB));
    let per_byte = (large - small) / (524_288.0 - 4096.0);
    let overhead = small - per_byte * 4096.0;
    let write = Link { overhead, per_byte, latency: 40_000.0 };
    // Reads do not matter here.
    Affine { read: write, write, shared: true, sync: 200_000 }
}

pub(super) fn report() -> LabResult<Report> {
    Report::parse(include_str!("../../../published/003.toml"))
}

/// Share of the SSD's maximum if `depth` writes at a time wait for one commit: header, payload,
/// latency and sync follow each other.
fn one_commit_share(depth: usize) -> f64 {
    let ssd = ssd();
    let blocks = depth as f64;
    let records = (blocks / 126.0).ceil();
    let bytes = (blocks + records) * 4096.0;
    let time = records * ssd.write.overhead
        + bytes * ssd.write.per_byte
        + ssd.write.latency
        + ssd.sync as f64;
    blocks * 4096.0 * 1e9 / time / MIB / LARGE
}

/// Share of the SSD's maximum if its link never rests, with so many blocks for each header.
fn busy_link_share(blocks: u64) -> f64 {
    let write = ssd().write;
    let time = write.overhead + (blocks + 1) as f64 * 4096.0 * write.per_byte;
    blocks as f64 * 4096.0 * 1e9 / time / MIB / LARGE
}

fn workload(shape: Shape, len: u64, depth: usize) -> Workload {
    Workload { shape, start: 0, span: DISK_BYTES / len * len, len, writes: 100, depth }
}

fn raw(context: &Context) -> LabResult<Vec<Measurement>> {
    let mut measurements = Vec::new();
    let mut run = |server, timing: Timing, experiment: &str, len, depth| {
        let work = workload(Shape::Random, len, depth);
        let found = context.raw(timing, experiment, work, Span::seconds(SECONDS))?;
        measurements.push(Measurement::of_model(server, experiment, vec![found]));
        LabResult::Ok(())
    };
    let affine = || Timing::affine(ssd());
    run(Server::Ssd, affine(), "file/ssd 4x32 4k", 4096, 128)?;
    run(Server::Ssd, affine(), MAXIMUM, 512 << 10, 128)?;
    for (jobs, depth) in LOADS {
        let name = format!("file/{jobs}x{depth}");
        let disk = Timing::model(ModelKind::Hdd7200, DISK_BYTES);
        run(Server::Hdd, disk, &name, 4096, jobs * depth)?;
        run(Server::Ssd, affine(), &name, 4096, jobs * depth)?;
    }
    Ok(measurements)
}

fn cached(context: &Context, config: &Config) -> LabResult<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (jobs, depth) in LOADS {
        let ssd = (SSD_BYTES, Timing::affine(ssd()));
        let disk = (DISK_BYTES, Timing::model(ModelKind::Hdd7200, DISK_BYTES));
        let plan = Plan::new(ssd, disk, config.settings.clone(), context.seed);
        let mut world = World::new(Plan { never_full: true, ..plan })?;
        let name = format!("file/{jobs}x{depth}");
        let work = workload(Shape::Random, 4096, jobs * depth);
        let found = context.volume(&mut world, &name, 0, work, Span::seconds(SECONDS))?;
        let mut measured = Measurement::of_volume(config, name, vec![found]);
        if config.settings.durability == Durability::Strict {
            measured.note = Some(format!(
                "If all {} writes under way waited for one commit, the share would be {:.3}; in commits \
                 of 16, each with a header, that follow each other without a gap, {:.3}.",
                jobs * depth,
                one_commit_share(jobs * depth),
                busy_link_share(16)
            ));
        } else {
            measurements.push(measured.also_as("forebay as dm-writeboost", "dm-writeboost"));
            measurements.push(measured.also_as("forebay as bcache", "bcache"));
        }
        measurements.push(measured);
    }
    Ok(measurements)
}

pub(super) fn jobs(report: &Arc<Report>) -> Vec<Job> {
    let mut jobs = vec![Job::new("003", "bare models", 1.0, raw)];
    for config in report.configs.clone() {
        let name = config.name.trim_start_matches("forebay/").to_owned();
        jobs.push(Job::new("003", name, 6.0, move |context| cached(context, &config)));
    }
    jobs
}
