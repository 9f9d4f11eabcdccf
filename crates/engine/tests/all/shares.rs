//! Volumes of one cache stay within their shares.

use std::rc::Rc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op, ReplacementKind};
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::ram;

use crate::world::{World, settings};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Ranks, and lists in order of use and without any order.
const POLICIES: [ReplacementKind; 3] =
    [ReplacementKind::S3Fifo, ReplacementKind::Lru, ReplacementKind::Random];

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    one: Rc<LaneVolume>,
    two: Rc<LaneVolume>,
}

impl Test {
    /// Two volumes of 256 MiB on a cache of 64 MiB.
    fn new(one: Settings, two: Settings) -> Self {
        let world = World::new();
        let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
        let one = world.create_as(&engine, "a", &ram(256), one, 0);
        let two = world.create_as(&engine, "b", &ram(256), two, 0);
        Test { world, engine, one, two }
    }

    fn read(&self, volume: &Rc<LaneVolume>, mib: std::ops::Range<u64>) {
        for offset in (mib.start * MIB..mib.end * MIB).step_by(64 << 10) {
            self.world.read(volume, offset, 64 << 10);
        }
    }

    fn set_one(&self, settings: Settings) {
        self.world.set_as(&self.engine, "a", settings).expect("set");
    }

    /// Lets background work catch up.
    fn settle(&self) {
        let lane = self.world.lane.clone();
        self.world.block_on(async move { lane.sleep(Duration::from_secs(1)).await });
    }

    /// Returns the percentage of the cache that a volume occupies.
    fn share(&self, volume: &LaneVolume) -> f64 {
        let blocks = self.engine.cache.occupancy()[&volume.volume().id].cached;
        blocks as f64 * 100.0 / self.engine.cache.store.capacity_blocks() as f64
    }
}

fn with(policy: ReplacementKind, share_min: u8, share_max: u8) -> Settings {
    Settings { policy, share_min, share_max, ..settings(Mode::Writeback) }
}

#[test]
fn a_volume_has_no_more_than_its_largest_share() {
    for policy in POLICIES {
        let test = Test::new(with(policy, 0, 20), with(policy, 0, 100));
        test.read(&test.one, 0..40);
        test.settle();
        let share = test.share(&test.one);
        assert!((18.0..=20.0).contains(&share), "{policy}: {share}, in an empty cache");
        test.read(&test.two, 0..256);
        test.read(&test.one, 40..80);
        test.settle();
        let share = test.share(&test.one);
        assert!(share <= 20.0, "{policy}: {share}");
        assert!(test.one.volume().stats.why().evicted.share > 0, "{policy}");
    }
}

#[test]
fn a_volume_keeps_its_smallest_share_while_another_is_scanned() {
    for policy in POLICIES {
        let test = Test::new(with(policy, 30, 100), with(policy, 0, 100));
        test.read(&test.one, 0..24);
        test.settle();
        test.read(&test.two, 0..256);
        let share = test.share(&test.one);
        assert!((29.0..45.0).contains(&share), "{policy}: {share}");
        // Blocks of the volume itself still displace each other.
        test.read(&test.one, 100..200);
        test.settle();
        let share = test.share(&test.one);
        assert!(share >= 29.0, "{policy}: {share}");
        assert_eq!(test.world.read(&test.one, 0, BLOCK as usize).len(), BLOCK as usize);
    }
}

#[test]
fn dirty_blocks_keep_to_the_largest_share() {
    let test = Test::new(
        Settings { dirty_high: 80, dirty_low: 70, ..with(ReplacementKind::S3Fifo, 0, 20) },
        with(ReplacementKind::S3Fifo, 0, 100),
    );
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..20_000 {
        let block = random.u64(0..65_536);
        test.world.write(&test.one, block * BLOCK, &[3; BLOCK as usize]);
    }
    let dirty = test.one.volume().dirty_blocks() as f64;
    let dirty = dirty * 100.0 / test.engine.cache.store.capacity_blocks() as f64;
    assert!((5.0..20.0).contains(&dirty), "{dirty}");
    // The writers of the other volume do not wait for it.
    let begun = test.world.lane.now();
    for block in 0..1000 {
        test.world.write(&test.two, block * BLOCK, &[4; BLOCK as usize]);
    }
    let took = test.world.lane.now().since(begun);
    assert!(took < Duration::from_millis(500), "{took:?}");
    test.settle();
    assert!(test.share(&test.one) <= 20.0);
    test.world.op(&test.one, Op::Flush, 0, 0);
}

#[test]
fn shares_can_be_changed_while_the_volume_is_used() {
    let test =
        Test::new(with(ReplacementKind::S3Fifo, 0, 100), with(ReplacementKind::S3Fifo, 0, 100));
    test.read(&test.one, 0..48);
    assert!(test.share(&test.one) > 50.0);
    test.set_one(with(ReplacementKind::S3Fifo, 0, 10));
    test.settle();
    assert!(test.share(&test.one) <= 10.0);
    test.set_one(with(ReplacementKind::S3Fifo, 0, 100));
    test.read(&test.one, 0..48);
    test.settle();
    assert!(test.share(&test.one) > 50.0);
}
