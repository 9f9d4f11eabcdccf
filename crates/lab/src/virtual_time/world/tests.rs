//! Tests of the world.

use forebay_core::{Durability, Mode};
use forebay_device::model::ModelKind;

use super::*;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::{Span, run};
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::tally::Found;

const SSD: u64 = 512 << 20;
const COSTS: CpuCosts = CpuCosts { cpu_read: 770, cpu_write: 1330, cpu_front: 1250, cpu_more: 400 };

fn world(settings: Settings) -> World {
    let ssd = (SSD, Timing::model(ModelKind::SataSsd, SSD));
    let disk = (1 << 30, Timing::model(ModelKind::Hdd7200, 1 << 30));
    let plan = Plan::new(ssd, disk, settings, 1);
    World::new(plan).expect("a cache")
}

fn mix(world: &mut World, len: u64, writes: u32, seed: u64) -> Found {
    let span = (256 << 20) / len * len;
    let workload = Workload { shape: Shape::Random, start: 0, span, len, writes, depth: 32 };
    run(world, Cpu::new(COSTS), workload, seed, Span::seconds(1.0)).expect("runs")
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_does_not() {
    for len in [4096, 512, 20_480] {
        let found = |seed| {
            let found = mix(&mut world(Settings::default()), len, 30, seed);
            let latencies = found.latencies().buckets();
            (found.requests(), found.gauges.disk_busy, found.series.len(), latencies)
        };
        assert_eq!(found(1), found(1), "{len}");
        assert_ne!(found(1), found(2), "{len}");
    }
}

#[test]
fn writes_are_as_fast_as_the_log_can_be_written() {
    let found = mix(&mut world(Settings::default()), 4096, 100, 1);
    let record = 11.14e-6 + 127.0 * 4096.0 / 271.09e6;
    let expected = 126.0 / record;
    // The first ones fill the log's buffers in RAM, 24 MiB of them.
    let found = found.writes.requests as f64;
    assert!(found > expected && found < expected + 7000.0, "{found}, not {expected}");
}

#[test]
fn prefetched_blocks_are_read_at_the_speed_of_the_ssd() {
    let mut world = world(Settings::default());
    world.warm(0..256 << 20).expect("prefetched");
    let found = mix(&mut world, 4096, 0, 1);
    assert_eq!(found.gauges.hit_ratio(), Some(1.0));
    let rate = found.reads.requests as f64 / found.seconds;
    assert!((rate / 49_687.0 - 1.0).abs() < 0.01, "{rate}");
}

#[test]
fn strict_writes_wait_for_the_ssd() {
    let settings = Settings { durability: Durability::Strict, ..Settings::default() };
    let found = mix(&mut world(settings), 4096, 100, 1);
    // Record and sync follow each other.
    assert!(found.writes.mean() > 250_000.0, "{} ns", found.writes.mean());
}

#[test]
fn deferred_writes_take_cpu_time_only_and_end_on_the_disk() {
    let settings = Settings {
        durability: Durability::Deferred,
        mode: Mode::Passthrough,
        ram: 64 << 20,
        ..Settings::default()
    };
    let mut world = world(settings);
    let (len, span) = (4096, 16 << 20);
    let workload = Workload { shape: Shape::Random, start: 0, span, len, writes: 100, depth: 1 };
    let started = world.now();
    let found = run(&mut world, Cpu::new(COSTS), workload, 1, Span::seconds(1.0)).expect("runs");
    let expected = 1e9 / (COSTS.cpu_write + COSTS.cpu_front) as f64;
    let rate = found.writes.requests as f64 / found.seconds;
    assert!((rate / expected - 1.0).abs() < 0.01, "{rate}, not {expected}");
    assert_eq!((found.gauges.dirty_bytes, world.gauges().disk_written), (span, 0));
    world.flush().expect("flushed");
    assert_eq!((world.gauges().dirty_bytes, world.gauges().disk_written), (0, span));
    assert!(world.now().since(started) > Duration::from_millis(1100), "writing down takes time");
}

#[test]
fn hits_in_ram_count_and_those_of_an_empty_cache_do_not() {
    let settings = Settings { mode: Mode::Passthrough, ram: 64 << 20, ..Settings::default() };
    let mut world = world(settings);
    let (len, span) = (4096, 16 << 20);
    let load = |shape, depth| Workload { shape, start: 0, span, len, writes: 0, depth };
    let all = Span::requests(span / len);
    let first = run(&mut world, Cpu::none(), load(Shape::Sequential, 32), 1, all).expect("runs");
    assert_eq!(first.gauges.hit_ratio(), Some(0.0));
    let again = run(&mut world, Cpu::new(COSTS), load(Shape::Random, 1), 1, all).expect("runs");
    assert_eq!(again.gauges.hit_ratio(), Some(1.0));
    assert_eq!(again.reads.mean(), (COSTS.cpu_read + COSTS.cpu_front) as f64);
    assert!(world.look(forebay_core::Op::Read, 0, span).in_ram == span / len);
}
