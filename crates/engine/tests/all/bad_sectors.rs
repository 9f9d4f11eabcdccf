//! Origins with bad sectors: only the blocks on bad sectors are affected (invariants 11, 16, 18 and
//! 28).

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op};
use forebay_device::Device;
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::{Faults, OpKind, peek, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;

/// Approximate number of blocks in a run that is written with one request to the origin.
const RUN: u64 = 256;

struct Bench {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    origin: Arc<dyn Device>,
    faults: Arc<Faults>,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        Bench::with_blocks(settings, BlockSize::DEFAULT, 64)
    }

    fn with_blocks(settings: Settings, block: BlockSize, cache_mib: u64) -> Self {
        let world = World::new();
        let (origin, faults) = world.faulty(ram(64));
        let engine = world.new_cache(&ram(cache_mib), block);
        let target = world.create(&engine, &origin, settings, 0);
        Bench { world, engine, target, origin, faults }
    }

    /// Writes a block with unique content.
    fn write(&self, block: u64) {
        self.world.write(&self.target, block * BLOCK, &content(block));
    }

    fn read(&self, block: u64) -> Result<Vec<u8>, IoError> {
        self.world.try_read(&self.target, block * BLOCK, BLOCK as usize)
    }

    /// Returns whether the origin has the content of a block that [`Bench::write`] wrote.
    fn has(&self, block: u64) -> bool {
        peek(&self.origin, block * BLOCK, BLOCK as usize) == content(block)
    }

    /// Makes writes, or reads, of the first sector of these blocks fail.
    fn damage(&self, kind: OpKind, blocks: &[u64]) {
        for block in blocks {
            self.faults.fail_in(kind, block * BLOCK..block * BLOCK + SECTOR);
        }
    }

    fn refused(&self) -> Vec<Range<u64>> {
        self.target.volume().refused_ranges()
    }

    fn drain(&self) -> Result<(), String> {
        self.world.drain(&self.engine).map_err(|error| error.message)
    }
}

fn content(block: u64) -> Vec<u8> {
    vec![(block % 250) as u8 + 1; BLOCK as usize]
}

fn quiet(ordered: bool) -> Settings {
    Settings { ordered, writeback_running: false, ..settings(Mode::Writeback) }
}

fn running(ordered: bool) -> Settings {
    Settings { ordered, ..settings(Mode::Writeback) }
}

/// The bytes of one block.
fn only(block: u64) -> Vec<Range<u64>> {
    std::iter::once(block * BLOCK..(block + 1) * BLOCK).collect()
}

#[test]
fn blocks_beside_bad_sectors_arrive_and_bad_ones_are_named() {
    for ordered in [false, true] {
        let bench = Bench::new(quiet(ordered));
        (0..RUN).for_each(|block| bench.write(block));
        bench.world.op(&bench.target, Op::Flush, 0, 0);
        bench.damage(OpKind::Write, &[7, 8, 200]);
        bench.world.set(&bench.engine, running(ordered)).expect("set");
        let error = bench.drain().expect_err("three blocks are not written");
        for part in ["cannot be written back", "8192 bytes at 28672", "4096 bytes at 819200"] {
            assert!(error.contains(part), "ordered: {ordered}: {error}");
        }
        assert_eq!(bench.refused(), [7 * BLOCK..9 * BLOCK, 200 * BLOCK..201 * BLOCK]);
        for block in 0..RUN {
            assert_eq!(bench.has(block), ![7, 8, 200].contains(&block), "block {block}");
            assert_eq!(bench.read(block), Ok(content(block)));
        }
        let volume = bench.target.volume();
        assert!(ordered || volume.dirty_blocks() == 3, "{} are dirty", volume.dirty_blocks());
        assert!(volume.writeback_error().is_some());
        let failed = bench.faults.failed();
        assert!(failed < 150, "ordered: {ordered}: {failed} writes failed for three blocks");

        bench.faults.heal();
        assert_eq!(bench.drain(), Ok(()), "ordered: {ordered}");
        assert!((0..RUN).all(|block| bench.has(block)));
        assert_eq!((bench.refused(), volume.dirty_blocks()), (vec![], 0));
        assert!(volume.writeback_error().is_none());
    }
}

#[test]
fn a_block_that_the_origin_takes_again_arrives_by_itself() {
    let eager = Settings { dirty_age: Duration::from_millis(1), ..running(false) };
    let bench = Bench::new(eager);
    bench.damage(OpKind::Write, &[7]);
    (0..RUN).for_each(|block| bench.write(block));
    bench.world.advance(Duration::from_secs(20));
    assert_eq!(bench.refused(), only(7));
    assert_eq!(bench.target.volume().dirty_blocks(), 1);
    let before = bench.faults.failed();
    bench.world.advance(Duration::from_secs(600));
    let failed = bench.faults.failed() - before;
    assert!((8..=20).contains(&failed), "{failed} attempts in ten minutes");
    // The last content reaches the origin, although the block was refused with other content.
    bench.world.write(&bench.target, 7 * BLOCK, &[99; 4096]);
    bench.faults.heal();
    bench.world.advance(Duration::from_secs(90));
    assert_eq!(peek(&bench.origin, 7 * BLOCK, 4096), [99; 4096]);
    assert_eq!(bench.refused(), []);
    assert!(bench.target.volume().writeback_error().is_none());
}

#[test]
fn a_refused_block_is_named_despite_writers_elsewhere() {
    let bench = Bench::new(running(false));
    bench.damage(OpKind::Write, &[7]);
    (0..RUN).for_each(|block| bench.write(block));
    bench.drain().expect_err("block 7 is not written");
    // No other block waits for it.
    (1000..1000 + RUN).for_each(|block| bench.write(block));
    let error = bench.drain().expect_err("block 7 is not written");
    assert!(error.contains("4096 bytes at 28672"), "{error}");
    assert!((1000..1000 + RUN).all(|block| bench.has(block)));
    // A block that is no longer dirty does not count as refused by the origin.
    bench.faults.heal();
    bench.world.op(&bench.target, Op::WriteZeroes, 0, RUN * BLOCK);
    assert_eq!(bench.drain(), Ok(()));
    assert_eq!(bench.refused(), []);
}

/// An origin that fails every write, or to which no path leads, is not asked for each block.
#[test]
fn an_origin_that_takes_nothing_is_not_asked_for_each_block() {
    for ordered in [false, true] {
        for cut_off in [false, true] {
            let bench = Bench::new(quiet(ordered));
            (0..16 * RUN).for_each(|block| bench.write(block));
            bench.world.op(&bench.target, Op::Flush, 0, 0);
            match cut_off {
                true => bench.faults.cut_off(&[OpKind::Write]),
                false => bench.faults.fail(&[OpKind::Write]),
            }
            bench.world.set(&bench.engine, running(ordered)).expect("set");
            bench.drain().expect_err("nothing is written");
            let failed = bench.faults.failed();
            assert!(failed < 600, "ordered: {ordered}, cut off: {cut_off}: {failed} writes");
            assert!(!cut_off || bench.refused().is_empty());
            bench.faults.heal();
            assert_eq!(bench.drain(), Ok(()), "ordered: {ordered}");
            assert!((0..16 * RUN).all(|block| bench.has(block)));
            assert_eq!(bench.refused(), []);
        }
    }
}

/// The pause after a failure may have begun during a drain that has ended meanwhile.
#[test]
fn a_drain_ends_the_pause_that_an_earlier_one_has_left() {
    for ordered in [false, true] {
        let bench = Bench::new(running(ordered));
        (0..RUN).for_each(|block| bench.write(block));
        bench.world.op(&bench.target, Op::Flush, 0, 0);
        bench.faults.fail(&[OpKind::Write]);
        bench.drain().expect_err("nothing is written");
        bench.faults.heal();
        let mended = bench.world.lane.now();
        assert_eq!(bench.drain(), Ok(()), "ordered: {ordered}");
        let waited = bench.world.lane.now().since(mended);
        assert!(waited < Duration::from_millis(400), "ordered: {ordered}: {waited:?}");
    }
}

/// The origin stays at the flush before the one whose writes it refuses.
#[test]
fn order_stops_at_a_bad_sector_until_it_is_given_up() {
    let bench = Bench::new(quiet(true));
    (0..RUN).for_each(|block| bench.write(block));
    bench.world.op(&bench.target, Op::Flush, 0, 0);
    bench.write(1000);
    bench.world.op(&bench.target, Op::Flush, 0, 0);
    bench.damage(OpKind::Write, &[7]);
    bench.world.set(&bench.engine, running(true)).expect("set");
    let error = bench.drain().expect_err("block 7 is not written");
    assert!(error.contains("4096 bytes at 28672") && error.contains("'ordered'"), "{error}");
    assert!((0..RUN).all(|block| bench.has(block) == (block != 7)));
    let before = bench.faults.writes();
    bench.world.advance(Duration::from_secs(60));
    assert!(!bench.has(1000), "it was written later");
    assert_eq!(bench.faults.writes(), before, "what the origin has is written again and again");

    bench.world.set(&bench.engine, running(false)).expect("set");
    bench.drain().expect_err("block 7 is not written");
    assert!(bench.has(1000));
    assert_eq!(bench.refused(), only(7));
    bench.faults.heal();
    assert_eq!(bench.drain(), Ok(()));
    assert!(bench.has(7));
}

/// A repaired block is written although others of its group are not, and no longer counts as
/// refused.
#[test]
fn a_mended_block_of_an_ordered_volume_is_no_longer_named() {
    let bench = Bench::new(quiet(true));
    (0..16).for_each(|block| bench.write(block));
    bench.world.op(&bench.target, Op::Flush, 0, 0);
    bench.damage(OpKind::Write, &[7, 8]);
    bench.world.set(&bench.engine, running(true)).expect("set");
    bench.drain().expect_err("two blocks are not written");
    assert_eq!(bench.refused(), std::slice::from_ref(&(7 * BLOCK..9 * BLOCK)));
    bench.faults.heal();
    bench.damage(OpKind::Write, &[8]);
    let error = bench.drain().expect_err("block 8 is not written");
    assert!(bench.has(7));
    assert_eq!(bench.refused(), only(8));
    assert!(error.contains("4096 bytes at 32768"), "{error}");
    bench.faults.heal();
    assert_eq!(bench.drain(), Ok(()));
    assert_eq!((bench.refused(), bench.target.volume().dirty_blocks()), (vec![], 0));
}

#[test]
fn a_write_over_a_bad_sector_fails_but_its_other_blocks_arrive() {
    let bench = Bench::new(settings(Mode::Writethrough));
    bench.damage(OpKind::Write, &[7]);
    let data: Vec<u8> = (0..16).flat_map(content).collect();
    let result = bench.world.outcome(&bench.target, Op::Write, 0, data.len() as u64, Some(&data));
    assert_eq!(result, Err(IoError::Io));
    bench.world.advance(Duration::from_secs(30));
    assert!((0..16).all(|block| bench.has(block) == (block != 7)));
    assert_eq!(bench.refused(), only(7));
    bench.faults.heal();
    bench.world.advance(Duration::from_secs(90));
    assert!(bench.has(7));
    assert_eq!(bench.refused(), []);
}

/// Reclaim moves the blocks that the origin refuses, and continues.
#[test]
fn a_cache_is_not_filled_up_by_refused_blocks() {
    let bench = Bench::with_blocks(running(false), BlockSize::DEFAULT, 8);
    let bad: Vec<u64> = (0..RUN).filter(|block| block % 16 == 7).collect();
    bench.damage(OpKind::Write, &bad);
    (0..RUN).for_each(|block| bench.write(block));
    // Three times the capacity of the cache.
    (1000..1000 + 24 * RUN).for_each(|block| bench.write(block));
    bench.drain().expect_err("some are not written");
    assert!((1000..1000 + 24 * RUN).all(|block| bench.has(block)));
    assert_eq!(bench.refused().len(), bad.len());
    assert!(bad.iter().all(|block| bench.read(*block) == Ok(content(*block))));
    bench.faults.heal();
    assert_eq!(bench.drain(), Ok(()));
    assert!((0..RUN).all(|block| bench.has(block)));
}

#[test]
fn a_read_fails_only_if_it_includes_the_bad_sector() {
    let promoting = Settings { promote: 256 << 10, ..settings(Mode::Writeback) };
    let bench = Bench::with_blocks(promoting, BlockSize::new(16 << 10).expect("a size"), 64);
    // There is a bad sector in the neighbourhood, and another one in the block of the last of
    // these.
    bench.damage(OpKind::Read, &[20, 41]);
    for block in [1, 2, 21, 22, 43] {
        assert_eq!(bench.read(block), Ok(vec![0; 4096]), "block {block}");
    }
    let failed = bench.faults.failed();
    assert_eq!(bench.read(23), Ok(vec![0; 4096]));
    assert_eq!(bench.faults.failed(), failed, "more is read again and again where that fails");
    assert_eq!(bench.read(20), Err(IoError::Io));
    bench.world.advance(Duration::from_secs(2));
    let result = bench.world.try_read(&bench.target, 32 * BLOCK, 16 * BLOCK as usize);
    assert_eq!(result, Err(IoError::Io));
    let error = bench.target.volume().origin_read_error().expect("it is shown");
    assert!(error.contains(&format!("at byte {}:", 41 * BLOCK)), "{error}");
}

#[test]
fn a_prefetch_leaves_out_what_cannot_be_read_and_nothing_else() {
    let bench = Bench::new(settings(Mode::Writeback));
    bench.damage(OpKind::Read, &[20, 300]);
    let prefetch = || bench.world.outcome(&bench.target, Op::Prefetch, 0, 2 * RUN * BLOCK, None);
    assert_eq!(prefetch(), Err(IoError::Io));
    let store = &bench.engine.cache.store;
    let space = store.space_of(bench.target.volume().id).expect("a volume");
    let absent =
        (0..2 * RUN).filter(|it| store.peek(&space, forebay_core::OriginBlock(*it)).is_none());
    assert_eq!(absent.collect::<Vec<_>>(), [20, 300]);
    bench.faults.fail(&[OpKind::Read]);
    let failed = bench.faults.failed();
    let elsewhere = bench.world.outcome(&bench.target, Op::Prefetch, 8 << 20, 8 << 20, None);
    assert_eq!(elsewhere, Err(IoError::Io));
    assert!(bench.faults.failed() - failed < 50, "an origin that fails is asked for each block");
}

#[test]
fn a_bad_sector_of_the_cache_device_costs_one_clean_copy() {
    let world = World::new();
    let ((cache, faults), (origin, of_origin)) = (world.faulty(ram(64)), world.faulty(ram(64)));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    world.read(&target, 0, 64 * BLOCK as usize);
    world.close(&engine).expect("closed");
    let (engine, _) = world.open(&cache);
    let target = world.attach(&engine, &origin);
    let store = &engine.cache.store;
    let space = store.space_of(target.volume().id).expect("a volume");
    let found = store.peek(&space, forebay_core::OriginBlock(7)).expect("cached");
    let place = store.geometry().slot_offset(found.entry.slot);
    faults.fail_in(OpKind::Read, place..place + SECTOR);
    let before = of_origin.bytes_read();
    world.read(&target, 0, 64 * BLOCK as usize);
    assert_eq!(of_origin.bytes_read() - before, BLOCK, "good copies were forgotten");
}
