//! Used blocks that RAM evicts are offered to the lower tier. [`super::disk::Disk`] checks that an
//! offer is current, in these tests and in the random ones.

use super::bench::{Bench, INFINITE, write};
use super::*;

/// Blocks of the tier, one sector each.
const BLOCKS: u64 = 64;

fn bench() -> Bench {
    let bench = Bench::new(BLOCKS * SECTOR_SIZE, SECTOR_SIZE, INFINITE);
    bench.tier.defer_writes(None);
    bench
}

/// Reads enough other blocks to evict all present ones.
fn read_others(bench: &Bench) {
    for sector in 1000..1000 + 4 * BLOCKS {
        bench.read(sector, 1);
    }
}

#[test]
fn only_reused_blocks_are_offered() {
    let bench = bench();
    (0..8).for_each(|sector| drop(bench.read(sector, 1)));
    (2..4).for_each(|sector| drop(bench.read(sector, 1)));
    read_others(&bench);
    let offers = bench.disk.offers.take();
    assert_eq!(offers, [(2..3, true), (3..4, true)]);
    assert_eq!(bench.tier.counts().offers, 2);
}

#[test]
fn a_block_written_and_then_read_is_offered_as_written() {
    let bench = bench();
    assert_eq!(bench.ask(write(5, 1, 7)), Ok(()));
    assert_eq!(bench.read(5, 1), [7]);
    read_others(&bench);
    assert_eq!(bench.disk.offers.take(), [(5..6, true)]);
}

#[test]
fn writes_and_losses_below_make_an_offer_outdated() {
    let overtake: [fn(&Bench); 2] =
        [|bench| assert!(bench.submit(write(0, 1, 9)) > 0), |bench| bench.disk.lose(0..1)];
    for overtake in overtake {
        let bench = bench();
        bench.tier.offers.set_welcome(true);
        (0..2).for_each(|_| drop(bench.read(0, 1)));
        // The read bypasses the volume, so that the offer is not passed on.
        let mut other = 1000 * SECTOR_SIZE;
        let offer = loop {
            let tokens: Vec<_> = bench.tier.begin_fill(other, SECTOR_SIZE).collect();
            bench.tier.end_fill(other, &[0; SECTOR], &tokens);
            other += SECTOR_SIZE;
            if let Some(offer) = bench.tier.offers.pop() {
                break offer;
            }
        };
        assert!(bench.tier.is_current(&offer, bench.disk.losses()));
        overtake(&bench);
        assert!(!bench.tier.is_current(&offer, bench.disk.losses()));
    }
}
