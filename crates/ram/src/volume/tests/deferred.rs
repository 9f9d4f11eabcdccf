//! A tier that defers writes for some of the time.

use std::time::Duration;

use forebay_core::WriteDown;

use super::world::World;
use super::*;
use crate::write_down;

/// The last sectors are in a second region.
const SECTORS: u64 = 2048 + 48;
const HOT: [Range<u64>; 2] = [0..40, 2048 - 40..SECTORS];

const OPS: [Op; 12] = [
    Op::Read,
    Op::Read,
    Op::Read,
    Op::Write,
    Op::Write,
    Op::Write,
    Op::Write,
    Op::WriteZeroes,
    Op::Discard,
    Op::Flush,
    Op::Flush,
    Op::Prefetch,
];

fn deferral(world: &mut World) -> Deferral {
    let seconds = world.rng.choice([0, 1, 3, 20]).unwrap_or(0);
    Deferral {
        within: Duration::from_secs(seconds),
        mode: world.rng.choice(WriteDown::ALL.iter().copied()).unwrap_or_default(),
        share: world.rng.choice([1, 20, 50, 90, 100]).unwrap_or(1),
        ignore_flush: !world.heeds_flush,
    }
}

fn world(seed: u64) -> World {
    let mut world = World::new(seed, SECTORS, &HOT);
    if seed.is_multiple_of(16) {
        // Several shards.
        world.tier = Arc::new(
            Tier::new(TierOptions { seed, ..options(16 << 20, 512) }, world.clock.clone())
                .expect("memory"),
        );
        let volume =
            |lane: &Rc<Lane>| RamVolume::new(world.tier.clone(), world.disk.clone(), lane.clone());
        world.volumes = [volume(&world.lanes[0]), volume(&world.lanes[1])];
    }
    world.heeds_flush = !seed.is_multiple_of(10);
    world.disk.read_fails.set(world.rng.choice([0, 0, 10]).unwrap_or(0));
    world.disk.discards.set(world.rng.choice([0, 50, 100]).unwrap_or(0));
    world.disk.block.set(512 << world.rng.u32(0..4));
    let how = deferral(&mut world);
    world.tier.defer_writes(Some(how));
    let lane = world.lanes[0].clone();
    let task = write_down::keep(world.tier.clone(), world.disk.clone(), lane.clone());
    lane.spawn(task);
    world
}

/// Performs one random step.
fn step(world: &mut World, seed: u64) {
    match world.rng.u32(0..1000) {
        0..300 => world.ask(&OPS),
        300..310 => {
            let how = deferral(world);
            let defers = world.rng.bool();
            world.tier.defer_writes(defers.then_some(how));
        }
        310..315 => {
            let current = world.tier.options();
            let bytes = world.rng.u64(1..192) * SECTOR_SIZE;
            let deferring = world.tier.deferral().is_some() || world.tier.has_deferred();
            let changed = world.tier.change(TierOptions { bytes, ..current });
            assert_eq!(changed.is_err(), deferring);
        }
        315..320 if seed.is_multiple_of(3) => world.lose(),
        320..360 => {
            let millis = world.rng.choice([1, 60, 500, 3000]).unwrap_or(1);
            world.clock.pass(Duration::from_millis(millis));
        }
        360..362 => {
            let frozen = world.rng.bool();
            world.tier.freeze(frozen);
        }
        362..364 => world.tier.forget_clean(),
        364..600 => drop(world.run()),
        _ => drop(world.progress()),
    }
}

/// Writes down everything and checks that the disk has it.
fn finish(world: &mut World) {
    world.settle();
    world.disk.repair();
    world.settle();
    let done = Rc::new(RefCell::new(None));
    let (result, tier) = (done.clone(), world.tier.clone());
    let lower: Rc<dyn BlockService> = world.disk.clone();
    world.lanes[1].spawn(async move {
        *result.borrow_mut() = Some(write_down::all(&tier, &lower).await);
    });
    world.settle();
    assert_eq!(done.take(), Some(Ok(())));
    assert!(!world.tier.has_deferred());
    world.check_at_rest();
    world.tier.close();
    world.settle();
    assert!(world.lanes.iter().all(|lane| lane.live_tasks() == 0), "every task ends");
}

#[test]
fn reads_return_and_flushes_save_what_was_deferred() {
    let mut sum = crate::TierCounts::default();
    for seed in 0..600 {
        let mut world = world(seed);
        for _ in 0..1200 {
            step(&mut world, seed);
        }
        finish(&mut world);
        let counts = world.tier.counts();
        sum.written_down_bytes += counts.written_down_bytes;
        sum.coalesced_bytes += counts.coalesced_bytes;
        sum.superseded_bytes += counts.superseded_bytes;
        sum.urgent_bytes += counts.urgent_bytes;
        sum.failed_write_downs += counts.failed_write_downs;
        sum.waits += counts.waits;
    }
    // Each of these has happened often.
    assert!(sum.written_down_bytes > 1 << 20, "{sum:?}");
    assert!(sum.coalesced_bytes > 1 << 20 && sum.superseded_bytes > 1 << 20, "{sum:?}");
    assert!(sum.urgent_bytes > 1 << 20, "{sum:?}");
    assert!(sum.failed_write_downs > 100 && sum.waits > 100, "{sum:?}");
}
