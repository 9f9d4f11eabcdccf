//! Admission: second hit, write budget, congestion, and promotion of neighbourhoods.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Admission, BlockSize, Durability, Mode, Op};
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::{OpKind, poke, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

struct Test {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    /// The duration of an operation on the cache device.
    micros: Arc<AtomicU64>,
}

impl Test {
    fn new(settings: Settings) -> Self {
        Test::with(settings, BlockSize::DEFAULT, 0, 64)
    }

    /// Creates a cache and an origin of `mib` MiB each.
    fn with(settings: Settings, block: BlockSize, alignment: u64, mib: u64) -> Self {
        let world = World::new();
        let micros = Arc::new(AtomicU64::new(0));
        let (cache, faults) = world.faulty(ram(mib));
        let (clock, takes) = (world.clock.clone(), micros.clone());
        faults.observe(move |_| clock.pass(Duration::from_micros(takes.load(Ordering::SeqCst))));
        let engine = world.new_cache(&cache, block);
        let origin = ram(mib);
        poke(&origin, 0, &content(0, mib * MIB));
        let target = world.create(&engine, &origin, settings, alignment);
        // Without a sync the origin could still lose writes of an earlier run, so nothing would be
        // filled.
        world.op(&target, Op::Flush, 0, 0);
        Test { world, engine, target, micros }
    }

    fn set(&self, settings: Settings) {
        self.world.set(&self.engine, settings).expect("set");
    }

    /// Reads a range and checks its content.
    fn read(&self, offset: u64, len: u64) {
        let data = self.world.read(&self.target, offset, len as usize);
        assert!(data == content(offset, len), "{len} bytes at {offset} are not what they were");
    }

    fn write(&self, offset: u64, len: u64) {
        self.world.write(&self.target, offset, &content(offset, len));
    }

    fn is_cached(&self, offset: u64) -> bool {
        let hits = self.target.volume().stats.totals().read_hits;
        // Switched to write-only mode, so that this read fills nothing.
        let before = self.target.volume().settings();
        self.set(Settings { mode: Mode::Writeonly, ..before.clone() });
        self.read(offset, 512);
        self.set(before);
        self.target.volume().stats.totals().read_hits > hits
    }

    fn cached_blocks(&self) -> u64 {
        self.engine.cache.store.index.len()
    }

    fn why(&self) -> forebay_core::why::Why {
        self.target.volume().stats.why()
    }
}

/// The content of the origin and of all writes. It depends only on the address, so every read can
/// be checked.
fn content(offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    for (index, sector) in bytes.chunks_mut(512).enumerate() {
        let number = (offset / 512 + index as u64) * 0x9E37_79B9;
        sector[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn with_rule(mode: Mode, admission: Admission) -> Settings {
    Settings { admission, ..settings(mode) }
}

#[test]
fn with_second_hit_a_block_enters_when_it_is_missed_again() {
    for (mode, times) in [
        (Mode::Writeback, 1),
        (Mode::Writethrough, 1),
        (Mode::Writearound, 4),
        (Mode::Writeback, Admission::MOST),
    ] {
        let test = Test::new(with_rule(mode, Admission::Ghost(times)));
        for block in 0..100 {
            test.read(block * BLOCK, BLOCK);
        }
        assert_eq!(test.cached_blocks(), 0);
        for block in 0..100 {
            test.read(block * BLOCK, BLOCK);
        }
        assert_eq!(test.cached_blocks(), 100);
        for block in 0..100 {
            test.read(block * BLOCK, BLOCK);
        }
        let (why, totals) = (test.why(), test.target.volume().stats.totals());
        assert_eq!((why.miss.cold, why.miss.not_admitted, totals.read_hits), (100, 100, 100));
        assert_eq!((why.refused.not_admitted, why.refused.total()), (100, 100));
        assert_eq!(totals.filled_blocks, 100);
    }
}

#[test]
fn a_request_of_known_and_unknown_blocks_fills_the_known_ones() {
    let test = Test::new(with_rule(Mode::Writeback, Admission::Ghost(1)));
    test.read(4 * BLOCK, 2 * BLOCK);
    test.read(0, 16 * BLOCK);
    assert_eq!(test.cached_blocks(), 2);
    assert!(test.is_cached(4 * BLOCK) && test.is_cached(5 * BLOCK));
    assert_eq!(test.why().refused.not_admitted, 16);
    test.read(0, 16 * BLOCK);
    assert_eq!(test.cached_blocks(), 16);
}

#[test]
fn a_longer_memory_admits_what_a_shorter_one_has_forgotten() {
    let kept = |times| {
        let test = Test::new(with_rule(Mode::Writearound, Admission::Ghost(times)));
        // The cache has about 15,000 blocks, so a pass over the origin reads slightly more than
        // fits.
        let slots = test.engine.cache.store.capacity_blocks();
        assert_eq!(test.engine.cache.memory_bytes() / (2 * slots), u64::from(times));
        for pass in 0..2 {
            for block in 0..64 * MIB / BLOCK {
                test.read(block * BLOCK, BLOCK);
            }
            // A few blocks collide with others in the ghosts.
            assert!(pass > 0 || test.cached_blocks() < 200, "{}", test.cached_blocks());
        }
        test.target.volume().stats.totals().filled_blocks
    };
    let (one, four) = (kept(1), kept(4));
    assert!(four > 16_200 && one < 8_000, "{one} with a short memory, {four} with a long one");
}

#[test]
fn a_client_that_asks_for_data_to_be_cached_is_not_asked_twice() {
    let test = Test::new(with_rule(Mode::Writeback, Admission::Ghost(1)));
    test.world.op(&test.target, Op::Prefetch, 0, 64 * BLOCK);
    assert_eq!(test.cached_blocks(), 64);
}

#[test]
fn writes_that_have_to_land_somewhere_always_enter() {
    let strictest = Settings {
        admission: Admission::Ghost(1),
        write_budget: 1,
        congested_read_threshold: Duration::from_millis(1),
        congested_write_threshold: Duration::from_millis(1),
        ..settings(Mode::Writeback)
    };
    for mode in [Mode::Writeback, Mode::Writeonly] {
        let test = Test::new(Settings { mode, ..strictest.clone() });
        test.micros.store(50_000, Ordering::SeqCst);
        for block in 0..500 {
            test.write(block * BLOCK, BLOCK);
        }
        assert_eq!(test.cached_blocks(), 500);
        assert_eq!(test.why().bypass.total(), 0, "{:?}", test.why());
        test.read(0, 500 * BLOCK);
    }
}

#[test]
fn writes_through_enter_like_reads_and_update_cached_blocks() {
    for durability in Durability::ALL {
        let rule = with_rule(Mode::Writethrough, Admission::Ghost(1));
        let test = Test::new(Settings { durability: *durability, ..rule });
        for (write, cached) in [(1, 0), (2, 8), (3, 8)] {
            test.write(0, 8 * BLOCK);
            assert_eq!(test.cached_blocks(), cached, "after write {write}");
        }
        let why = test.why();
        assert_eq!((why.bypass.not_admitted, why.refused.not_admitted), (1, 8));
        // One cached block decides for the whole request, because a request is never split between
        // two routes.
        test.write(7 * BLOCK, 2 * BLOCK);
        assert_eq!((test.cached_blocks(), test.why().bypass.total()), (9, 1));
        test.world.op(&test.target, Op::Flush, 0, 0);
        test.read(0, 16 * BLOCK);
    }
}

#[test]
fn fills_stop_at_the_write_budget_and_resume_with_time() {
    // The bucket holds 1/24 of the budget: 1 MiB.
    let budget = Settings { write_budget: 24 * MIB, ..settings(Mode::Writeback) };
    let test = Test::new(budget.clone());
    for block in 0..512 {
        test.read(block * BLOCK, BLOCK);
    }
    assert_eq!(test.cached_blocks(), 256);
    let why = test.why();
    assert_eq!((why.refused.write_budget, why.refused.total(), why.miss.cold), (256, 256, 512));
    // The refusal of a block is its next miss reason. Prefetches are refused too.
    test.read(300 * BLOCK, BLOCK);
    test.world.op(&test.target, Op::Prefetch, 400 * BLOCK, 8 * BLOCK);
    assert_eq!((test.why().miss.write_budget, test.cached_blocks()), (1, 256));
    // Hits and writes are not refused; writes overdraw the budget.
    test.read(0, 256 * BLOCK);
    test.write(32 * MIB, 2 * MIB);
    assert_eq!((test.cached_blocks(), test.why().miss.total()), (256 + 512, 513));
    test.world.clock.pass(Duration::from_secs(3600));
    test.read(300 * BLOCK, BLOCK);
    assert_eq!(test.cached_blocks(), 256 + 512);
    test.world.clock.pass(Duration::from_secs(2 * 3600));
    test.read(300 * BLOCK, BLOCK);
    assert_eq!(test.cached_blocks(), 256 + 512 + 1);
    // Write-through writes of absent blocks are refused like fills.
    let through = Settings { mode: Mode::Writethrough, write_budget: 24, ..budget };
    test.set(through);
    let before = test.cached_blocks();
    test.write(48 * MIB, 4 * BLOCK);
    test.write(49 * MIB, 4 * BLOCK);
    test.write(32 * MIB, 4 * BLOCK);
    assert!(test.cached_blocks() <= before + 4, "{} blocks entered", test.cached_blocks() - before);
    assert!(test.why().bypass.write_budget >= 1 && test.why().refused.write_budget >= 256 + 4);
    test.read(48 * MIB, 4 * BLOCK);
}

/// Returns a cache with data, half clean and half dirty, that is no longer in the log's buffers.
fn on_the_device(settings: Settings) -> Test {
    let test = Test::new(settings);
    for step in 0..16 {
        test.read(step * MIB, MIB);
        test.write((16 + step) * MIB, MIB);
        test.world.op(&test.target, Op::Flush, 0, 0);
    }
    assert_eq!(test.cached_blocks(), 32 * MIB / BLOCK);
    test
}

#[test]
fn a_slow_cache_device_is_left_alone_but_for_dirty_data() {
    for (read, write) in [(2, 0), (2, 20), (0, 20)] {
        let congested = Settings {
            congested_read_threshold: Duration::from_millis(read),
            congested_write_threshold: Duration::from_millis(write),
            ..settings(Mode::Writeback)
        };
        let test = on_the_device(congested.clone());
        let step = |at: u64| test.read(at, BLOCK);
        (0..32).for_each(|block| step(block * BLOCK));
        assert_eq!(test.why().miss.congested, 0, "a device that takes no time is not slow");
        // Measure a slow latency by reads, or by writing a record.
        test.micros.store(50_000, Ordering::SeqCst);
        if read > 0 {
            (0..4).for_each(|block| step(MIB + block * BLOCK));
        } else {
            for step in 0..8 {
                test.write(40 * MIB + step * BLOCK, BLOCK);
                test.world.op(&test.target, Op::Flush, 0, 0);
            }
        }
        let before = test.why();
        let device = test.engine.cache.store.read_bytes();
        (0..4).for_each(|block| step(2 * MIB + block * BLOCK));
        step(48 * MIB);
        let now = test.why();
        assert_eq!(now.miss.congested - before.miss.congested, 5, "{read} {write}");
        assert_eq!(now.bypass.congested - before.bypass.congested, 5);
        assert_eq!(now.refused.total(), before.refused.total());
        let then = test.engine.cache.store.read_bytes();
        assert_eq!(then, device, "{read} {write}: the cache device was read");
        // Dirty blocks are still read from the cache device.
        step(17 * MIB);
        assert_eq!(test.why().miss.congested, now.miss.congested);
        assert!(test.engine.cache.store.read_bytes() > device);
        // After a while the device is used again.
        test.micros.store(0, Ordering::SeqCst);
        test.world.advance(Duration::from_secs(2));
        let (before, hits) = (test.why(), test.target.volume().stats.totals().read_hits);
        (0..4).for_each(|block| step(2 * MIB + block * BLOCK));
        assert_eq!(test.why().miss.total(), before.miss.total());
        assert_eq!(test.target.volume().stats.totals().read_hits, hits + 4);
        // Without thresholds latency does not matter.
        test.micros.store(50_000, Ordering::SeqCst);
        test.set(settings(Mode::Writeback));
        (0..8).for_each(|block| step(3 * MIB + block * BLOCK));
        assert_eq!(test.why().miss.total(), before.miss.total());
    }
}

#[test]
fn writes_through_bypass_a_slow_cache_device_unless_cached() {
    let through = Settings {
        congested_read_threshold: Duration::from_millis(2),
        ..settings(Mode::Writethrough)
    };
    let test = on_the_device(through);
    test.micros.store(50_000, Ordering::SeqCst);
    (0..4).for_each(|block| test.read(MIB + block * BLOCK, BLOCK));
    let (cached, bypassed) = (test.cached_blocks(), test.why().bypass.congested);
    test.write(48 * MIB, 4 * BLOCK);
    assert_eq!((test.cached_blocks(), test.why().bypass.congested), (cached, bypassed + 1));
    test.write(2 * MIB, 4 * BLOCK);
    assert_eq!((test.cached_blocks(), test.why().bypass.congested), (cached, bypassed + 1));
    test.read(0, 64 * MIB - BLOCK);
}

#[test]
fn a_miss_fills_its_whole_neighbourhood() {
    for (block, alignment) in [(4096, 0), (4096, 1024), (2048, 512), (16384, 0), (16384, 8192)] {
        for promote in [32 << 10, MIB] {
            let settings = Settings { promote, ..settings(Mode::Writeback) };
            let size = BlockSize::new(block).expect("a block size");
            let test = Test::with(settings, size, alignment, 16);
            // A sector in the third neighbourhood.
            let start = 2 * promote - alignment;
            test.read(start + promote / 2 + 512, 512);
            assert_eq!(test.cached_blocks(), promote / block, "{block} {alignment} {promote}");
            assert!(test.is_cached(start) && test.is_cached(start + promote - 512));
            assert!(!test.is_cached(start - 512) && !test.is_cached(start + promote));
            test.read(start - 512, promote + 1024);
            // The first and the last neighbourhood are cut short by the ends of the volume.
            test.read(512, 512);
            test.read(16 * MIB - 512, 512);
            test.read(0, 2 * promote);
            test.read(16 * MIB - promote, promote);
        }
    }
}

#[test]
fn promotion_leaves_cached_blocks_of_a_neighbourhood_alone() {
    let test = Test::new(Settings { promote: 64 << 10, ..settings(Mode::Writeback) });
    // One dirty block, one partly dirty, one clean. The origin has the same content.
    test.write(2 * BLOCK, BLOCK);
    test.write(3 * BLOCK + 512, 512);
    test.read(9 * BLOCK, BLOCK);
    assert_eq!((test.cached_blocks(), test.target.volume().dirty_blocks()), (16, 2));
    let read = test.target.volume().stats.totals().origin_read_bytes;
    assert_eq!(read, 64 << 10);
    // A write of zeroes of length 0 changes nothing: everything still reads as before.
    test.world.op(&test.target, Op::WriteZeroes, 0, 0);
    test.read(0, 64 << 10);
    assert_eq!(test.target.volume().dirty_blocks(), 2);
}

#[test]
fn a_neighbourhood_enters_with_the_block_that_was_missed_again() {
    let rules =
        Settings { promote: 64 << 10, admission: Admission::Ghost(1), ..settings(Mode::Writeback) };
    let test = Test::new(rules);
    test.read(5 * BLOCK, BLOCK);
    assert_eq!(test.cached_blocks(), 0);
    assert_eq!(test.target.volume().stats.totals().origin_read_bytes, BLOCK);
    test.read(5 * BLOCK, BLOCK);
    assert_eq!(test.cached_blocks(), 16);
    test.read(0, 64 << 10);
    assert_eq!(test.why().miss.total(), 2);
}

#[test]
fn neighbourhoods_are_read_up_to_a_limit_at_a_time() {
    const PROMOTE: u64 = 64 << 10;
    let world = World::new();
    let (cache, (origin, faults)) = (ram(64), world.faulty(ram(64)));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let settings = Settings { promote: PROMOTE, ..settings(Mode::Writeback) };
    let target = world.create(&engine, &origin, settings, 0);
    world.op(&target, Op::Flush, 0, 0);
    faults.hang(&[OpKind::Read]);
    // Half of each part is requested; 16 MiB are not.
    let parts = 16 * MIB / (PROMOTE / 2);
    let read = |part| world.submit(&target, Op::Read, part * PROMOTE, PROMOTE / 2, None);
    let tags: Vec<u64> = (0..parts + 4).map(read).collect();
    world.advance(Duration::from_millis(1));
    faults.heal();
    tags.into_iter().for_each(|tag| world.wait(tag).result.expect("read"));
    let expected = parts * PROMOTE + 4 * PROMOTE / 2;
    assert_eq!(target.volume().stats.totals().origin_read_bytes, expected);
    world.wait(read(parts + 4)).result.expect("read");
    assert_eq!(target.volume().stats.totals().origin_read_bytes, expected + PROMOTE);
}
