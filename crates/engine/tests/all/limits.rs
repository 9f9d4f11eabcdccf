//! The top of a volume's stack: clients get the rate that the limits allow, whichever tier serves
//! them, and no service once another machine has taken over the origin.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op, Survives};
use forebay_device::{Device, IoBuf};
use forebay_engine::{
    BlockService, CompletionSink, EngineLane, LaneVolume, LimitedVolume, Recording, Request,
    Settings,
};
use forebay_testkit::{faulty, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    volume: Rc<LaneVolume>,
    top: Rc<LimitedVolume>,
    tag: u64,
}

impl Test {
    fn new(limits: Settings) -> Self {
        Test::on(&ram(64), limits)
    }

    fn on(origin: &Arc<dyn Device>, limits: Settings) -> Self {
        let world = World::new();
        let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
        let volume = world.create(&engine, origin, limits, 0);
        world.write(&volume, 0, &[7; 1 << 20]);
        let top = LimitedVolume::new(volume.clone(), volume.clone());
        Test { world, engine, volume, top, tag: 1 << 32 }
    }

    fn submit(&mut self, op: Op, len: u64) -> u64 {
        self.tag += 1;
        let data = (op == Op::Write).then(|| IoBuf::zeroed(len as usize));
        let (tag, survives, fast, no_hole) = (self.tag, Survives::Nothing, false, false);
        let request = Request { tag, op, offset: 0, len, survives, fast, no_hole, data };
        let sink: Rc<dyn CompletionSink> = self.world.sink.clone();
        self.top.submit(request, &sink);
        self.tag
    }

    /// Reads like a front end, at once if possible.
    fn read(&mut self, len: u64) {
        let mut into = vec![0; len as usize];
        match self.top.read_now(0, &mut into) {
            Some(read) => read.expect("read"),
            None => {
                let tag = self.submit(Op::Read, len);
                self.world.wait(tag).result.expect("read");
            }
        }
    }

    /// Returns the time that `count` actions take after the burst at the beginning.
    fn time_of(&mut self, count: u32, mut act: impl FnMut(&mut Self)) -> Duration {
        (0..100).for_each(|_| act(self));
        let begun = self.world.lane.now();
        (0..count).for_each(|_| act(self));
        self.world.lane.now().since(begun)
    }
}

fn limited(limit_iops: u64, limit_bandwidth: u64) -> Settings {
    Settings { limit_iops, limit_bandwidth, ..settings(Mode::Writeback) }
}

/// Within a hundredth.
fn is_near(time: Duration, expected: Duration) -> bool {
    time.abs_diff(expected) * 100 <= expected
}

#[test]
fn hits_are_limited_in_number_and_in_bytes() {
    let mut test = Test::new(limited(1000, 0));
    let time = test.time_of(1000, |test| test.read(BLOCK));
    assert!(is_near(time, Duration::from_secs(1)), "{time:?}");
    let waited = test.volume.volume().stats.totals();
    assert!(waited.limited_requests >= 1000);
    assert!(waited.limited_wait_ns >= 1_000_000_000);

    let mut test = Test::new(limited(0, 1 << 20));
    let time = test.time_of(256, |test| test.read(BLOCK));
    assert!(is_near(time, Duration::from_secs(1)), "{time:?}");
}

#[test]
fn requests_in_flight_share_the_limit_with_writes_and_discards() {
    let mut test = Test::new(limited(1000, 0));
    let time = test.time_of(250, |test| {
        let ops = [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard];
        let tags = ops.map(|op| test.submit(op, BLOCK));
        for tag in tags {
            test.world.wait(tag).result.expect("done");
        }
    });
    assert!(is_near(time, Duration::from_secs(1)), "{time:?}");
}

#[test]
fn flushes_do_not_wait() {
    let mut test = Test::new(limited(1, 0));
    test.read(BLOCK);
    let waiting = test.submit(Op::Read, BLOCK);
    let begun = test.world.lane.now();
    let flush = test.submit(Op::Flush, 0);
    test.world.wait(flush).result.expect("flushed");
    assert!(test.world.lane.now().since(begun) < Duration::from_millis(100));
    assert!(test.world.done(waiting).is_none());
}

#[test]
fn a_change_of_the_limits_concerns_requests_that_wait() {
    let mut test = Test::new(limited(1, 0));
    test.read(BLOCK);
    let waiting: Vec<u64> = (0..100).map(|_| test.submit(Op::Read, BLOCK)).collect();
    let begun = test.world.lane.now();
    test.world.set(&test.engine, limited(1000, 0)).expect("changed");
    for tag in waiting {
        test.world.wait(tag).result.expect("read");
    }
    let time = test.world.lane.now().since(begun);
    assert!(time < Duration::from_millis(200), "{time:?}");
}

#[test]
fn a_volume_that_stops_waits_for_nobodys_turn() {
    let mut test = Test::new(limited(1, 0));
    test.read(BLOCK);
    let waiting = test.submit(Op::Read, BLOCK);
    let begun = test.world.lane.now();
    test.world.stop(&test.engine, "data").expect("stopped");
    assert_eq!(test.world.wait(waiting).result, Err(IoError::ShuttingDown));
    assert!(test.world.lane.now().since(begun) < Duration::from_millis(500));
}

#[test]
fn without_limits_nothing_waits() {
    let mut test = Test::new(limited(0, 0));
    let time = test.time_of(10_000, |test| test.read(BLOCK));
    assert_eq!(time, Duration::ZERO);
    test.engine.lift_limits();
    assert_eq!(test.volume.volume().stats.totals().limited_requests, 0);
}

#[test]
fn a_volume_whose_origin_was_taken_over_serves_nothing() {
    let (origin, faults) = faulty(ram(64));
    let mut test = Test::on(&origin, limited(1, 0));
    test.read(BLOCK);
    let waiting: Vec<u64> = (0..5).map(|_| test.submit(Op::Read, BLOCK)).collect();
    let dirty = test.volume.volume().dirty_blocks();
    assert!(dirty > 0, "nothing could be written late");
    faults.fence();
    let writes = faults.writes();
    // The take-over is noticed within a second, and the turn of the last waiting request comes
    // after that.
    assert_eq!(test.world.wait(waiting[4]).result, Err(IoError::Io));
    assert_eq!(test.top.read_now(0, &mut [0; BLOCK as usize]), Some(Err(IoError::Io)), "a hit");
    assert_eq!(test.top.write_now(0, &[1; BLOCK as usize]), Some(Err(IoError::Io)));
    for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush] {
        let tag = test.submit(op, if op == Op::Flush { 0 } else { BLOCK });
        let done = test.world.wait(tag);
        assert_eq!(done.result, Err(IoError::Io), "{op:?}");
        assert_eq!(done.data.is_some(), op == Op::Write, "its memory comes back");
    }
    let fenced = test.volume.volume().origin_fenced().expect("it says so");
    assert!(fenced.contains("another machine has it"), "{fenced}");
    assert_eq!((faults.writes(), test.volume.volume().dirty_blocks()), (writes, dirty));
}

#[test]
fn client_requests_are_recorded_only_while_recording_is_on() {
    let mut test = Test::new(limited(1000, 0));
    let volume = test.volume.volume().clone();
    test.read(BLOCK);
    let mut recording = Recording::begin(&volume).expect("nobody records");
    assert!(Recording::begin(&volume).is_none());
    let begun = test.world.lane.now();
    for (op, len) in [
        (Op::Write, 512),
        (Op::WriteZeroes, BLOCK),
        (Op::WriteZeroes, 1 << 19),
        (Op::Discard, BLOCK),
    ] {
        let tag = test.submit(op, len);
        test.world.wait(tag).result.expect("done");
    }
    test.submit(Op::Flush, 0);
    (0..100).for_each(|_| test.read(2 * BLOCK));
    let mut found = Vec::new();
    recording.take(&mut found);
    let kinds: Vec<_> = found.iter().map(|request| (request.op, request.len)).collect();
    let first =
        [(Op::Write, 512), (Op::Write, BLOCK), (Op::Discard, 1 << 19), (Op::Discard, BLOCK)];
    assert_eq!(kinds[..4], first);
    // Each request is recorded once, whether it was answered at once or waited for its turn.
    assert_eq!(kinds[4..], [(Op::Read, 2 * BLOCK); 100]);
    let times = found.iter().map(|request| request.time);
    assert!(times.clone().is_sorted() && times.into_iter().all(|time| time >= begun));
    assert_eq!((recording.left_out(), recording.is_over()), (0, false));
    drop(recording);
    test.read(BLOCK);
    let mut again = Recording::begin(&volume).expect("nobody records any more");
    found.clear();
    again.take(&mut found);
    assert!(found.is_empty());
}
