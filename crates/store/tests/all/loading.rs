//! Loading the index while requests are served.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_core::{Mode, OriginBlock, SectorMask};
use forebay_format::{PAGE, Superblock};
use forebay_store::{Address, Entry, StoreError, StoreLane, StoreOptions, VolumeSpace};

use crate::world::{World, append};

/// More than two chunks of a checkpoint.
const BLOCKS: u64 = 40_000;
const SHARDS: u32 = 16;

fn options(load_later_from: u64) -> StoreOptions {
    StoreOptions { shards: Some(SHARDS), load_later_from, ..StoreOptions::default() }
}

fn open(world: &World, load_later_from: u64) -> Rc<StoreLane> {
    world.open(options(load_later_from)).expect("it opens").0
}

fn is_dirty(block: u64) -> bool {
    block.is_multiple_of(3)
}

/// A cache that was closed in order, and its volume's part of the index.
fn closed() -> (World, VolumeSpace) {
    let world = World::new(200 << 20);
    let store = open(&world, u64::MAX);
    let space = world.add_volume(&store, "v", Mode::Writeback, BLOCKS, &[]);
    for block in 0..BLOCKS {
        let mask = (block % 1000 == 0).then(|| SectorMask::of(8, 0..3));
        append(&store, &space, block, block as u8, is_dirty(block), mask);
        if block % 1000 == 0 {
            world.commit(&store);
        }
    }
    world.commit(&store);
    world.checkpoint(&store, true);
    (world, space)
}

/// Loads some blocks; returns the blocks that were loaded along with them, each with its entry.
fn load(
    world: &World,
    store: &Rc<StoreLane>,
    space: VolumeSpace,
    blocks: std::ops::Range<u64>,
) -> Result<BTreeMap<u64, Entry>, StoreError> {
    let store = store.clone();
    world.block_on(async move {
        let loaded = RefCell::new(BTreeMap::new());
        let on_load = |address: Address, entry: &Entry| {
            let block = space.block(address).expect("of this volume").0;
            assert!(loaded.borrow_mut().insert(block, *entry).is_none(), "{block} twice");
        };
        let blocks = (OriginBlock(blocks.start), OriginBlock(blocks.end));
        store.load(&space, blocks, &on_load).await?;
        Ok(loaded.into_inner())
    })
}

fn load_rest(world: &World, store: &Rc<StoreLane>) -> Result<(), StoreError> {
    let store = store.clone();
    world.block_on(async move { store.load_rest(&|_, _| ()).await })
}

/// Everything that the index and the segments say.
fn everything(store: &Rc<StoreLane>) -> (BTreeMap<u64, Entry>, Vec<String>) {
    let mut entries = BTreeMap::new();
    store.store().index.scan(|address, entry| _ = entries.insert(address.0, *entry));
    let mut closed = Vec::new();
    store.store().segments.closed(&mut closed);
    (entries, closed.iter().map(|it| format!("{:?} {:?}", it.id, it.live)).collect())
}

/// The place of the checkpoint's area on the device, in pages.
fn checkpoint_page(world: &World) -> usize {
    let content = world.disk.content();
    let superblock = Superblock::choose(&content[..PAGE], &content[64 << 10..][..PAGE]);
    let superblock = superblock.expect("a superblock");
    let area = superblock.checkpoint.expect("a checkpoint").area;
    superblock.geometry.checkpoint_areas[usize::from(area)] as usize / PAGE
}

#[test]
fn a_shard_is_loaded_as_a_whole_and_the_others_are_not() {
    let (world, space) = closed();
    let before = world.disk.faults.bytes_read();
    let (store, report) = world.open(options(BLOCKS)).expect("it opens");
    assert!(world.disk.faults.bytes_read() - before < 1 << 20, "the entries were read");
    let dirty = (0..BLOCKS).filter(|block| is_dirty(*block)).count() as u64;
    assert_eq!((report.blocks, report.dirty), (BLOCKS, dirty));
    assert!(!store.store().is_loaded());
    let mut all = BTreeMap::new();
    for block in [0, 17, 39_999, 5, 1000] {
        let has = |store: &Rc<StoreLane>| {
            store.store().has_loaded(&space, OriginBlock(block), OriginBlock(block + 1))
        };
        let was_loaded = has(&store);
        let loaded = load(&world, &store, space, block..block + 1).expect("it is intact");
        assert_eq!(was_loaded, loaded.is_empty());
        assert!(has(&store));
        if !was_loaded {
            let share = BLOCKS as f64 / f64::from(SHARDS);
            assert!((loaded.len() as f64 - share).abs() < share / 4.0, "{}", loaded.len());
        }
        all.extend(loaded);
        let cached = world.read(&store, &space, block).expect("there").expect("readable");
        assert_eq!(cached.dirty, is_dirty(block));
        assert_eq!(cached.content[0], block as u8);
        assert_eq!(cached.mask.is_some(), block % 1000 == 0);
    }
    assert!(!store.store().is_loaded());
    load_rest(&world, &store).expect("it is intact");
    assert!(store.store().is_loaded() && !store.store().loading_has_mended());
    let (now, at_once) = (everything(&store), everything(&open(&world, u64::MAX)));
    assert_eq!(now, at_once);
    assert!(
        all.iter().all(|(block, entry)| now.0[&space.address(OriginBlock(*block)).0] == *entry)
    );
}

#[test]
fn what_is_written_while_the_index_is_loaded_survives_a_crash() {
    let (world, space) = closed();
    let store = open(&world, 1);
    for block in [3, 4, 20_000] {
        load(&world, &store, space, block..block + 1).expect("it is intact");
        append(&store, &space, block, 255, true, None);
    }
    world.commit(&store);
    let loaded_at_crash = store.store().loading_progress();
    assert!(loaded_at_crash.is_some_and(|(loaded, all)| (1..all).contains(&loaded)));
    drop(store);
    let (store, report) = world.open(options(1)).expect("it opens");
    assert!(!report.clean && store.store().is_loaded(), "a crash has a log to replay");
    assert_eq!((report.blocks, report.records), (BLOCKS, 1));
    for block in [3, 4, 20_000, 5] {
        let cached = world.read(&store, &space, block).expect("there").expect("readable");
        assert_eq!(cached.content[0], if block == 5 { 5 } else { 255 }, "{block}");
    }
}

#[test]
fn a_checkpoint_waits_until_the_index_is_loaded() {
    let (world, space) = closed();
    let store = open(&world, 1);
    load(&world, &store, space, 7..8).expect("it is intact");
    append(&store, &space, 7, 255, true, None);
    let (lane, done) = (store.clone(), Rc::new(RefCell::new(false)));
    let end = done.clone();
    world.lane.spawn(async move {
        lane.checkpoint(true).await.expect("the disk works");
        *end.borrow_mut() = true;
    });
    world.advance(std::time::Duration::from_secs(10));
    assert!(!*done.borrow());
    load_rest(&world, &store).expect("it is intact");
    world.run(|| done.borrow().then_some(()));
    let before = everything(&store).0;
    drop(store);
    let store = open(&world, 1);
    load_rest(&world, &store).expect("it is intact");
    assert_eq!(everything(&store).0, before);
}

#[test]
fn another_order_of_the_entries_is_loaded_at_once() {
    let (world, _) = closed();
    let other = StoreOptions { shards: Some(SHARDS / 2), ..options(1) };
    let (store, _) = world.open(other).expect("it opens");
    assert!(store.store().is_loaded());
    drop(store);
    let few = options(BLOCKS + 1);
    assert!(world.open(few).expect("it opens").0.store().is_loaded());
}

#[test]
fn a_damaged_chunk_is_rebuilt_and_two_count_as_a_failed_device() {
    for damaged in [1, 2] {
        let (world, space) = closed();
        let first = checkpoint_page(&world) + 1;
        let store = open(&world, 1);
        // The second and the third chunk of 64 pages.
        for chunk in 1..=damaged {
            world.disk.edit(first + chunk * 64 + 9, |page| page[100] ^= 4);
        }
        let result = load_rest(&world, &store);
        if damaged == 1 {
            result.expect("parity");
            assert!(store.store().loading_has_mended());
            assert_eq!(everything(&store).0.len() as u64, BLOCKS);
            continue;
        }
        result.expect_err("two chunks are damaged");
        assert!(store.store().health.failed() && !store.store().is_loaded());
        for block in 0..64 {
            let block = OriginBlock(block);
            if !store.store().has_loaded(&space, block, OriginBlock(block.0 + 1)) {
                load(&world, &store, space, block.0..block.0 + 1).expect_err("it is unknown");
            }
        }
        drop(store);
        // The log has everything.
        let (store, report) = world.open(options(1)).expect("it opens");
        assert_eq!(report.blocks, BLOCKS);
        assert!(store.store().is_loaded());
    }
}
