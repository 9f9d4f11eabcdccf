//! Deferred writes when the disk fails or does not answer, and when there is no space.

use std::time::Duration;

use forebay_core::WriteDown;

use super::bench::{Bench, INFINITE, write};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Deferral =
    Deferral { within: Duration::from_secs(10), mode: WriteDown::Interval, ..INFINITE };

#[test]
fn data_of_a_failed_write_down_stays_for_a_later_flush() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 16, 5)), Ok(()));
    bench.disk.fails.set(100);
    assert_eq!(bench.flush(), Err(IoError::Io));
    assert_eq!(bench.flush(), Err(IoError::Io));
    assert_eq!(bench.disk.requests(Op::Flush), [], "there is nothing to make durable yet");
    assert_eq!(bench.tier.counts().deferred_bytes, 8192);
    assert_eq!(bench.tier.counts().failed_write_downs, 2);
    assert_eq!(bench.read(0, 16), [5; 16]);
    bench.disk.repair();
    assert_eq!(bench.flush(), Ok(()));
    assert!((0..16).all(|sector| bench.disk.after_a_crash(sector) == 5));
    assert!(!bench.tier.has_deferred());
}

#[test]
fn the_age_limit_holds_again_after_a_flush_has_failed() {
    let bench = Bench::new(1 << 20, 4096, INTERVAL);
    bench.keep();
    assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
    // The flush writes everything down, so the write-down task finds no work.
    bench.disk.fails.set(100);
    let flush = bench.submit(request(Op::Flush, 0, 0, None));
    bench.clock.pass(INTERVAL.within / 2);
    bench.run();
    bench.settle();
    assert_eq!(bench.result(flush), Some(Err(IoError::Io)));
    bench.disk.repair();
    bench.pass(INTERVAL.within / 2);
    bench.pass(SECOND);
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn a_failed_replacement_restores_the_age_limit() {
    let bench = Bench::new(1 << 20, 4096, INTERVAL);
    bench.keep();
    assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
    bench.disk.fails.set(100);
    let zeroes = bench.submit(request(Op::WriteZeroes, 0, 512 * SECTOR, None));
    bench.clock.pass(INTERVAL.within / 2);
    bench.run();
    assert!(bench.disk.progress(|_| 0), "it takes effect in part");
    bench.disk.repair();
    bench.settle();
    assert_eq!(bench.result(zeroes), Some(Err(IoError::Io)));
    bench.pass(INTERVAL.within / 2);
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn data_that_was_not_replaced_keeps_its_age_beside_newer_data() {
    let bench = Bench::new(1 << 20, 4096, INTERVAL);
    bench.keep();
    // The task now knows that the disk is fast, and waits until shortly before the age limit.
    assert_eq!(bench.result(bench.submit(write(0, 8, 4))), Some(Ok(())));
    bench.clock.pass(INTERVAL.within / 2);
    bench.run();
    bench.pass(SECOND / 1000);
    assert_eq!(bench.below(0..8), [4; 8]);

    assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
    bench.pass(4 * SECOND);
    bench.disk.fails.set(100);
    let zeroes = bench.submit(request(Op::WriteZeroes, 0, 512 * SECTOR, None));
    // The task finds no deferred data.
    bench.tier.deferring.work.notify_all();
    bench.clock.pass(SECOND);
    bench.run();
    assert_eq!(bench.result(bench.submit(write(1024, 8, 6))), Some(Ok(())));
    bench.clock.pass(SECOND);
    assert!(bench.disk.progress(|_| 0), "it takes effect in part");
    bench.disk.repair();
    bench.settle();
    assert_eq!(bench.result(zeroes), Some(Err(IoError::Io)));
    (0..4).for_each(|_| bench.pass(SECOND));
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn a_request_that_does_not_end_holds_back_no_other_region() {
    for mode in [WriteDown::Interval, WriteDown::Average, WriteDown::Buffer] {
        let bench = Bench::new(8 << 20, 4096, Deferral { mode, ..INTERVAL });
        bench.keep();
        let second = |lost: usize| {
            for _ in 0..100 {
                bench.clock.pass(SECOND / 100);
                bench.run();
                // The oldest requests have no answer.
                while bench.disk.waiting() > lost {
                    bench.disk.progress(|_| lost);
                    bench.run();
                }
            }
        };
        assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
        (0..25).for_each(|_| second(1));
        assert_eq!(bench.disk.waiting(), 1, "{mode}");
        // Newer data of the region must wait for the write-down in flight, and no pass begins for
        // it alone.
        assert_eq!(bench.result(bench.submit(write(8, 8, 6))), Some(Ok(())));
        (0..20).for_each(|_| second(1));
        for step in 1..100u32 {
            let region = u64::from(step) % 3 + 1;
            assert_eq!(bench.result(bench.submit(write(region * 2048, 8, step))), Some(Ok(())));
            second(1);
        }
        (0..10).for_each(|_| second(1));
        assert_eq!(bench.tier.counts().late_write_downs, 0, "{mode}");
        assert_eq!(bench.tier.counts().deferred_bytes, 2 * 4096, "{mode}");
        // The disk answers again.
        (0..20).for_each(|_| second(0));
        assert_eq!((bench.below(0..8), bench.below(8..16)), (vec![5; 8], vec![6; 8]), "{mode}");
        assert!(!bench.tier.has_deferred(), "{mode}");
        bench.tier.close();
        bench.settle();
        assert_eq!(bench.lane.live_tasks(), 0);
    }
}

#[test]
fn data_that_could_not_be_written_down_in_time_counts_as_late() {
    let bench = Bench::new(1 << 20, 4096, INTERVAL);
    bench.keep();
    assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
    bench.disk.fails.set(100);
    (0..20).for_each(|_| bench.pass(SECOND));
    assert_eq!(bench.tier.counts().deferred_bytes, 4096);
    assert!(bench.tier.counts().failed_write_downs > 5);
    bench.disk.repair();
    (0..2).for_each(|_| bench.pass(SECOND));
    assert_eq!(bench.below(0..8), [5; 8]);
    assert_eq!(bench.tier.counts().late_write_downs, 1);
}

#[test]
fn data_of_a_failed_write_down_waits_for_no_newer_data() {
    let bench = Bench::new(1 << 20, 4096, INTERVAL);
    bench.keep();
    assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
    bench.disk.fails.set(100);
    bench.clock.pass(INTERVAL.within / 2);
    bench.run();
    // The first block is being written down.
    assert_eq!(bench.result(bench.submit(write(8, 8, 6))), Some(Ok(())));
    bench.settle();
    bench.disk.repair();
    bench.pass(SECOND);
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn a_failed_write_to_the_disk_keeps_all_deferred_data() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    bench.disk.fails.set(100);
    let zeroes = request(Op::WriteZeroes, 0, 512 * SECTOR, None);
    assert_eq!(bench.ask(zeroes), Err(IoError::Io));
    bench.disk.repair();
    assert_eq!(bench.read(0, 8), [5; 8]);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn a_write_without_space_waits_for_the_disk() {
    for mode in WriteDown::ALL {
        let bench = Bench::new(16 * 4096, 4096, Deferral { mode: *mode, ..INFINITE });
        bench.keep();
        let mut waiting = Vec::new();
        for block in 0..20 {
            let tag = bench.submit(write(block * 8, 8, 5));
            if bench.result(tag).is_none() {
                waiting.push(tag);
            }
        }
        assert_eq!(waiting.len(), 4, "{mode}");
        assert!(bench.tier.counts().waits >= 4);
        bench.settle();
        assert!(waiting.iter().all(|tag| bench.result(*tag) == Some(Ok(()))), "{mode}");
        assert_eq!(bench.read(0, 160), [5; 160]);
        assert!(bench.tier.counts().urgent_bytes > 0, "{mode}");
        assert_eq!(bench.flush(), Ok(()));
        assert_eq!(bench.below(0..160), [5; 160]);
    }
}

#[test]
fn writes_take_space_in_the_order_of_arrival() {
    let bench = Bench::new(16 * 4096, 4096, INFINITE);
    assert_eq!(bench.result(bench.submit(write(0, 8, 5))), Some(Ok(())));
    let waiter = bench.tier.wait_at(0);
    let tags = [1, 2].map(|block| bench.submit(write(block * 8, 8, 6)));
    assert_eq!(tags.map(|tag| bench.result(tag)), [None; 2], "there is space, for another");
    assert_eq!(
        bench.result(bench.submit(write(0, 8, 7))),
        Some(Ok(())),
        "no other space is needed"
    );
    drop(waiter);
    bench.run();
    assert_eq!(tags.map(|tag| bench.result(tag)), [Some(Ok(())); 2]);
    assert_eq!((bench.read(0, 8), bench.read(8, 16)), (vec![7; 8], vec![6; 16]));
    assert_eq!(bench.tier.counts().waits, 3);
}

#[test]
fn space_is_made_before_it_is_needed() {
    for mode in WriteDown::ALL {
        let bench = Bench::new(64 * 4096, 4096, Deferral { mode: *mode, ..INFINITE });
        bench.keep();
        for block in 0..200 {
            assert_eq!(bench.ask(write(block * 8, 8, 5)), Ok(()));
            assert!(bench.tier.counts().deferred_bytes <= 32 * 4096, "{mode}");
        }
        assert_eq!(bench.tier.counts().waits, 0);
    }
}

#[test]
fn a_write_down_that_becomes_too_slow_gives_way_to_a_deeper_one() {
    let bench = Bench::new(64 * 4096, 4096, INFINITE);
    bench.keep();
    // Neighbours in four regions, so that each is one request.
    let block = |number: u64| write(number % 4 * 2048 + number / 4 * 8, 8, 5);
    let in_flight = || {
        let all = std::cell::Cell::new(0);
        bench.disk.progress(|waiting| {
            all.set(waiting);
            0
        });
        bench.run();
        all.get()
    };
    (0..60).for_each(|number| assert_eq!(bench.result(bench.submit(block(number))), Some(Ok(()))));
    // Begun when little more than half was used.
    assert_eq!((in_flight(), in_flight()), (1, 1));
    assert_eq!(in_flight(), 4);
    bench.settle();
    assert!((0..15).all(|number| bench.below(number * 8..number * 8 + 8) == [5; 8]));
}

#[test]
fn a_write_without_space_learns_that_the_disk_fails() {
    let bench = Bench::new(16 * 4096, 4096, INFINITE);
    bench.keep();
    bench.disk.fails.set(100);
    let tags: Vec<u64> = (0..20).map(|block| bench.submit(write(block * 8, 8, 5))).collect();
    bench.settle();
    let failed = |tag: &&u64| bench.result(**tag) == Some(Err(IoError::Io));
    assert_eq!(tags.iter().filter(failed).count(), 4);
    let good = |tag: &&u64| bench.result(**tag) == Some(Ok(()));
    assert_eq!(tags.iter().filter(good).count(), 16);
    assert_eq!(bench.read(0, 128), [5; 128]);
}

/// A part of each block can be written down, which makes no space, because a block leaves only as a
/// whole.
#[test]
fn a_write_without_space_fails_if_no_block_can_be_written_down() {
    let bench = Bench::new(2 * 4096, 4096, INFINITE);
    bench.disk.unwritable.replace(6..18);
    for first in [0, 5, 9, 14] {
        assert_eq!(bench.result(bench.submit(write(first, 2, 5))), Some(Ok(())));
    }
    bench.keep();
    let tags = [16, 24].map(|first| bench.submit(write(first, 4, 6)));
    let mut answers = 0;
    while answers < 1000 && bench.disk.progress(|_| 0) {
        bench.run();
        answers += 1;
    }
    assert!(answers < 100, "it is tried again and again, and no time passes");
    assert_eq!(tags.map(|tag| bench.result(tag)), [Some(Err(IoError::Io)), Some(Ok(()))]);
    assert_eq!(bench.tier.counts().deferred_bytes, 8 * SECTOR_SIZE, "both blocks are kept");
    assert!([0, 5, 9, 14].iter().all(|first| bench.read(*first, 2) == [5; 2]));
    bench.disk.repair();
    assert_eq!(bench.flush(), Ok(()));
    assert!(
        [0, 1, 5, 6, 9, 10, 14, 15].iter().all(|sector| bench.disk.after_a_crash(*sector) == 5)
    );
}

/// Other data of the shard can be written, which makes space for one write after the other.
#[test]
fn an_unwritable_block_is_not_retried_for_each_waiting_write() {
    let bench = Bench::new(4 * 4096, 4096, INFINITE);
    bench.disk.unwritable.replace(0..8);
    // The first block, and some in each of three other regions.
    let places = (0..30).map(|number| (number % 3 + 1) * 2048 + number / 3 * 8);
    let places = std::iter::once(0).chain(places);
    let tags: Vec<u64> = places.map(|first| bench.submit(write(first, 8, 5))).collect();
    bench.keep();
    while bench.disk.waiting() > 0 {
        // All requests end at the same time.
        (0..2 * bench.disk.waiting()).for_each(|_| _ = bench.disk.progress(|_| 0));
        bench.run();
    }
    assert!(tags.iter().all(|tag| bench.result(*tag) == Some(Ok(()))));
    let tries = bench.disk.requests(Op::Write);
    let tries = tries.iter().filter(|(offset, _)| *offset == 0).count();
    assert!(tries <= 2, "{tries} tries");
}

#[test]
fn a_write_that_waits_for_space_ends_when_the_tier_is_closed() {
    let bench = Bench::new(16 * 4096, 4096, INFINITE);
    bench.keep();
    let tags: Vec<u64> = (0..20).map(|block| bench.submit(write(block * 8, 8, 5))).collect();
    bench.tier.close();
    bench.settle();
    assert!(tags.iter().all(|tag| bench.result(*tag) == Some(Ok(()))));
    assert_eq!(bench.lane.live_tasks(), 0);
    assert_eq!(bench.tier.counts().cached, 0);
}

#[test]
fn a_read_needs_of_the_disk_only_what_ram_does_not_have() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.tier.defer_writes(None);
    assert_eq!(bench.ask(write(0, 64, 3)), Ok(()));
    bench.tier.change(bench.tier.options()).expect("memory");
    bench.tier.defer_writes(Some(INFINITE));
    bench.disk.unreadable.replace(18..22);
    assert_eq!(bench.ask(write(18, 4, 5)), Ok(()));
    assert_eq!(bench.ask(write(40, 1, 6)), Ok(()));
    let mut expected = [3; 64];
    expected[18..22].fill(5);
    expected[40] = 6;
    assert_eq!(bench.read(0, 64), expected);
    assert_eq!(bench.read(19, 2), [5, 5]);
    // Sectors that RAM does not have cannot be read.
    bench.disk.unreadable.replace(18..23);
    assert_eq!(bench.ask(request(Op::Read, 0, 64 * SECTOR, None)), Err(IoError::Io));
    assert_eq!(bench.read(16, 6), [3, 3, 5, 5, 5, 5]);
}

#[test]
fn a_read_waits_while_deferred_data_is_being_replaced() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    let zeroes = bench.submit(request(Op::WriteZeroes, 0, 512 * SECTOR, None));
    let read = bench.submit(request(Op::Read, 0, 16 * SECTOR, None));
    assert_eq!((bench.result(zeroes), bench.result(read)), (None, None));
    assert_eq!(bench.read(0, 16), [0; 16]);
    assert_eq!(bench.result(read), Some(Ok(())));
}

#[test]
fn writes_during_a_write_down_are_written_down_after_it() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    let first = bench.submit(request(Op::Flush, 0, 0, None));
    // Data that is being written to the disk can be read and overwritten.
    assert_eq!(bench.result(bench.submit(write(0, 4, 6))), Some(Ok(())));
    let second = bench.submit(request(Op::Flush, 0, 0, None));
    bench.settle();
    assert_eq!((bench.result(first), bench.result(second)), (Some(Ok(())), Some(Ok(()))));
    let after: Vec<u32> = (0..8).map(|sector| bench.disk.after_a_crash(sector)).collect();
    assert_eq!(after, [6, 6, 6, 6, 5, 5, 5, 5]);
    assert_eq!(bench.tier.counts().coalesced_bytes, 0);
}

#[test]
fn writes_lost_during_a_write_down_are_written_down_again() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    let flush = bench.submit(request(Op::Flush, 0, 0, None));
    assert!(bench.disk.progress(|_| 0), "it takes effect");
    bench.disk.lose(0..8);
    bench.settle();
    assert_eq!(bench.result(flush), Some(Ok(())));
    assert!((0..8).all(|sector| bench.disk.after_a_crash(sector) == 5));
}

#[test]
fn a_read_only_disk_is_asked_and_nothing_is_deferred() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.disk.read_only.set(true);
    bench.disk.fails.set(100);
    assert_eq!(bench.ask(write(0, 8, 5)), Err(IoError::Io));
    assert_eq!(bench.ask(request(Op::WriteZeroes, 0, SECTOR, None)), Err(IoError::Io));
    assert!(!bench.tier.has_deferred());
}

#[test]
fn a_place_that_cannot_be_written_does_not_hold_back_the_others() {
    let bench = Bench::new(1 << 20, 4096, Deferral { mode: WriteDown::Average, ..INTERVAL });
    for first in [0, 2048, 4096, 6144] {
        assert_eq!(bench.result(bench.submit(write(first, 8, 5))), Some(Ok(())));
    }
    bench.disk.unwritable.replace(0..8);
    bench.keep();
    (0..10).for_each(|_| bench.pass(SECOND));
    assert_eq!(bench.tier.counts().deferred_bytes, 4096);
    for first in [2048, 4096, 6144] {
        assert_eq!(bench.below(first..first + 8), [5; 8]);
    }
    bench.disk.repair();
    (0..10).for_each(|_| bench.pass(SECOND));
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn a_bad_sector_in_a_run_holds_back_its_own_block_alone() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(4, 1000, 5)), Ok(()));
    bench.disk.unwritable.replace(333..334);
    assert_eq!(bench.flush(), Err(IoError::Io));
    assert_eq!(bench.tier.counts().deferred_bytes, 4096, "the block with the sector");
    let below = |sectors: Range<usize>| bench.below(sectors).iter().all(|value| *value == 5);
    assert!(below(4..328) && below(336..1004), "what is beside it is not there");
    assert_eq!(bench.read(4, 1000), [5; 1000]);
    let tries = bench.disk.requests(Op::Write).len();
    assert!(tries < 60, "{tries} writes for one bad sector");
    // Only this block is tried again.
    assert_eq!(bench.flush(), Err(IoError::Io));
    assert_eq!(bench.disk.requests(Op::Write).len(), tries + 1);
    bench.disk.repair();
    assert_eq!(bench.flush(), Ok(()));
    assert!((4..1004).all(|sector| bench.disk.after_a_crash(sector) == 5));
    assert!(!bench.tier.has_deferred());
}

#[test]
fn a_disk_that_takes_nothing_is_not_asked_for_each_block() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 1024, 5)), Ok(()));
    bench.disk.fails.set(100);
    assert_eq!(bench.flush(), Err(IoError::Io));
    let tries = bench.disk.requests(Op::Write).len();
    assert!(tries <= 32, "{tries} writes");
    assert_eq!(bench.tier.counts().deferred_bytes, 1024 * SECTOR_SIZE, "all of it is kept");
    bench.disk.repair();
    assert_eq!(bench.flush(), Ok(()));
    assert!((0..1024).all(|sector| bench.disk.after_a_crash(sector) == 5));
}

#[test]
fn waiters_for_a_region_are_served_together() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    let durable =
        |number: u64| Request { survives: Survives::PowerLoss, ..write(8 * number, 8, 5) };
    let first = bench.submit(durable(0));
    assert_eq!(bench.disk.waiting(), 1, "the first is being written down");
    let others: Vec<u64> = (1..8).map(|number| bench.submit(durable(number))).collect();
    assert_eq!(bench.disk.waiting(), 1, "at most one write-down of a region is in flight");
    assert!(bench.disk.progress(|_| 0) && bench.disk.progress(|_| 0));
    bench.run();
    // The first write has its flush in flight; all others are written in one request.
    assert_eq!(bench.disk.waiting(), 2);
    bench.settle();
    assert_eq!(bench.disk.requests(Op::Write), [(0, 4096), (4096, 7 * 4096)]);
    for tag in others.into_iter().chain([first]) {
        assert_eq!(bench.result(tag), Some(Ok(())));
    }
    assert!((0..64).all(|sector| bench.disk.after_a_crash(sector) == 5));
}

#[test]
fn a_durable_write_whose_data_a_closed_tier_has_forgotten_fails() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    let durable =
        |number: u64| Request { survives: Survives::PowerLoss, ..write(8 * number, 8, 5) };
    let (_, second) = (bench.submit(durable(0)), bench.submit(durable(1)));
    assert_eq!(bench.disk.waiting(), 1, "the first is being written down");
    bench.tier.close();
    bench.settle();
    let there = (8..16).all(|sector| bench.disk.after_a_crash(sector) == 5);
    let result = bench.result(second).expect("it ends");
    assert!(there || result == Err(IoError::ShuttingDown), "{result:?}");
}

#[test]
fn a_long_request_in_flight_does_not_concern_other_blocks() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    let discard = bench.submit(request(Op::Discard, 0, 2048 * SECTOR, None));
    assert_eq!((bench.disk.waiting(), bench.result(discard)), (1, None));
    for first in (2048..4096).step_by(8) {
        let tag = bench.submit(write(first, 8, 5));
        assert_eq!(bench.result(tag), (bench.disk.waiting() == 1).then_some(Ok(())), "{first}");
    }
    let within = bench.submit(write(8, 8, 6));
    assert_eq!((bench.disk.waiting(), bench.result(within)), (2, None));
    bench.settle();
    assert_eq!((bench.result(discard), bench.result(within)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(bench.read(8, 8), [6; 8]);
}
