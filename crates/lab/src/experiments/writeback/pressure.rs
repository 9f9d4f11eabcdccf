//! Latencies of clients when a cache is full of dirty blocks and they write faster than the disk
//! can take.
//!
//! Clients write random blocks in a closed loop until the cache is full, and for a while longer, so
//! that a steady state is reached; then latencies are measured. The disk alone decides how many
//! writes there are in a second, so each client waits; all should wait about equally long, and none
//! until a whole segment is empty.

use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use serde::Serialize;

use crate::error::LabResult;
use crate::output::{Goal, Row};
use crate::virtual_time::access::{Shape, Workload, Zipf};
use crate::virtual_time::clients::{Span, run};
use crate::virtual_time::cpu::Cpu;
use crate::virtual_time::cpu::CpuCosts;
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

const BLOCK: u64 = 4096;
const DISK: u64 = 2_000_000_000_000 / BLOCK * BLOCK;

/// Bytes of the cache device, and of the range that clients use.
const SSD: u64 = 1 << 30;
const RANGE: u64 = 20 << 30;

/// Virtual seconds before anything is measured. The SSD fills the cache within ten.
const WARM_UP: f64 = 300.0;

/// p99 by median, where all writes are alike.
const GOAL: f64 = 3.0;

/// Parameters of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) depth: usize,
    name: &'static str,
    zipf: bool,
    reads: u32,
    ssd: u64,
    range: u64,
    warm_up: f64,
}

impl Job {
    fn new(depth: usize, name: &'static str, zipf: bool, reads: u32) -> Self {
        Job { depth, name, zipf, reads, ssd: SSD, range: RANGE, warm_up: WARM_UP }
    }
}

/// Uniform writes at every depth; at the depth of a busy server also what is popular, and reads.
pub(super) fn jobs(depths: &[usize]) -> Vec<Job> {
    let uniform = depths.iter().map(|depth| Job::new(*depth, "uniform", false, 0));
    let busy = depths.iter().copied().find(|depth| *depth >= 32).into_iter().flat_map(|depth| {
        [Job::new(depth, "zipf 1.2", true, 0), Job::new(depth, "uniform, 30 % reads", false, 30)]
    });
    uniform.chain(busy).collect()
}

#[derive(Serialize)]
pub(super) struct Pressed {
    clients: &'static str,
    depth: usize,
    writes_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    ratio: f64,
    max_ratio: f64,
    /// Set if all writes are alike: most popular blocks are dirty already and are overwritten at
    /// once.
    pub(super) goal: Option<Goal>,
    reads_per_second: f64,
    read_mean_ms: f64,
    dirty_share: f64,
    disk_busy: f64,
    ssd_bytes_per_user_byte: f64,
}

impl Row for Pressed {
    const COLUMNS: &'static str = "CLIENTS=clients | UNDER WAY=depth | WRITES/s=writes_per_second:0 | p50 ms=p50_ms:2 | \
        p99 ms=p99_ms:2 | MAX ms=max_ms:2 | p99/p50=ratio:2 | MAX/p50=max_ratio:2 | \
        GOAL=goal:<=0 | READS/s=reads_per_second:0 | MEAN ms=read_mean_ms:1 | \
        DIRTY=dirty_share:0% | DISK BUSY=disk_busy:0% | SSD B/B=ssd_bytes_per_user_byte:2";
}

/// One row.
pub(super) fn measure(job: &Job, costs: CpuCosts, seconds: f64, seed: u64) -> LabResult<Pressed> {
    let mut world = World::new(Plan::new(
        (job.ssd, Timing::model(ModelKind::SataSsd, job.ssd)),
        (DISK, Timing::model(ModelKind::Hdd7200, DISK)),
        Settings { sequential_cutoff: 0, ..Settings::default() },
        seed,
    ))?;
    let shape =
        if job.zipf { Shape::Zipf(Zipf::new((job.range / BLOCK) as u32)) } else { Shape::Random };
    let load = Workload {
        shape,
        start: 0,
        span: job.range,
        len: BLOCK,
        writes: 100 - job.reads,
        depth: job.depth,
    };
    let span = Span { warm_up: job.warm_up, ..Span::seconds(seconds) };
    let found = run(&mut world, Cpu::new(costs), load, seed, span)?;
    let latency = |share| found.writes.latencies.quantile(share) / 1e6;
    let by_median = |share| latency(share) / latency(0.5).max(1e-9);
    let ratio = by_median(0.99);
    Ok(Pressed {
        clients: job.name,
        depth: job.depth,
        writes_per_second: found.writes.requests as f64 / found.seconds,
        p50_ms: latency(0.5),
        p99_ms: latency(0.99),
        max_ms: latency(1.0),
        ratio,
        max_ratio: by_median(1.0),
        goal: (!job.zipf && job.reads == 0).then(|| Goal::at_most(GOAL, ratio)),
        reads_per_second: found.reads.requests as f64 / found.seconds,
        read_mean_ms: found.reads.mean() / 1e6,
        dirty_share: found.gauges.dirty_bytes as f64 / world.capacity_bytes() as f64,
        disk_busy: found.gauges.disk_busy.0 as f64 / 1e9 / found.seconds,
        ssd_bytes_per_user_byte: found.gauges.ssd_written as f64 / found.writes.bytes.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test checks relations, not times: no client waits for a whole segment, and the cache has
    /// room for all dirty blocks.
    #[test]
    fn a_full_dirty_cache_makes_all_wait_alike() {
        let costs = CpuCosts::default();
        for depth in [1, 32] {
            let small = Job {
                ssd: 256 << 20,
                range: 2 << 30,
                warm_up: 60.0,
                ..Job::new(depth, "uniform", false, 0)
            };
            let row = measure(&small, costs, 60.0, 1).expect("runs");
            assert!(row.ratio < 3.0 && row.max_ratio < 6.0, "{} {}", row.ratio, row.max_ratio);
            assert!((0.5..0.9).contains(&row.dirty_share), "{}", row.dirty_share);
            assert!(row.disk_busy > 0.95, "{}", row.disk_busy);
        }
    }
}
