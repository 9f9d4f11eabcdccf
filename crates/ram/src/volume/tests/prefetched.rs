//! Blocks that are read before a client asks for them.

use std::cell::Cell;
use std::time::Duration;

use forebay_lane::yield_now;

use super::bench::{Bench, INFINITE, write};
use super::*;
use crate::prefetch::{Prefetched, prefetch};

const MIB: u64 = 1 << 20;

struct Running {
    bench: Bench,
    ended: Rc<Cell<Option<Prefetched>>>,
    progress: Rc<Cell<u64>>,
    /// Requests of clients in flight.
    busy: Rc<Cell<u64>>,
}

impl Running {
    /// Begins to prefetch into a tier of `bytes`.
    fn new(bytes: u64, ranges: &[Range<u64>]) -> Self {
        let bench = Bench::new(bytes, 4096, INFINITE);
        bench.tier.defer_writes(None);
        let (ended, progress, busy) =
            (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let running = Running { bench, ended, progress, busy };
        running.begin(ranges.to_vec());
        running
    }

    fn begin(&self, ranges: Vec<Range<u64>>) {
        let (tier, lane) = (self.bench.tier.clone(), self.bench.lane.clone());
        let volume: Rc<dyn BlockService> = self.bench.volume.clone();
        let (end, done, others) = (self.ended.clone(), self.progress.clone(), self.busy.clone());
        self.bench.lane.spawn(async move {
            let in_flight = || others.get();
            let told = |bytes| {
                done.set(bytes);
                Ok(())
            };
            end.set(Some(
                prefetch(&tier, &volume, &lane, ranges.into_iter(), in_flight, told).await,
            ));
        });
    }

    fn settle(&self) {
        for _ in 0..1000 {
            self.bench.pass(Duration::from_millis(200));
        }
    }
}

#[test]
fn ranges_are_read_in_order_in_a_few_long_requests_at_a_time() {
    let running = Running::new(8 * MIB, &[0..4096, 8192..MIB + 8192, 3 * MIB..u64::MAX]);
    let (bench, size) = (&running.bench, running.bench.disk.size());
    running.settle();
    let expected = [(0, 4096), (8192, MIB - 8192), (MIB, 8192), (3 * MIB, MIB)];
    assert_eq!(size, 4 * MIB);
    assert_eq!(bench.disk.requests(Op::Read), expected);
    let bytes = expected.iter().map(|(_, len)| len).sum();
    assert_eq!(running.ended.take(), Some(Prefetched { bytes, failed: 0 }));
    assert_eq!(running.progress.get(), bytes);
    assert_eq!(bench.tier.cached_blocks().len() as u64 * 4096, bytes);
}

#[test]
fn no_read_is_sent_while_two_have_no_answer() {
    let running = Running::new(8 * MIB, std::slice::from_ref(&(0..4 * MIB)));
    let bench = &running.bench;
    for _ in 0..100 {
        bench.run();
        bench.clock.pass(Duration::from_millis(200));
    }
    assert_eq!(bench.disk.waiting(), 2);
}

#[test]
fn prefetching_skips_cached_blocks_and_evicts_none() {
    let mut running = Running::new(MIB, &[]);
    running.settle();
    let bench = running.bench;
    assert_eq!(bench.ask(write(0, 8, 7)), Ok(()));
    assert_eq!(bench.ask(write(4096, 8, 7)), Ok(()));
    let (tier, lane) = (bench.tier.clone(), bench.lane.clone());
    let volume: Rc<dyn BlockService> = bench.volume.clone();
    let end = running.ended.clone();
    bench.lane.spawn(async move {
        let ranges = [0..4096, MIB..4 * MIB];
        let none = || 0;
        end.set(Some(prefetch(&tier, &volume, &lane, ranges.into_iter(), none, |_| Ok(())).await));
    });
    running.bench = bench;
    running.settle();
    let ended = running.ended.take().expect("it ends");
    assert_eq!((ended.bytes, ended.failed), (MIB - 8192, 0));
    let bench = &running.bench;
    assert_eq!(bench.tier.counts().evictions, 0);
    assert_eq!(bench.tier.cached_blocks()[0], 0, "what was there before is still there");
    assert_eq!(bench.tier.cached_blocks().len(), 256);
}

#[test]
fn prefetching_cached_blocks_leaves_turns_to_other_tasks() {
    let running = Running::new(8 * MIB, std::slice::from_ref(&(0..4 * MIB)));
    running.settle();
    assert!(running.ended.take().is_some(), "all of it is cached");
    running.progress.set(0);
    running.busy.set(1);
    running.begin(vec![0..4 * MIB; 100]);
    let turns = Rc::new(Cell::new(0));
    let (own, progress) = (turns.clone(), running.progress.clone());
    running.bench.lane.spawn(async move {
        while progress.get() < 400 * MIB && own.get() < 10_000 {
            own.set(own.get() + 1);
            yield_now().await;
        }
    });
    // No time passes, so the prefetch yields to nothing.
    running.bench.run();
    assert_eq!(running.ended.take(), Some(Prefetched::default()));
    assert!(turns.get() >= 100, "{} turns beside 400 regions", turns.get());
}

#[test]
fn a_read_gives_way_to_clients_for_a_while() {
    let running = Running::new(8 * MIB, std::slice::from_ref(&(0..MIB)));
    running.busy.set(1);
    let bench = &running.bench;
    for _ in 0..49 {
        bench.run();
        assert_eq!(bench.disk.waiting(), 0);
        bench.clock.pass(Duration::from_millis(2));
    }
    bench.clock.pass(Duration::from_millis(2));
    bench.run();
    assert_eq!(bench.disk.waiting(), 1);
    running.settle();
    assert_eq!(bench.disk.requests(Op::Read), [(0, MIB)]);
}

#[test]
fn a_read_that_fails_does_not_end_it() {
    let running = Running::new(8 * MIB, std::slice::from_ref(&(0..2 * MIB)));
    running.bench.disk.unreadable.replace(0..1);
    running.settle();
    assert_eq!(running.ended.take(), Some(Prefetched { bytes: 2 * MIB - (64 << 10), failed: 1 }));
    assert_eq!(running.progress.get(), 2 * MIB);
}
