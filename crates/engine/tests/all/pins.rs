//! Pinned blocks stay cached, regardless of other reads and writes.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Admission, BlockSize, Caching, Mode, Op, OriginBlock, ReplacementKind};
use forebay_device::Device;
use forebay_engine::{BlockSet, EngineErrorKind, EngineLane, LaneVolume, Settings};
use forebay_testkit::ram;

use crate::world::{World, settings};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Pinned blocks of the cache of 32 MiB.
const PINNED: std::ops::Range<u64> = 1000..2000;

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    volume: Rc<LaneVolume>,
    cache: Arc<dyn Device>,
    origin: Arc<dyn Device>,
}

impl Test {
    fn new(settings: Settings) -> Self {
        let world = World::new();
        let (cache, origin) = (ram(32), ram(256));
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let volume = world.create(&engine, &origin, settings, 0);
        world.op(&volume, Op::Flush, 0, 0);
        Test { world, engine, volume, cache, origin }
    }

    fn pin(&self, blocks: std::ops::Range<u64>) {
        self.engine.pin("data", &BlockSet::from(blocks)).expect("pinned");
    }

    /// Fills the pinned blocks; returns the number of blocks that are still absent.
    fn fill(&self) -> u64 {
        let (engine, blocks) = (self.engine.clone(), self.volume.volume().pinned());
        self.world
            .block_on(async move { engine.fill("data", &blocks, |_| Ok(())).await })
            .expect("filled")
    }

    /// Returns how many blocks of a range are cached.
    fn cached(&self, blocks: std::ops::Range<u64>) -> usize {
        let (store, space) = (&self.engine.cache.store, self.space());
        blocks.filter(|block| store.peek(&space, OriginBlock(*block)).is_some()).count()
    }

    fn space(&self) -> forebay_store::VolumeSpace {
        let id = self.volume.volume().id;
        self.engine.cache.store.space_of(id).expect("a volume")
    }

    /// Reads the whole origin, which is eight times as large as the cache.
    fn scan(&self) {
        for offset in (0..256 * MIB).step_by(64 << 10) {
            self.world.read(&self.volume, offset, 64 << 10);
        }
    }
}

fn in_mode(mode: Mode, policy: ReplacementKind) -> Settings {
    Settings { policy, ..settings(mode) }
}

#[test]
fn pinned_blocks_survive_scans_with_every_policy() {
    for policy in ReplacementKind::ALL.iter().copied() {
        let test = Test::new(in_mode(Mode::Writeback, policy));
        test.pin(PINNED);
        assert_eq!(test.fill(), 0, "{policy}");
        for _ in 0..2 {
            test.scan();
            assert_eq!(test.cached(PINNED), 1000, "{policy}");
        }
        // Other policies protect blocks that were read twice from scans.
        if policy == ReplacementKind::Lru {
            test.pin(0..0);
            (0..3).for_each(|_| test.scan());
            assert!(test.cached(PINNED) < 1000, "{policy}");
        }
    }
}

#[test]
fn pinned_blocks_survive_writes_of_everything_else() {
    for (mode, policy) in [
        (Mode::Writeback, ReplacementKind::S3Fifo),
        (Mode::Writeback, ReplacementKind::Lru),
        (Mode::Writeonly, ReplacementKind::S3Fifo),
        (Mode::Writethrough, ReplacementKind::S3Fifo),
    ] {
        let test = Test::new(in_mode(mode, policy));
        let mut random = fastrand::Rng::with_seed(5);
        for block in PINNED {
            test.world.write(&test.volume, block * BLOCK, &[7; BLOCK as usize]);
        }
        test.world.op(&test.volume, Op::Flush, 0, 0);
        test.pin(PINNED);
        for _ in 0..60_000 {
            let block = random.u64(0..65_536 - 1000);
            let block = if PINNED.contains(&block) { block + 1000 } else { block };
            test.world.write(&test.volume, block * BLOCK, &[8; BLOCK as usize]);
        }
        assert_eq!(test.cached(PINNED), 1000, "{mode} {policy}");
        let block = test.world.read(&test.volume, 1500 * BLOCK, BLOCK as usize);
        assert!(block.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn pinned_blocks_enter_although_others_may_not() {
    let admission = Admission::Ghost(1);
    let strict = Settings { admission, write_budget: 1, ..settings(Mode::Writeback) };
    let streams = Settings { sequential_cutoff: 64 << 10, ..settings(Mode::Writeback) };
    for settings in [strict, streams] {
        let test = Test::new(settings);
        test.pin(PINNED);
        test.scan();
        assert_eq!(test.cached(PINNED), 1000);
    }
}

#[test]
fn no_more_can_be_pinned_than_leaves_room_for_others() {
    let test = Test::new(settings(Mode::Writeback));
    let most = test.engine.most_pinned();
    assert!((2000..4000).contains(&most), "{most}");
    test.pin(0..most);
    let refused = test.engine.pin("data", &BlockSet::from(0..most + 1)).expect_err("too many");
    assert_eq!(refused.kind, EngineErrorKind::Refused);
    assert_eq!(test.volume.volume().pinned().len(), most);
    // Clients continue with the whole volume pinned.
    assert_eq!(test.fill(), 0);
    test.scan();
    for offset in (128 * MIB..256 * MIB).step_by(64 << 10) {
        test.world.write(&test.volume, offset, &[9; 64 << 10]);
    }
    assert_eq!(test.cached(0..most), most as usize);
    test.pin(70_000..80_000);
    assert!(test.volume.volume().pinned().is_empty(), "there is nothing at the end");
    assert!(test.engine.pin("other", &BlockSet::default()).is_err());
}

#[test]
fn a_volume_that_has_just_come_up_can_be_filled() {
    let test = Test::new(settings(Mode::Writeback));
    test.world.close(&test.engine).expect("closed");
    let (engine, _) = test.world.open(&test.cache);
    let volume = test.world.attach(&engine, &test.origin);
    let test = Test { engine, volume, ..test };
    test.pin(PINNED);
    assert_eq!(test.fill(), 0);
}

#[test]
fn where_nothing_enters_a_fill_is_refused() {
    for settings in [
        settings(Mode::Passthrough),
        settings(Mode::Writeonly),
        Settings { caching: Caching::Frozen, ..settings(Mode::Writeback) },
    ] {
        let test = Test::new(settings);
        let (engine, blocks) = (test.engine.clone(), BlockSet::from(PINNED));
        let fill = async move { engine.fill("data", &blocks, |_| Ok(())).await };
        let refused = test.world.block_on(fill).expect_err("nothing enters");
        assert_eq!(refused.kind, EngineErrorKind::Refused);
    }
}

#[test]
fn a_volume_that_is_attached_again_is_pinned_again() {
    let test = Test::new(settings(Mode::Writeback));
    test.pin(PINNED);
    assert_eq!(test.fill(), 0);
    test.world.close(&test.engine).expect("closed");
    let (engine, _) = test.world.open(&test.cache);
    let volume = test.world.attach(&engine, &test.origin);
    assert!(volume.volume().pinned().is_empty());
    let test = Test { engine, volume, ..test };
    assert_eq!(test.cached(PINNED), 1000, "they are warm");
    test.pin(PINNED);
    test.scan();
    assert_eq!(test.cached(PINNED), 1000);
}

#[test]
fn blocks_of_a_range_are_forgotten() {
    let test = Test::new(settings(Mode::Writeback));
    test.scan();
    test.pin(PINNED);
    assert_eq!(test.fill(), 0);
    test.world.write(&test.volume, 1100 * BLOCK, &[9; BLOCK as usize]);
    let before = test.engine.cache.store.index.len();
    let (engine, some) = (test.engine.clone(), BlockSet::from(1000..1200));
    test.world
        .block_on(async move { engine.forget_clean_of("data", &some, |_| Ok(())).await })
        .expect("forgotten");
    assert_eq!(test.cached(1000..1200), 1, "the dirty one stays");
    assert_eq!(before - test.engine.cache.store.index.len(), 199);
    assert_eq!(test.cached(1200..2000), 800);
}
