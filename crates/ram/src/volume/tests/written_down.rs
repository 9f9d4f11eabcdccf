//! The data that is written down, and the time at which it is.

use std::time::Duration;

use forebay_core::WriteDown;

use super::bench::{Bench, INFINITE, write};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Deferral =
    Deferral { within: Duration::from_secs(10), mode: WriteDown::Interval, ..INFINITE };

#[test]
fn a_block_that_is_written_often_is_written_down_once() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    for value in 1..=10 {
        assert_eq!(bench.ask(write(8, 8, value)), Ok(()));
    }
    assert_eq!(bench.disk.requests(Op::Write), []);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.disk.requests(Op::Write), [(4096, 4096)]);
    assert_eq!(bench.below(8..16), [10; 8]);
    let counts = bench.tier.counts();
    assert_eq!((counts.deferred_written_bytes, counts.coalesced_bytes), (40960, 36864));
    assert_eq!((counts.written_down_bytes, counts.write_downs), (4096, 1));
    assert_eq!(counts.deferred_bytes, 0);
}

#[test]
fn small_writes_in_order_are_written_down_in_long_requests() {
    // Once at leisure, and once as space runs short.
    for (block, bytes) in [(512, 8 << 20), (4096, 8 << 20), (512, 1 << 20), (4096, 1 << 20)] {
        let bench = Bench::new(bytes, block, INTERVAL);
        bench.keep();
        for sector in 0..2048 {
            let sent = write(sector, 1, 1 + sector as u32);
            let data = sent.data.as_deref().expect("the data");
            if bench.volume.write_now(sent.offset, data).is_none() {
                assert_eq!(bench.ask(sent), Ok(()));
            }
            // The disk is far slower than the client.
            if sector % 256 == 0 {
                bench.run();
                bench.disk.progress(|_| 0);
            }
        }
        bench.pass(10 * SECOND);
        assert!(!bench.tier.has_deferred());
        let below: Vec<u32> = (1..=2048).collect();
        assert_eq!(bench.below(0..2048), below);
        let requests = bench.disk.requests(Op::Write);
        let sum: u64 = requests.iter().map(|(_, len)| len).sum();
        assert!(sum / requests.len() as u64 >= 256 << 10, "{bytes} {block}: {requests:?}");
    }
}

#[test]
fn a_range_as_large_as_the_tier_fits() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    for round in 1..=2 {
        for block in 0..256 {
            assert_eq!(bench.result(bench.submit(write(block * 8, 8, round))), Some(Ok(())));
        }
    }
    assert_eq!((bench.disk.requests(Op::Write), bench.tier.counts().waits), (vec![], 0));
    // Data that is read from the lower tier beside it is not cached.
    assert_eq!(bench.read(2048, 8), [0; 8]);
    assert!(!bench.tier.has(1 << 20, 4096) && bench.tier.has(0, 1 << 20));
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.disk.requests(Op::Write), [(0, 1 << 20)]);
}

#[test]
fn data_discarded_before_its_write_down_is_never_written() {
    for block in [512, 4096] {
        let bench = Bench::new(1 << 20, block, INFINITE);
        assert_eq!(bench.ask(write(8, 16, 7)), Ok(()));
        // The disk keeps discarded data.
        assert_eq!(bench.ask(request(Op::Discard, 0, 64 * SECTOR, None)), Ok(()));
        assert_eq!(bench.read(0, 64), [0; 64]);
        assert!(!bench.tier.has_deferred());
        assert_eq!(bench.flush(), Ok(()));
        assert_eq!(bench.disk.requests(Op::Write), []);
        assert_eq!(bench.disk.requests(Op::WriteZeroes), [(4096, 8192)]);
        assert_eq!(bench.disk.requests(Op::Discard), [(0, 4096), (12288, 20480)]);
        assert_eq!(bench.tier.counts().superseded_bytes, 8192);
    }
}

#[test]
fn long_zeroes_replace_deferred_data_which_is_never_written() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(8, 16, 7)), Ok(()));
    assert_eq!(bench.ask(request(Op::WriteZeroes, 0, 512 * SECTOR, None)), Ok(()));
    assert_eq!(bench.read(8, 16), [0; 16]);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.disk.requests(Op::Write), []);
}

#[test]
fn short_zeroes_are_deferred_like_data() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 8, 7)), Ok(()));
    assert_eq!(bench.ask(request(Op::WriteZeroes, 512, SECTOR, None)), Ok(()));
    assert_eq!(bench.disk.log.borrow().len(), 0);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.below(0..8), [7, 0, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn everything_is_on_the_disk_when_its_age_limit_ends() {
    let modes = [WriteDown::Interval, WriteDown::Average, WriteDown::Idle, WriteDown::Buffer];
    for (mode, steps) in modes.into_iter().flat_map(|mode| [(mode, 1), (mode, 1000)]) {
        if (mode, steps) == (WriteDown::Average, 1) {
            // This mode spreads its requests over time, so it needs several steps.
            continue;
        }
        let bench = Bench::new(8 << 20, 4096, Deferral { mode, ..INTERVAL });
        bench.keep();
        for region in 0..3 {
            let sent = write(region * 2048 + region * 8, 8, 5);
            assert_eq!(bench.result(bench.submit(sent)), Some(Ok(())));
        }
        (0..steps).for_each(|_| bench.pass(INTERVAL.within / steps));
        for region in 0..3 {
            let first = region * 2048 + region * 8;
            assert_eq!(bench.below(first..first + 8), [5; 8], "{mode}");
        }
        assert!(!bench.tier.has_deferred());
        let counts = bench.tier.counts();
        assert_eq!((counts.late_write_downs, counts.written_down_bytes), (0, 3 * 4096), "{mode}");
    }
}

#[test]
fn data_that_arrives_all_the_time_is_not_late_either() {
    for mode in [WriteDown::Interval, WriteDown::Average, WriteDown::Idle] {
        let bench = Bench::new(8 << 20, 4096, Deferral { mode, ..INTERVAL });
        bench.keep();
        for step in 0..1000 {
            let block = u64::from(step) * 37 % 1000;
            assert_eq!(bench.result(bench.submit(write(block * 8, 8, step + 1))), Some(Ok(())));
            bench.pass(SECOND / 20);
        }
        let counts = bench.tier.counts();
        assert_eq!(counts.late_write_downs, 0, "{mode}");
        assert!(counts.written_down_bytes > 100 * 4096, "{mode}");
    }
}

#[test]
fn data_that_keeps_arriving_at_a_slow_disk_is_not_late() {
    for (mode, each) in [WriteDown::Interval, WriteDown::Average]
        .into_iter()
        .flat_map(|mode| [1, 2, 4, 8].map(|each| (mode, each)))
    {
        let bench = Bench::new(8 << 20, 4096, Deferral { mode, ..INTERVAL });
        bench.keep();
        for step in 0..10_000 {
            if step % each == 0 {
                let block = u64::from(step / each) * 37 % 1000;
                assert_eq!(bench.result(bench.submit(write(block * 8, 8, step + 1))), Some(Ok(())));
            }
            // The disk takes 20 ms for a request, and the data of a region is scattered.
            bench.clock.pass(SECOND / 100);
            bench.run();
            bench.disk.progress(|_| 0);
        }
        let counts = bench.tier.counts();
        assert_eq!(counts.late_write_downs, 0, "{mode}, a write each {each} steps");
        assert!(counts.write_downs > 200, "{mode}, a write each {each} steps");
    }
}

#[test]
fn another_age_limit_holds_at_once() {
    let long = Deferral { within: 1000 * SECOND, mode: WriteDown::Average, ..INFINITE };
    for how in [Some(INTERVAL), Some(Deferral { within: 10 * SECOND, ..long }), None] {
        let bench = Bench::new(1 << 20, 4096, long);
        bench.keep();
        assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
        bench.run();
        bench.tier.defer_writes(how);
        (0..2).for_each(|_| bench.pass(INTERVAL.within / 2));
        assert_eq!(bench.below(0..8), [5; 8], "{how:?}");
        assert_eq!(bench.tier.counts().late_write_downs, 0, "{how:?}");
    }
}

#[test]
fn without_an_age_limit_data_waits_for_a_flush() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.keep();
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    bench.pass(1000 * SECOND);
    assert_eq!(bench.disk.log.borrow().len(), 0);
    assert_eq!(bench.tier.counts().deferred_bytes, 4096);
    assert_eq!(bench.read(0, 8), [5; 8]);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.below(0..8), [5; 8]);
}

#[test]
fn switching_deferring_off_writes_deferred_data_down() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.keep();
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    bench.tier.defer_writes(None);
    bench.settle();
    assert_eq!(bench.below(0..8), [5; 8]);
    assert!(!bench.tier.has_deferred());
    assert_eq!(bench.ask(write(0, 8, 6)), Ok(()));
    assert_eq!(bench.below(0..8), [6; 8]);
}

#[test]
fn a_write_with_fua_is_durable_when_it_ends_and_others_may_wait() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    assert_eq!(bench.ask(write(64, 8, 6)), Ok(()));
    let tag = bench.submit(Request { survives: Survives::PowerLoss, ..write(1, 1, 7) });
    assert_eq!(bench.result(tag), None, "the disk has not answered");
    bench.settle();
    assert_eq!(bench.result(tag), Some(Ok(())));
    assert_eq!(bench.disk.after_a_crash(1), 7);
    assert_eq!(bench.below(64..72), [0; 8]);
    assert_eq!(bench.tier.counts().deferred_bytes, 4096);
}

#[test]
fn an_ignored_flush_needs_no_request_to_the_disk() {
    let bench = Bench::new(1 << 20, 4096, Deferral { ignore_flush: true, ..INFINITE });
    assert_eq!(bench.ask(Request { survives: Survives::PowerLoss, ..write(0, 8, 5) }), Ok(()));
    let flush = bench.submit(request(Op::Flush, 0, 0, None));
    assert_eq!(bench.result(flush), Some(Ok(())));
    assert_eq!(bench.disk.log.borrow().len(), 0);
    assert!(bench.tier.has_deferred());
    // From now on a flush has its effect.
    bench.tier.defer_writes(Some(INFINITE));
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(bench.disk.after_a_crash(0), 5);
}

#[test]
fn deferred_ranges_are_data_although_the_disk_has_a_hole_there() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    let extents = |first: u64, count: u64| bench.volume.extents(first * 512, count * 512);
    let hole = |sectors| Extent { len: sectors * SECTOR_SIZE, hole: true, zero: true };
    assert_eq!(extents(0, 8192), [hole(8192)]);
    assert_eq!(bench.ask(write(2064, 16, 5)), Ok(()));
    assert_eq!(extents(0, 8192), [hole(2064)]);
    assert_eq!(extents(2048, 16), [hole(16)]);
    let data = |sectors| Extent { len: sectors * SECTOR_SIZE, hole: false, zero: false };
    assert_eq!(extents(2064, 4096), [data(16)]);
    assert_eq!(extents(2070, 4), [data(4)]);
    assert_eq!(extents(2080, 16), [hole(16)]);
}

#[test]
fn a_tier_with_deferred_data_takes_no_other_options() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    let other = TierOptions { bytes: 2 << 20, ..bench.tier.options() };
    assert!(bench.tier.change(other).is_err(), "it defers writes");
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    bench.tier.defer_writes(None);
    assert!(bench.tier.change(other).is_err(), "it has deferred data");
    assert_eq!(bench.read(0, 8), [5; 8]);
    assert_eq!(bench.flush(), Ok(()));
    bench.tier.change(other).expect("memory");
    assert_eq!(bench.tier.options(), other);
    assert_eq!(bench.read(0, 8), [5; 8]);
}

#[test]
fn a_tier_that_keeps_no_writes_defers_none() {
    let bench = Bench::new(1 << 20, 4096, INFINITE);
    bench.tier.defer_writes(None);
    let other = TierOptions { strategy: RamStrategy::ReadOnly, ..bench.tier.options() };
    bench.tier.change(other).expect("memory");
    bench.tier.defer_writes(Some(INFINITE));
    assert_eq!(bench.ask(write(0, 8, 5)), Ok(()));
    assert_eq!(bench.below(0..8), [5; 8]);
    assert!(!bench.tier.has_deferred());
}

#[test]
fn a_discard_of_scattered_data_takes_one_request_per_region() {
    let bench = Bench::new(4 << 20, 4096, INFINITE);
    for first in (8..2048).step_by(16) {
        assert_eq!(bench.ask(write(first, 8, 5)), Ok(()));
    }
    assert_eq!(bench.ask(request(Op::Discard, 0, 4096 * SECTOR, None)), Ok(()));
    let zeroed = bench.disk.requests(Op::WriteZeroes);
    assert_eq!(zeroed, [(4096, (2048 - 8) * SECTOR_SIZE)]);
    assert_eq!(bench.disk.requests(Op::Discard).len(), 2);
    assert!(!bench.tier.has_deferred());
    assert_eq!(bench.read(0, 2048), [0; 2048]);
}
