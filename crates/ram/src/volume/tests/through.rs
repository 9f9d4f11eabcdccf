//! A tier that defers no writes.

use super::world::World;
use super::*;

const SECTORS: u64 = 96;
const HOT: [Range<u64>; 2] = [0..SECTORS / 2, SECTORS / 2..SECTORS];
const OPS: [Op; 5] = [Op::Read, Op::Read, Op::Write, Op::WriteZeroes, Op::Flush];

fn world(seed: u64) -> World {
    World::new(seed, SECTORS, &HOT)
}

#[test]
fn reads_return_what_the_lower_tier_has() {
    let mut hits = 0;
    for seed in 0..400 {
        let mut world = world(seed);
        for _ in 0..600 {
            match world.rng.u32(0..100) {
                0..40 => world.ask(&OPS),
                40 => {
                    let options = world.tier.options();
                    let options = TierOptions { bytes: options.bytes / 2 + 512, ..options };
                    world.tier.change(options).expect("memory");
                }
                41 if seed % 3 == 0 => world.lose(),
                42 => {
                    let frozen = world.rng.u32(0..3) == 0;
                    world.tier.freeze(frozen);
                }
                43 => world.tier.forget_clean(),
                _ => drop(world.progress()),
            }
        }
        world.settle();
        hits += world.check_at_rest();
        assert!(world.lanes.iter().all(|lane| lane.live_tasks() == 0), "no request needs a task");
    }
    assert!(hits > 300, "only {hits} sectors were cached");
}

#[test]
fn some_hits_are_told_to_the_lower_tier() {
    let world = world(3);
    let mut bytes = IoBuf::zeroed(SECTOR);
    world.tier.change(options(1 << 20, 512)).expect("memory");
    let sink: Rc<dyn CompletionSink> = world.answers.clone();
    world.volumes[0].submit(request(Op::Read, 0, SECTOR, None), &sink);
    while world.disk.progress(|_| 0) {}
    let before = world.tier.counts().hits;
    for _ in 0..160 {
        assert_eq!(world.volumes[1].read_now(0, &mut bytes), Some(Ok(())));
    }
    assert_eq!(world.tier.counts().hits, before + 160);
    assert_eq!(world.disk.told.get(), 10);
}

#[test]
fn a_closed_tier_serves_nothing() {
    let mut world = world(1);
    (0..200).for_each(|_| world.ask(&OPS));
    world.settle();
    world.tier.close();
    (0..200).for_each(|_| world.ask(&OPS));
    world.settle();
    assert_eq!(world.tier.counts().cached, 0);
    assert_eq!(world.check_at_rest(), 0);
}

#[test]
fn a_tier_takes_no_more_memory_than_it_says() {
    for policy in ReplacementKind::ALL {
        for (mib, block) in [(1, 4096), (32, 4096), (256, 4096), (64, 512), (256, 64 << 10)] {
            let options = TierOptions { policy: *policy, seed: 0, ..options(mib << 20, block) };
            let tier = Tier::new(options, Arc::new(ManualClock::default())).expect("memory");
            let overhead = tier.counts().overhead_bytes;
            assert!(options.bytes + overhead <= options.memory(), "{options:?}: {overhead}");
            let smaller = TierOptions { bytes: 1 << 20, ..options };
            tier.change(smaller).expect("memory");
            let overhead = tier.counts().overhead_bytes;
            assert!(smaller.bytes + overhead <= tier.memory_after(&smaller), "{overhead}");
        }
    }
}
