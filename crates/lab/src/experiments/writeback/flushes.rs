//! Cost of a flush after each write: random writes within a GiB, each followed by a flush, on a
//! bare device, on a cache in mode writeback on such a device, and on a cache in mode writethrough
//! in front of such a device.

use forebay_core::Mode;
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use serde::Serialize;

use crate::error::LabResult;
use crate::output::Row;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::{Span, run};
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::flushed::{Flush, Flushed};
use crate::virtual_time::raw::Raw;
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

const BLOCK: u64 = 4096;
const DISK: u64 = 2_000_000_000_000 / BLOCK * BLOCK;
const RANGE: u64 = 1 << 30;
const SSD: u64 = 4 << 30;
pub(super) const SECONDS: f64 = 40.0;
const DEPTHS: [usize; 2] = [1, 32];

/// Devices, and the modes of a cache that are measured on each; none is the bare device.
const SERVED: [(ModelKind, &[Option<Mode>]); 3] = [
    (ModelKind::SataSsd, &[None, Some(Mode::Writeback), Some(Mode::Writethrough)]),
    (ModelKind::PcieSsd, &[None, Some(Mode::Writeback), Some(Mode::Writethrough)]),
    (ModelKind::Hdd7200, &[None, Some(Mode::Writethrough)]),
];

/// One row to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    device: ModelKind,
    mode: Option<Mode>,
    pub(super) depth: usize,
}

pub(super) fn jobs() -> Vec<Job> {
    let loads = SERVED.iter().flat_map(|served| DEPTHS.map(|depth| (served, depth)));
    let of = |((device, modes), depth): (&(ModelKind, &'static [Option<Mode>]), usize)| {
        let device = *device;
        modes.iter().map(move |mode| Job { device, mode: *mode, depth })
    };
    loads.flat_map(of).collect()
}

#[derive(Serialize)]
pub(super) struct Flushing {
    device: &'static str,
    /// Mode of the cache; none for the bare device.
    mode: Option<&'static str>,
    depth: usize,
    /// Writes with their flushes.
    per_second: f64,
    /// Rate as a multiple of the bare device's.
    of_bare: f64,
    /// Latency of the flushes alone.
    flush_mean_us: f64,
    flush_p99_us: f64,
    flush_of_bare: f64,
    /// Latency of a write with its flush.
    mean_us: f64,
    p99_us: f64,
    ssd_bytes_per_byte: f64,
}

impl Row for Flushing {
    const COLUMNS: &'static str = "DEVICE=device | CACHE=mode | UNDER WAY=depth | WRITES/s=per_second:0 | \
        OF BARE=of_bare:2 | FLUSH us=flush_mean_us:0 | p99 us=flush_p99_us:0 | \
        OF BARE=flush_of_bare:2 | BOTH us=mean_us:0 | p99 us=p99_us:0 | \
        SSD B/B=ssd_bytes_per_byte:2";
}

impl Flushing {
    /// Relates each row to the last one of a bare device.
    pub(super) fn relate(rows: &mut [Flushing]) {
        let (mut rate, mut flush) = (f64::NAN, f64::NAN);
        for row in rows {
            if row.mode.is_none() {
                (rate, flush) = (row.per_second, row.flush_mean_us);
            }
            row.of_bare = row.per_second / rate;
            row.flush_of_bare = row.flush_mean_us / flush;
        }
    }
}

/// Measures one row.
pub(super) fn measure(job: &Job, costs: CpuCosts, seconds: f64, seed: u64) -> LabResult<Flushing> {
    let of = |size, kind| (size, Timing::model(kind, size));
    let Some(mode) = job.mode else {
        let size = if job.device == ModelKind::Hdd7200 { DISK } else { SSD };
        return row(job, &mut Raw::new(of(size, job.device).1), Cpu::none(), seconds, seed);
    };
    let settings = Settings { mode, ..Settings::default() };
    let (cache, origin) = match (mode, job.device) {
        (Mode::Writeback, ssd) => (of(SSD, ssd), of(DISK, ModelKind::Hdd7200)),
        (_, ModelKind::Hdd7200) => (of(SSD, ModelKind::SataSsd), of(DISK, ModelKind::Hdd7200)),
        (_, ssd) => (of(SSD, ssd), of(SSD, ssd)),
    };
    let mut world = World::new(Plan::new(cache, origin, settings, seed))?;
    row(job, &mut world, Cpu::new(costs), seconds, seed)
}

fn row<S: Flush>(
    job: &Job,
    server: &mut S,
    cpu: Cpu,
    seconds: f64,
    seed: u64,
) -> LabResult<Flushing> {
    let (shape, depth) = (Shape::Random, job.depth);
    let load = Workload { shape, start: 0, span: RANGE, len: BLOCK, writes: 100, depth };
    let span = Span { warm_up: seconds / 10.0, ..Span::seconds(seconds) };
    let mut flushed = Flushed::new(server, depth);
    let found = run(&mut flushed, cpu, load, seed, span)?;
    let flushes = flushed.flushes;
    let written = match job.mode {
        Some(_) => found.gauges.ssd_written,
        None => found.gauges.disk_written,
    };
    Ok(Flushing {
        device: job.device.as_str(),
        mode: job.mode.map(Mode::name),
        depth,
        per_second: found.writes.requests as f64 / found.seconds,
        of_bare: f64::NAN,
        flush_mean_us: flushes.mean() / 1e3,
        flush_p99_us: flushes.latencies.quantile(0.99) / 1e3,
        flush_of_bare: f64::NAN,
        mean_us: found.writes.mean() / 1e3,
        p99_us: found.writes.latencies.quantile(0.99) / 1e3,
        ssd_bytes_per_byte: written as f64 / found.writes.bytes.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test checks relations, not times.
    #[test]
    fn flushes_of_many_clients_share_a_commit_and_its_header() {
        let rows =
            jobs().into_iter().map(|job| measure(&job, CpuCosts::default(), 0.2, 1).expect("runs"));
        let mut rows: Vec<Flushing> = rows.collect();
        Flushing::relate(&mut rows);
        for row in &rows {
            assert!(row.flush_mean_us > 0.0 && row.flush_mean_us < row.mean_us, "{}", row.device);
            let (least, most) = match (row.mode, row.depth) {
                (None, _) => (0.99, 1.01),
                (Some("writeback"), 1) => (2.0, 2.2),
                // No flush ends a record.
                (Some("writethrough"), 1) => (1.0, 1.2),
                (Some(_), _) => (1.0, 1.5),
            };
            let bytes = row.ssd_bytes_per_byte;
            // A disk writes too few blocks in this time to fill a record.
            let few = row.device == ModelKind::Hdd7200.as_str();
            assert!(few || (least..most).contains(&bytes), "{} {} {bytes}", row.device, row.depth);
            if (row.mode, row.depth) == (Some("writethrough"), 1) {
                let flush = row.flush_of_bare;
                assert!((0.99..1.01).contains(&flush), "the origin's alone: {flush}");
            }
        }
    }
}
