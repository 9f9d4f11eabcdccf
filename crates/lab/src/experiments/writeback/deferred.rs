//! Gain of a RAM tier that defers writes on a disk: random writes within a GiB, on the bare
//! disk, on a cache on an SSD, and with the tier in front of either.
//!
//! Two rates: after a warm-up, and from the start until everything is durable: on the disk, or,
//! with a cache, on the SSD, as its users rely on that.

use forebay_core::{Durability, Mode};
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use serde::Serialize;

use crate::error::LabResult;
use crate::output::Row;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::{Server, Span, run};
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::raw::Raw;
use crate::virtual_time::tally::Found;
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

const BLOCK: u64 = 4096;
const DISK: u64 = 2_000_000_000_000 / BLOCK * BLOCK;
const RANGE: u64 = 1 << 30;
const SSD: u64 = 4 << 30;
/// Below a tier without a cache: nothing is written to it.
const EMPTY_CACHE: u64 = 32 << 20;
/// The time for which writes are deferred, and as long again.
const SECONDS: f64 = 10.0;
const DEPTHS: [usize; 2] = [1, 32];

/// Layers in front of the disk.
#[derive(Clone, Copy, Debug)]
struct Stack {
    name: &'static str,
    ssd: bool,
    /// Size of the RAM tier in percent of the range.
    ram: u64,
}

const STACKS: [Stack; 5] = [
    Stack { name: "bare disk", ssd: false, ram: 0 },
    Stack { name: "SSD", ssd: true, ram: 0 },
    Stack { name: "RAM 1G", ssd: false, ram: 100 },
    Stack { name: "RAM 2G", ssd: false, ram: 200 },
    Stack { name: "RAM 1G, SSD", ssd: true, ram: 100 },
];

/// One row to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    stack: Stack,
    pub(super) depth: usize,
    range: u64,
    seconds: f64,
}

pub(super) fn jobs() -> Vec<Job> {
    let of = |depth| STACKS.map(|stack| Job { stack, depth, range: RANGE, seconds: SECONDS });
    DEPTHS.into_iter().flat_map(of).collect()
}

#[derive(Serialize)]
pub(super) struct Deferred {
    stack: &'static str,
    depth: usize,
    writes_per_second: f64,
    /// Rate as a multiple of the bare disk's.
    times_disk: f64,
    /// Rate from the start until everything is durable.
    durable_per_second: f64,
    durable_times_disk: f64,
    mean_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Row for Deferred {
    const COLUMNS: &'static str = "STACK=stack | UNDER WAY=depth | WRITES/s=writes_per_second:0 | x DISK=times_disk:1 | \
        UNTIL DURABLE=durable_per_second:0 | x DISK=durable_times_disk:1 | MEAN us=mean_us:1 | \
        p99 us=p99_us:1 | MAX us=max_us:1";
}

impl Deferred {
    /// Relates the rates to those of the bare disk at the same depth, which is among `rows`.
    pub(super) fn relate(rows: &mut [Deferred]) {
        for depth in DEPTHS {
            let bare = rows.iter().find(|row| row.depth == depth);
            let bare = bare.map_or(f64::NAN, |row| row.writes_per_second);
            for row in rows.iter_mut().filter(|row| row.depth == depth) {
                row.times_disk = row.writes_per_second / bare;
                row.durable_times_disk = row.durable_per_second / bare;
            }
        }
    }
}

fn world(job: &Job, seed: u64) -> LabResult<World> {
    let Stack { ssd, ram, .. } = job.stack;
    let mode = if ssd { Mode::Writeback } else { Mode::Passthrough };
    let durability = if ram > 0 { Durability::Deferred } else { Durability::Flush };
    let ram = job.range * ram / 100;
    let settings = Settings { sequential_cutoff: 0, mode, durability, ram, ..Settings::default() };
    let cache = if ssd { SSD } else { EMPTY_CACHE };
    World::new(Plan::new(
        (cache, Timing::model(ModelKind::SataSsd, cache)),
        (DISK, Timing::model(ModelKind::Hdd7200, DISK)),
        settings,
        seed,
    ))
}

/// One row.
pub(super) fn measure(job: &Job, costs: CpuCosts, seed: u64) -> LabResult<Deferred> {
    let (shape, span, depth) = (Shape::Random, job.range, job.depth);
    let load = Workload { shape, start: 0, span, len: BLOCK, writes: 100, depth };
    let time = Span { warm_up: 2.0 * job.seconds, ..Span::seconds(2.0 * job.seconds) };
    let (found, seconds): (Found, f64) = if job.stack.ssd || job.stack.ram > 0 {
        let mut world = world(job, seed)?;
        let started = world.now();
        let found = run(&mut world, Cpu::new(costs), load, seed, time)?;
        world.flush()?;
        (found, world.now().since(started).as_secs_f64())
    } else {
        let mut disk = Raw::new(Timing::model(ModelKind::Hdd7200, DISK));
        let found = run(&mut disk, Cpu::none(), load, seed, time)?;
        let seconds = disk.now().0 as f64 / 1e9;
        (found, seconds)
    };
    let latency = |share| found.writes.latencies.quantile(share) / 1e3;
    let all = found.writes.requests + found.unmeasured_bytes / BLOCK;
    Ok(Deferred {
        stack: job.stack.name,
        depth,
        writes_per_second: found.writes.requests as f64 / found.seconds,
        times_disk: f64::NAN,
        durable_per_second: all as f64 / seconds,
        durable_times_disk: f64::NAN,
        mean_us: found.writes.mean() / 1e3,
        p99_us: latency(0.99),
        max_us: latency(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test checks relations, not times.
    #[test]
    fn ram_writes_take_cpu_time_only_and_the_disk_gets_a_block_once() {
        let costs = CpuCosts::default();
        let small = |job: Job| Job { range: 64 << 20, seconds: 1.0, ..job };
        let jobs = jobs().into_iter().filter(|job| job.depth == 1).map(small);
        let rows = jobs.map(|job| measure(&job, costs, 1).expect("runs"));
        let mut rows: Vec<Deferred> = rows.collect();
        Deferred::relate(&mut rows);
        let [bare, ssd, _, ram, both] = rows.as_slice() else { panic!("five stacks") };
        assert!((bare.times_disk - 1.0).abs() < 1e-9 && ssd.times_disk > 10.0);
        let cpu = 1e9 / (costs.cpu_write + costs.cpu_front) as f64;
        assert!((ram.writes_per_second / cpu - 1.0).abs() < 0.01, "{}", ram.writes_per_second);
        // Two million writes to 16 thousand blocks.
        assert!(ram.durable_times_disk > 100.0, "{}", ram.durable_times_disk);
        assert!(both.durable_per_second > ssd.durable_per_second);
    }
}
