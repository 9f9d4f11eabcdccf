//! Masks of partly valid blocks and the queues of ordered volumes take memory. When it runs out,
//! blocks are completed and writers wait; nothing is lost (invariant 24).

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{BlockSize, IoError, Mode, Op, SectorMask};
use forebay_device::Device;
use forebay_engine::{EngineLane, LaneVolume, Ledger, Settings};
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse};
use forebay_store::{Address, Entry, StoreOptions};
use forebay_testkit::{OpKind, ram};

use crate::world::{Book, World, settings};

const MIB: usize = 1 << 20;
const SECTOR: usize = 512;
const ORIGIN: usize = 6 * MIB;

struct Case {
    world: World,
    cache: Arc<dyn Device>,
    origin: Arc<dyn Device>,
    content: Vec<u8>,
    random: fastrand::Rng,
}

/// A memory budget that leaves space for a given number of masks beside an open cache.
struct Tight(Arc<MemoryBudget>, Vec<MemoryHold>);

impl Tight {
    fn new() -> Self {
        Tight(Arc::new(MemoryBudget::new(256 << 20)), Vec::new())
    }

    fn options(&self) -> StoreOptions {
        StoreOptions { memory: self.0.clone(), ..StoreOptions::default() }
    }

    fn leave(&mut self, bytes: u64) {
        let hold = |bytes| self.0.hold(MemoryUse::Process, bytes, "the rest");
        let spared = hold((16 << 20) + bytes).expect("there is more");
        let rest = std::iter::successors(hold(4096).ok(), |_| hold(4096).ok()).collect();
        drop(spared);
        self.1 = rest;
    }
}

impl Case {
    fn new(block: BlockSize) -> Self {
        let (world, cache, origin) = (World::new(), ram(32), ram(ORIGIN as u64 >> 20));
        world.format(&cache, block);
        let random = fastrand::Rng::with_seed(3);
        Case { world, cache, origin, content: vec![0; ORIGIN], random }
    }

    fn open(&self, memory: &Tight) -> Rc<EngineLane> {
        self.world.open_with(&self.cache, memory.options()).0
    }

    /// Writes random sectors, some concurrently, some across block boundaries.
    fn write(&mut self, target: &Rc<LaneVolume>) {
        for round in 0..400 {
            let mut tags = Vec::new();
            let mut under_way: Vec<std::ops::Range<usize>> = Vec::new();
            for _ in 0..8 {
                let sectors = self.random.usize(1..=20).saturating_sub(10).max(1);
                let first = self.random.usize(..ORIGIN / SECTOR - sectors);
                let at = first * SECTOR..(first + sectors) * SECTOR;
                let byte = self.random.u8(1..);
                if under_way.iter().any(|other| other.start < at.end && at.start < other.end) {
                    continue;
                }
                under_way.push(at.clone());
                self.content[at.clone()].fill(byte);
                let data = &self.content[at.clone()];
                let (offset, len) = (at.start as u64, at.len() as u64);
                tags.push(self.world.submit(target, Op::Write, offset, len, Some(data)));
                if self.random.bool() {
                    tags.drain(..).for_each(|tag| self.world.wait(tag).result.expect("written"));
                }
            }
            tags.drain(..).for_each(|tag| self.world.wait(tag).result.expect("written"));
            if round % 100 == 99 {
                self.world.op(target, Op::Flush, 0, 0);
            }
        }
    }

    fn check(&self, target: &Rc<LaneVolume>) {
        for offset in (0..ORIGIN).step_by(MIB) {
            let found = self.world.read(target, offset as u64, MIB);
            let wrong =
                found.iter().zip(&self.content[offset..]).position(|(one, other)| one != other);
            assert_eq!(wrong, None, "behind {offset}");
        }
    }
}

#[test]
fn sector_writes_complete_blocks_when_masks_find_no_memory() {
    let ordered = Settings { ordered: true, ..settings(Mode::Writeback) };
    let modes = [Mode::Writeback, Mode::Writeonly, Mode::Writethrough].map(settings);
    let cases = modes.into_iter().chain([ordered]);
    for (settings, block) in cases.flat_map(|settings| {
        [4096, 128 << 10].map(|bytes| (settings.clone(), BlockSize::new(bytes).expect("a size")))
    }) {
        for left in [0, 40 << 10] {
            let mut case = Case::new(block);
            let mut memory = Tight::new();
            let engine = case.open(&memory);
            let target = case.world.create(&engine, &case.origin, settings.clone(), 0);
            memory.leave(left);
            let before = memory.0.used(MemoryUse::Index);
            case.write(&target);
            let masks = memory.0.used(MemoryUse::Index) - before;
            assert!(masks <= left, "{masks} bytes for masks, of {left}");
            assert_eq!(masks > 0, left > 0, "{masks} bytes for masks, of {left}");
            case.check(&target);
            case.world.op(&target, Op::Flush, 0, 0);
            // After a crash the same memory suffices.
            case.world = World::new();
            let memory = Tight::new();
            let engine = case.open(&memory);
            let target = case.world.attach(&engine, &case.origin);
            case.check(&target);
        }
    }
}

#[test]
fn a_write_waiting_for_the_rest_of_its_block_ends_at_a_stop() {
    let (case, mut memory) = (Case::new(BlockSize::DEFAULT), Tight::new());
    let (origin, faults) = case.world.faulty(case.origin.clone());
    let engine = case.open(&memory);
    let book: Arc<Book> = Arc::default();
    engine.cache.set_ledger(book.clone());
    let target = case.world.create(&engine, &origin, settings(Mode::Writeback), 0);
    memory.leave(0);
    faults.hang(&OpKind::ALL);
    let tag = case.world.submit(&target, Op::Write, 512, 512, Some(&[7; 512]));
    case.world.advance(std::time::Duration::from_secs(30));
    let stopped = case.world.stop(&engine, "data");
    let error = stopped.expect_err("the origin does not answer").to_string();
    assert!(error.contains("answered"), "{error}");
    assert!(case.world.done(tag).is_none());
    faults.heal();
    assert_eq!(case.world.wait(tag).result, Err(IoError::ShuttingDown));
    // The note lists everything that only the cache has: nothing here, because the write was not
    // acknowledged.
    assert_eq!(book.note_of("data").expect("a note").dirty, []);
    let target = case.world.attach(&engine, &origin);
    assert_eq!(target.volume().dirty_blocks(), 0);
    assert_eq!(case.world.read(&target, 0, 4096), [0; 4096]);
}

#[test]
fn ordered_writers_wait_for_the_origin_when_memory_is_short() {
    let (mut case, mut memory) = (Case::new(BlockSize::DEFAULT), Tight::new());
    let engine = case.open(&memory);
    let mut settings = Settings { ordered: true, ..settings(Mode::Writeback) };
    // Nothing is written back unless it has to be.
    settings.writeback_running = false;
    let target = case.world.create(&engine, &case.origin, settings, 0);
    case.world.advance(std::time::Duration::from_secs(1));
    memory.leave(0);
    let before = memory.0.used(MemoryUse::Background);
    let store = engine.cache.store.clone();
    let mut most = 0;
    for (number, block) in case.content.chunks_mut(4096).enumerate() {
        block.fill(number as u8 | 1);
        case.world.write(&target, number as u64 * 4096, block);
        most = most.max(store.held_versions(target.volume().id));
    }
    assert!((1000..1500).contains(&most), "{most} versions are held");
    assert_eq!(memory.0.used(MemoryUse::Background), before);
    case.check(&target);
    // With more memory, more versions are held; their memory is released afterwards.
    memory.1.clear();
    for (number, block) in case.content.chunks(4096).enumerate() {
        case.world.write(&target, number as u64 * 4096, block);
        most = most.max(store.held_versions(target.volume().id));
    }
    assert!(most > 1500, "{most} versions are held");
    assert!(memory.0.used(MemoryUse::Background) > before);
    case.world.drain(&engine).expect("drained");
    assert!(memory.0.used(MemoryUse::Background) <= before + (1 << 20), "it is given back");
    case.check(&target);
}

#[test]
fn an_ordered_volume_proceeds_beside_one_that_uses_all_memory() {
    let (case, mut memory) = (Case::new(BlockSize::DEFAULT), Tight::new());
    let engine = case.open(&memory);
    let settings = Settings { ordered: true, ..settings(Mode::Writeback) };
    let (origin, faults) = case.world.faulty(ram(ORIGIN as u64 >> 20));
    let stuck = case.world.create_as(&engine, "stuck", &origin, settings.clone(), 0);
    let other = case.world.create_as(&engine, "other", &case.origin, settings, 0);
    case.world.advance(std::time::Duration::from_secs(1));
    memory.leave(0);
    faults.fail(&[OpKind::Write]);
    let mut waits = None;
    for block in 0..ORIGIN as u64 / 4096 {
        let tag = case.world.submit(&stuck, Op::Write, block * 4096, 4096, Some(&[1; 4096]));
        case.world.advance(std::time::Duration::from_millis(1));
        if case.world.done(tag).is_none() {
            waits = Some(tag);
            break;
        }
    }
    let waits = waits.expect("there is no end");
    for block in 0..ORIGIN as u64 / 4096 {
        case.world.write(&other, block * 4096, &[2; 4096]);
    }
    faults.heal();
    case.world.wait(waits).result.expect("it was only late");
}

#[test]
fn memory_for_what_a_checkpoint_copies_is_held_and_little_more() {
    let [small, large] = [8, 64].map(|mib| {
        let (world, cache, memory) = (World::new(), ram(mib), Tight::new());
        world.format(&cache, BlockSize::DEFAULT);
        let store = world.open_with(&cache, memory.options()).0.cache.store.clone();
        let copied = store.capacity_blocks() / u64::from(store.index.shard_count());
        (copied, memory.0.used(MemoryUse::Background))
    });
    let each = (large.1 - small.1) / (large.0 - small.0);
    let needed = (size_of::<(Address, Entry)>() + size_of::<(Address, SectorMask)>()) as u64;
    assert!((needed..2 * needed).contains(&each), "{each} bytes for each block, not {needed}");
}
