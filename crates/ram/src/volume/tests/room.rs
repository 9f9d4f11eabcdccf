//! A tier that returns memory to the system while memory is short.

use super::bench::{Bench, INFINITE, write};
use super::*;

/// Blocks of the tier, one sector each.
const BLOCKS: u64 = 256;

fn bench(policy: ReplacementKind) -> Bench {
    let bench = Bench::new(BLOCKS * SECTOR_SIZE, SECTOR_SIZE, INFINITE);
    bench.tier.defer_writes(None);
    bench.tier.change(TierOptions { policy, ..bench.tier.options() }).expect("memory");
    (0..BLOCKS).for_each(|sector| drop(bench.read(sector, 1)));
    bench
}

/// Returns how many of these sectors are cached in RAM.
fn cached(bench: &Bench, sectors: Range<u64>) -> usize {
    let mut bytes = [0; SECTOR];
    sectors.filter(|sector| bench.tier.read(sector * SECTOR_SIZE, &mut bytes).is_some()).count()
}

#[test]
fn the_most_used_blocks_stay_with_their_data() {
    for policy in [ReplacementKind::Lru, ReplacementKind::S3Fifo, ReplacementKind::LfuR] {
        let bench = bench(policy);
        for sector in 100..150 {
            assert_eq!(bench.ask(write(sector, 1, sector as u32)), Ok(()));
            bench.read(sector, 1);
        }
        let room = bench.tier.set_room(64 * SECTOR_SIZE);
        assert_eq!((room, bench.tier.room()), (64 * SECTOR_SIZE, 64 * SECTOR_SIZE));
        assert_eq!((bench.tier.counts().cached, cached(&bench, 0..BLOCKS)), (64, 64));
        let kept = cached(&bench, 100..150);
        assert!(kept >= 40, "{policy}: {kept}");
        let reads = bench.disk.requests(Op::Read).len();
        let values: Vec<u32> = (100..150).flat_map(|sector| bench.read(sector, 1)).collect();
        assert!(values.into_iter().eq(100..150), "{policy}");
        assert!(bench.disk.requests(Op::Read).len() - reads <= 20, "{policy}");
        // Only that much enters until more memory is available again.
        (0..BLOCKS).for_each(|sector| drop(bench.read(sector, 1)));
        assert_eq!(bench.tier.counts().cached, 64, "{policy}");
        assert_eq!(bench.tier.set_room(u64::MAX), BLOCKS * SECTOR_SIZE);
        for _ in 0..4 {
            (0..BLOCKS).for_each(|sector| drop(bench.read(sector, 1)));
        }
        assert!(cached(&bench, 0..BLOCKS) > 200, "{policy}");
    }
}

#[test]
fn long_changes_take_little_memory_and_are_sent_in_parts() {
    let bench = Bench::over((400 << 20) / SECTOR_SIZE, 1 << 20, SECTOR_SIZE, INFINITE);
    bench.tier.defer_writes(None);
    for op in [Op::Discard, Op::WriteZeroes] {
        assert!(bench.volume.memory(op, 0, 16 << 40) < 4 << 20, "{op:?}");
        for fast in [false, true] {
            bench.disk.log.borrow_mut().clear();
            let change = Request { fast, ..request(op, 0, 400 << 20, None) };
            assert_eq!(bench.ask(change), Ok(()));
            let parts: Vec<u64> = bench.disk.requests(op).iter().map(|part| part.1 >> 20).collect();
            assert_eq!(parts, [256, 144], "{op:?} {fast}");
        }
    }
    assert!(bench.volume.memory(Op::Prefetch, 0, 4 << 30) < 4 << 20);
}

#[test]
fn deferred_data_stays_and_is_written_down_early() {
    let bench = bench(ReplacementKind::S3Fifo);
    bench.tier.defer_writes(Some(INFINITE));
    for sector in 0..100 {
        assert_eq!(bench.ask(write(sector, 1, 1 + sector as u32)), Ok(()));
    }
    assert_eq!(bench.tier.set_room(10 * SECTOR_SIZE), 100 * SECTOR_SIZE);
    assert!(bench.read(0, 100).into_iter().eq(1..=100));
    assert_eq!(bench.below(0..100), [0; 100]);
    bench.keep();
    bench.settle();
    let below = bench.below(0..100);
    assert!(below.iter().filter(|value| **value > 0).count() > 90, "{below:?}");
    assert_eq!(bench.tier.set_room(10 * SECTOR_SIZE), 10 * SECTOR_SIZE);
    assert!(bench.read(0, 100).into_iter().eq(1..=100));
}

#[test]
fn a_tier_without_room_passes_everything_on() {
    let bench = bench(ReplacementKind::S3Fifo);
    bench.tier.defer_writes(Some(INFINITE));
    assert_eq!(bench.tier.set_room(0), 0);
    assert_eq!(bench.ask(write(3, 1, 5)), Ok(()));
    assert_eq!((bench.below(3..4), bench.read(3, 1)), (vec![5], vec![5]));
    assert_eq!(cached(&bench, 0..BLOCKS), 0);
}

#[test]
fn a_tier_with_few_blocks_in_each_shard_grows_by_small_steps() {
    let small = options(128 * 4096, 4096);
    let tier = Tier::with_room(small, 4 << 30, Arc::new(ManualClock::default())).expect("memory");
    let full = tier.full_room();
    assert!(tier.set_room(full / 16) < full);
    for _ in 0..8 {
        tier.set_room(tier.room() + full / 8);
    }
    assert_eq!(tier.room(), full);
}
