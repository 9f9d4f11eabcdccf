//! Long sequential streams use spare space, and take none from other volumes.

use std::rc::Rc;

use forebay_core::{BlockSize, Mode, Op, ReplacementKind};
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::ram;

use crate::world::{World, settings};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 << 10;

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    volume: Rc<LaneVolume>,
}

impl Test {
    /// A cache of 64 MiB before an origin of 512 MiB, where streams of 1 MiB are long.
    fn new(mode: Mode) -> Self {
        let world = World::new();
        let engine = world.new_cache(&ram(64), BlockSize::DEFAULT);
        // LRU protects nothing from a stream by itself.
        let policy = ReplacementKind::Lru;
        let settings = Settings { sequential_cutoff: MIB, policy, ..settings(mode) };
        let volume = world.create(&engine, &ram(512), settings, 0);
        world.op(&volume, Op::Flush, 0, 0);
        Test { world, engine, volume }
    }

    /// Reads a range in address order. Returns the number of requests that bypassed the cache.
    fn stream(&self, mib: std::ops::Range<u64>) -> u64 {
        let before = self.bypassed();
        for offset in (mib.start * MIB..mib.end * MIB).step_by(CHUNK as usize) {
            self.world.read(&self.volume, offset, CHUNK as usize);
        }
        self.bypassed() - before
    }

    fn bypassed(&self) -> u64 {
        self.volume.volume().stats.why().bypass.sequential
    }

    /// Reads a working set of 16 MiB in random order. Returns the percentage of single-block reads
    /// that were hits.
    fn working_set(&self, seed: u64) -> u64 {
        let before = self.volume.volume().stats.totals();
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            self.world.read(&self.volume, random.u64(0..4096) * 4096, 4096);
        }
        let after = self.volume.volume().stats.totals();
        (after.read_hits - before.read_hits) * 100 / 20_000
    }
}

#[test]
fn a_stream_is_cached_while_that_evicts_nothing() {
    let test = Test::new(Mode::Writeback);
    assert_eq!(test.stream(0..24), 0);
    let hits = test.volume.volume().stats.totals().read_hits;
    assert_eq!(test.stream(0..24), 0, "what is cached is read from the cache");
    assert_eq!(test.volume.volume().stats.totals().read_hits - hits, 24 * MIB / CHUNK);
    // The rest does not fit.
    let bypassed = test.stream(24..512);
    assert!(bypassed > 400 * MIB / CHUNK, "{bypassed}");
    assert!(test.engine.cache.store.segments.free_count() > 0);
}

#[test]
fn a_backup_of_the_whole_origin_leaves_a_working_set_alone() {
    let test = Test::new(Mode::Writeback);
    test.working_set(1);
    let before = test.working_set(2);
    assert!(before >= 99, "{before}");
    for _ in 0..3 {
        test.stream(0..512);
    }
    let after = test.working_set(3);
    assert!(after >= before, "{before} % before, {after} % after");
}
