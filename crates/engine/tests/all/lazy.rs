//! Writeback that lets the origin's disk sleep.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Laziness, Mode, Op, QuietHours};
use forebay_device::{Device, OpKind};
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::ram;

use crate::world::{World, settings};

const BLOCK: u64 = 4096;
const MINUTE: Duration = Duration::from_secs(60);

struct Bench {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
}

fn lazy() -> Settings {
    Settings { writeback: Laziness::Lazy, ..settings(Mode::Writeback) }
}

/// A volume whose origin has not been accessed for some minutes.
fn bench(settings: Settings) -> Bench {
    let world = World::new();
    let (cache, origin): (Arc<dyn Device>, _) = (ram(16), ram(32));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings, 0);
    world.op(&target, Op::Flush, 0, 0);
    world.advance(5 * MINUTE);
    Bench { world, engine, target }
}

impl Bench {
    fn dirty(&self, blocks: std::ops::Range<u64>) {
        for block in blocks {
            self.world.write(&self.target, block * BLOCK, &[block as u8 | 1; BLOCK as usize]);
        }
    }

    fn left(&self) -> u64 {
        self.target.volume().dirty_blocks()
    }

    /// Returns how many operations the origin has had.
    fn accesses(&self) -> u64 {
        self.target.volume().meter.counts().iter().map(|kind| kind.latency.total()).sum()
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.target.volume().settings();
        change(&mut settings);
        self.world.set(&self.engine, settings).expect("set");
    }
}

/// Background tasks do not access the origin of an idle volume either, in both orders of writeback.
#[test]
fn dirty_blocks_are_left_alone_for_hours() {
    for ordered in [false, true] {
        let bench = bench(Settings { ordered, ..lazy() });
        let before = bench.accesses();
        for minute in 0..6 * 60 {
            // A log that grows and is flushed.
            bench.dirty(minute % 7 * 100..minute % 7 * 100 + 2);
            bench.world.op(&bench.target, Op::Flush, 0, 0);
            bench.world.advance(MINUTE);
        }
        assert_eq!(bench.accesses(), before, "ordered: {ordered}");
        assert_eq!(bench.left(), 14);
        let (current, rested) = bench.target.volume().origin_rests();
        assert!(current >= 6 * 60 * MINUTE && rested >= current, "{current:?} {rested:?}");
    }
}

#[test]
fn an_eager_volume_wakes_its_disk_for_a_log() {
    let bench = bench(settings(Mode::Writeback));
    for _ in 0..10 {
        bench.dirty(0..2);
        bench.world.advance(5 * MINUTE);
        assert_eq!(bench.left(), 0);
    }
    let wake = bench.target.volume().stats.why().wake;
    assert_eq!((wake.idle, wake.total()), (10, 10), "{wake:?}");
}

#[test]
fn a_read_miss_is_followed_by_one_sweep_down_to_nothing() {
    for ordered in [false, true] {
        let bench = bench(Settings { ordered, ..lazy() });
        bench.dirty(0..200);
        bench.world.advance(60 * MINUTE);
        assert_eq!(bench.left(), 200);
        bench.world.read(&bench.target, 3000 * BLOCK, 4096);
        bench.world.advance(Duration::from_secs(9));
        assert_eq!(bench.left(), 0, "ordered: {ordered}");
        let why = bench.target.volume().stats.why();
        assert_eq!((why.written_back.awake, why.written_back.total()), (200, 200));
        assert_eq!((why.wake.read, why.wake.total()), (1, 1), "{:?}", why.wake);
        bench.world.advance(Duration::from_secs(10));
        let before = bench.accesses();
        // A read of cached blocks does not access the origin.
        bench.dirty(0..200);
        bench.world.read(&bench.target, 3000 * BLOCK, 4096);
        bench.world.advance(60 * MINUTE);
        assert_eq!((bench.accesses(), bench.left()), (before, 200), "ordered: {ordered}");
    }
}

#[test]
fn a_write_around_the_cache_is_followed_by_a_sweep_too() {
    // With its budget spent, the cache takes no long writes, whether the disk sleeps or not.
    let bench = bench(Settings { sequential_cutoff: 64 << 10, write_budget: 1, ..lazy() });
    bench.dirty(0..10);
    bench.world.advance(60 * MINUTE);
    for chunk in 0..16 {
        bench.world.write(&bench.target, (4 << 20) + (chunk << 16), &[7; 64 << 10]);
    }
    bench.world.advance(Duration::from_secs(9));
    assert_eq!(bench.left(), 0);
    let wake = bench.target.volume().stats.why().wake;
    assert_eq!((wake.write, wake.total()), (1, 1), "{wake:?}");
}

/// Appends to a log form a long stream after a while, and its writes must not wake the disk.
#[test]
fn long_streams_bypass_the_cache_only_while_the_disk_is_awake() {
    let bench = bench(Settings { sequential_cutoff: 64 << 10, ..lazy() });
    let before = bench.accesses();
    for block in 0..200 {
        bench.dirty(block..block + 1);
        bench.world.op(&bench.target, Op::Flush, 0, 0);
        bench.world.advance(MINUTE);
    }
    assert_eq!((bench.accesses(), bench.left()), (before, 200));
    bench.world.read(&bench.target, 3000 * BLOCK, 4096);
    bench.dirty(200..201);
    let why = bench.target.volume().stats.why();
    assert_eq!((why.bypass.sequential, why.wake.total()), (1, 1), "{why:?}");
}

#[test]
fn the_fill_level_starts_a_sweep_down_to_nothing() {
    let bench = bench(Settings { dirty_high: 20, dirty_low: 10, ..lazy() });
    let blocks = bench.engine.cache.store.capacity_blocks();
    bench.dirty(0..blocks / 5 - 1);
    bench.world.advance(60 * MINUTE);
    assert_eq!(bench.left(), blocks / 5 - 1);
    bench.dirty(blocks / 5 - 1..blocks / 5 + 1);
    bench.world.advance(2 * MINUTE);
    assert_eq!(bench.left(), 0);
    let why = bench.target.volume().stats.why();
    assert_eq!(why.written_back.dirty_high, why.written_back.total());
    assert_eq!((why.wake.dirty_high, why.wake.total()), (1, 1), "{:?}", why.wake);
}

#[test]
fn quiet_hours_start_one_sweep_when_they_begin() {
    let bench = bench(lazy());
    let now = (bench.world.lane.clock().time_of_day().as_secs() / 60) as u16;
    let at = |minutes: u16| (now + minutes) % 1440;
    let hours = QuietHours::new(at(60), at(180));
    bench.set(|settings| settings.quiet_hours = hours);
    bench.dirty(0..100);
    bench.world.advance(55 * MINUTE);
    assert_eq!(bench.left(), 100);
    bench.world.advance(10 * MINUTE);
    assert_eq!(bench.left(), 0);
    bench.dirty(0..100);
    (0..20).for_each(|_| bench.world.advance(60 * MINUTE));
    assert_eq!(bench.left(), 100, "a log that is written by night does not keep the disk awake");
    (0..5).for_each(|_| bench.world.advance(60 * MINUTE));
    assert_eq!(bench.left(), 0, "the next night");
    let wake = bench.target.volume().stats.why().wake;
    assert_eq!((wake.quiet_hours, wake.total()), (2, 2), "{wake:?}");
}

#[test]
fn a_drain_and_a_change_of_the_setting_write_everything_back() {
    let bench = bench(lazy());
    bench.dirty(0..50);
    bench.world.advance(60 * MINUTE);
    bench.world.drain(&bench.engine).expect("drained");
    assert_eq!(bench.left(), 0);
    let written = bench.target.volume().meter.counts()[OpKind::Write as usize].latency.total();
    assert!(written > 0);
    bench.dirty(0..50);
    bench.world.advance(60 * MINUTE);
    assert_eq!(bench.left(), 50);
    bench.set(|settings| settings.writeback = Laziness::Eager);
    bench.world.advance(MINUTE);
    assert_eq!(bench.left(), 0);
    let wake = bench.target.volume().stats.why().wake;
    assert_eq!((wake.drain, wake.idle, wake.total()), (1, 1, 2), "{wake:?}");
}
