//! A tier that is frozen, or that is told to forget.

use super::bench::{Bench, INFINITE, write};
use super::*;

/// Returns a volume that defers no writes.
fn through() -> Bench {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.tier.defer_writes(None);
    bench
}

#[test]
fn a_frozen_tier_serves_and_updates_blocks_but_admits_none() {
    let bench = through();
    assert_eq!(bench.ask(write(0, 8, 1)), Ok(()));
    bench.tier.freeze(true);
    // Neither reads nor writes are cached.
    assert_eq!(bench.ask(write(8, 8, 2)), Ok(()));
    assert_eq!(bench.read(8, 16), [[2; 8], [0; 8]].concat());
    assert_eq!(bench.tier.cached_blocks(), [0]);
    assert_eq!(bench.ask(write(4, 8, 3)), Ok(()));
    assert_eq!(bench.tier.cached_blocks(), [0]);
    let reads = bench.disk.requests(Op::Read).len();
    assert_eq!(bench.read(0, 8), [1, 1, 1, 1, 3, 3, 3, 3]);
    assert_eq!(bench.disk.requests(Op::Read).len(), reads, "a hit");
    // A tier of another size begins empty, and stays empty while frozen.
    bench.tier.change(options(2 << 20, 4096)).expect("memory");
    assert_eq!(bench.read(0, 8), [1, 1, 1, 1, 3, 3, 3, 3]);
    assert_eq!(bench.tier.counts().cached, 0);
    bench.tier.freeze(false);
    assert_eq!(bench.read(0, 16).len(), 16);
    assert_eq!(bench.tier.cached_blocks(), [0, 1]);
}

#[test]
fn deferred_data_of_a_frozen_tier_is_written_down_and_kept() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.keep();
    assert_eq!(bench.ask(write(0, 8, 1)), Ok(()));
    bench.tier.defer_writes(None);
    bench.tier.freeze(true);
    bench.settle();
    assert!(!bench.tier.has_deferred());
    assert_eq!((bench.below(0..8), bench.tier.cached_blocks()), (vec![1; 8], vec![0]));
}

#[test]
fn deferred_data_is_not_forgotten() {
    let bench = through();
    assert_eq!(bench.ask(write(0, 16, 1)), Ok(()));
    bench.tier.defer_writes(Some(INFINITE));
    assert_eq!(bench.ask(write(2, 1, 2)), Ok(()));
    assert_eq!(bench.tier.counts().cached, 2);
    bench.tier.forget_clean();
    assert_eq!((bench.tier.cached_blocks(), bench.tier.deferred_bytes()), (vec![0], 512));
    assert_eq!(bench.below(0..4), [1; 4]);
    assert_eq!(bench.read(0, 4), [1, 1, 2, 1]);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.below(0..4), [1, 1, 2, 1]);
}

#[test]
fn a_read_that_is_in_flight_when_a_tier_forgets_does_not_enter() {
    let bench = through();
    let tag = bench.submit(request(Op::Read, 0, 8 * SECTOR, None));
    bench.tier.forget_clean();
    bench.settle();
    assert_eq!((bench.result(tag), bench.tier.counts().cached), (Some(Ok(())), 0));
}

#[test]
fn a_tier_made_without_blocks_has_the_shards_of_its_later_size() {
    let clock = Arc::new(ManualClock::default());
    let (size, empty) = (options(256 << 20, 4096), options(0, 4096));
    let tier = Tier::with_room(empty, size.bytes, clock.clone()).expect("memory");
    assert!(tier.counts().overhead_bytes <= empty.memory_with_room(size.bytes));
    assert!(empty.memory_with_room(size.bytes) < 16 << 20);
    assert_eq!(tier.memory_after(&size), size.memory());
    tier.change(size).expect("memory");
    assert!(size.bytes + tier.counts().overhead_bytes <= size.memory());
}
