//! Paused and frozen volumes, and blocks that an operator drops.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Caching, Mode, Op};
use forebay_device::Device;
use forebay_engine::{BlockService, EngineLane, LaneVolume, Settings};
use forebay_testkit::{OpKind, peek, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;
const LEN: usize = BLOCK as usize;

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    origin: Arc<dyn Device>,
}

impl Test {
    fn new(settings: Settings) -> Self {
        let world = World::new();
        let engine = world.new_cache(&ram(32), BlockSize::DEFAULT);
        let origin = ram(32);
        let target = world.create(&engine, &origin, settings, 0);
        // Without a sync the origin could still lose writes of an earlier run, so nothing would be
        // filled.
        world.op(&target, Op::Flush, 0, 0);
        Test { world, engine, target, origin }
    }

    fn set(&self, caching: Caching) {
        let settings = Settings { caching, ..self.target.volume().settings() };
        self.world.set(&self.engine, settings).expect("set");
    }

    /// Writes blocks with this value.
    fn write(&self, first: u64, count: usize, value: u8) {
        self.world.write(&self.target, first * BLOCK, &vec![value; count * LEN]);
    }

    /// Reads blocks, and returns the value of each.
    fn read(&self, first: u64, count: usize) -> Vec<u8> {
        let data = self.world.read(&self.target, first * BLOCK, count * LEN);
        let value = |block: &[u8]| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
            block[0]
        };
        data.chunks(LEN).map(value).collect()
    }

    /// Returns the first byte of each block on the origin.
    fn below(&self, first: u64, count: usize) -> Vec<u8> {
        peek(&self.origin, first * BLOCK, count * LEN).chunks(LEN).map(|block| block[0]).collect()
    }

    fn cached(&self) -> u64 {
        self.engine.cache.store.index.len()
    }

    fn hits(&self) -> u64 {
        self.target.volume().stats.totals().read_hits
    }

    fn forget_clean(&self) {
        let engine = self.engine.clone();
        self.world
            .block_on(async move { engine.forget_clean("data", |_| Ok(())).await })
            .expect("forgotten");
    }
}

#[test]
fn a_paused_volume_has_drained_and_passes_through() {
    for mode in [Mode::Writeback, Mode::Writeonly, Mode::Writethrough] {
        let test = Test::new(settings(mode));
        test.write(0, 8, 1);
        test.set(Caching::Paused);
        test.world.drain(&test.engine).expect("drained");
        assert_eq!((test.target.volume().dirty_blocks(), test.below(0, 8)), (0, vec![1; 8]));
        // Written blocks leave the cache; the others stay, and are not used.
        test.write(2, 4, 2);
        assert_eq!(test.below(0, 8), [1, 1, 2, 2, 2, 2, 1, 1], "{mode}");
        let hits = test.hits();
        assert_eq!(test.read(0, 16), [[1, 1, 2, 2, 2, 2, 1, 1], [0; 8]].concat());
        assert_eq!((test.cached(), test.hits()), (4, hits));
        let why = test.target.volume().stats.why();
        assert!(why.bypass.mode > 0 && why.miss.mode == 1, "{why:?}");
        test.set(Caching::On);
        assert_eq!(test.read(6, 2), [1, 1]);
        assert_eq!(test.hits(), hits + 1, "it is still warm");
        assert_eq!(test.read(0, 8), [1, 1, 2, 2, 2, 2, 1, 1]);
        assert_eq!(test.target.volume().settings().mode, mode);
    }
}

#[test]
fn an_ordered_volume_is_in_order_again_after_a_pause() {
    let test = Test::new(Settings { ordered: true, ..settings(Mode::Writeback) });
    test.write(0, 8, 1);
    test.set(Caching::Paused);
    test.world.drain(&test.engine).expect("drained");
    assert_eq!(test.below(0, 8), [1; 8]);
    let volume = test.target.volume().clone();
    test.world.run(|| (!test.engine.cache.store.has_order(volume.id)).then_some(()));
    test.write(0, 1, 2);
    assert_eq!(test.below(0, 1), [2]);
    test.set(Caching::On);
    test.world.run(|| test.engine.cache.store.is_in_order(volume.id).then_some(()));
    test.write(0, 1, 3);
    assert_eq!((test.read(0, 1), test.below(0, 1)), (vec![3], vec![2]));
}

#[test]
fn a_frozen_volume_serves_and_updates_blocks_but_admits_none() {
    for mode in [Mode::Writeback, Mode::Writeonly, Mode::Writethrough] {
        let test = Test::new(settings(mode));
        // Blocks 1 and 3 are cached.
        test.write(1, 1, 1);
        test.write(3, 1, 1);
        test.set(Caching::Frozen);
        test.read(0, 8);
        test.world.op(&test.target, Op::Prefetch, 8 * BLOCK, 8 * BLOCK);
        assert_eq!(test.cached(), 2, "{mode}: reads fill nothing");
        // A part of a block, written at once; and requests with several blocks, some of them
        // cached.
        test.world.write(&test.target, 5 * BLOCK + 512, &[9; 512]);
        assert_eq!(test.target.write_now(6 * BLOCK, &[7; LEN]), None, "it has to go around");
        test.write(0, 5, 2);
        assert_eq!((test.cached(), test.read(0, 5)), (2, vec![2; 5]), "{mode}");
        assert_eq!(test.below(0, 1), [2]);
        if mode != Mode::Writethrough {
            assert_eq!(test.below(0, 5), [2, 0, 2, 0, 2], "only what is cached is dirty");
            assert_eq!(test.target.write_now(BLOCK, &[3; LEN]), Some(Ok(())));
            assert_eq!(test.read(0, 3), [2, 3, 2]);
        }
        let hits = test.hits();
        test.read(1, 1);
        assert_eq!((test.cached(), test.hits()), (2, hits + 1), "{mode}");
        let why = test.target.volume().stats.why();
        assert!(why.bypass.frozen >= 3, "{why:?}");
        assert!(mode == Mode::Writeonly || why.miss.frozen > 0, "{why:?}");
        test.set(Caching::On);
        test.read(8, 1);
        assert_eq!(test.cached(), if mode == Mode::Writeonly { 2 } else { 3 }, "{mode}");
    }
}

#[test]
fn a_sequential_write_to_a_frozen_volume_keeps_what_is_cached() {
    let test = Test::new(Settings { sequential_cutoff: 64 << 10, ..settings(Mode::Writeback) });
    test.write(100, 1, 1);
    test.set(Caching::Frozen);
    for block in (0..256).step_by(8) {
        test.write(block, 8, 2);
    }
    assert_eq!((test.cached(), test.read(100, 1)), (1, vec![2]));
}

#[test]
fn freezing_keeps_fills_in_flight_out_of_the_cache() {
    let world = World::new();
    let engine = world.new_cache(&ram(32), BlockSize::DEFAULT);
    let (origin, faults) = world.faulty(ram(32));
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    world.op(&target, Op::Flush, 0, 0);
    faults.hang(&[OpKind::Read]);
    let tag = world.submit(&target, Op::Read, 0, BLOCK, None);
    world.advance(Duration::from_millis(1));
    let frozen = Settings { caching: Caching::Frozen, ..target.volume().settings() };
    world.set(&engine, frozen).expect("set");
    faults.heal();
    world.wait(tag).result.expect("read");
    assert_eq!(engine.cache.store.index.len(), 0);
}

#[test]
fn dropped_blocks_are_clean_and_counted() {
    let test = Test::new(settings(Mode::Writeback));
    test.read(0, 16);
    test.write(4, 4, 1);
    assert_eq!(test.cached(), 16);
    test.forget_clean();
    assert_eq!((test.cached(), test.target.volume().dirty_blocks()), (4, 4));
    assert_eq!(test.read(0, 12), [[0; 4], [1; 4], [0; 4]].concat());
    let why = test.target.volume().stats.why();
    assert_eq!((why.invalidated.dropped, why.miss.invalidated), (12, 1));
    assert_eq!(test.below(4, 4), [0; 4]);
}
