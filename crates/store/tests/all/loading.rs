//! Loading the index while requests are served.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_core::{Mode, OriginBlock, SectorMask};
use forebay_format::{AcceptedLog, Body, DataEntry, PAGE, Superblock, Uuid, record};
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

/// Returns a cache that was closed in order, and its volume's part of the index.
fn closed() -> (World, VolumeSpace) {
    closed_with(true)
}

/// Like [`closed`], with or without partial blocks.
fn closed_with(partial: bool) -> (World, VolumeSpace) {
    let world = World::new(200 << 20);
    let store = open(&world, u64::MAX);
    let space = world.add_volume(&store, "v", Mode::Writeback, BLOCKS, &[]);
    for block in 0..BLOCKS {
        let mask = (partial && block % 1000 == 0).then(|| SectorMask::of(8, 0..3));
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

/// The content of an index, by address.
type Entries = BTreeMap<u64, (Entry, Option<SectorMask>)>;

/// Returns the content of the index, and the segments with blocks.
fn everything(store: &Rc<StoreLane>) -> (Entries, Vec<String>) {
    let (mut all, mut masks) = (Vec::new(), Vec::new());
    for shard in 0..SHARDS {
        store.store().index.snapshot_shard(shard, &mut all, &mut masks);
    }
    let mask = |address| masks.iter().find(|(it, _)| *it == address).map(|(_, mask)| mask.clone());
    let entries = all.iter().map(|(address, entry)| {
        let mask = if entry.partial { mask(*address) } else { None };
        (address.0, (*entry, mask))
    });
    let mut closed = Vec::new();
    store.store().segments.closed(&mut closed);
    let used = closed.iter().filter(|it| it.live.blocks > 0);
    (entries.collect(), used.map(|it| format!("{:?} {:?}", it.id, it.live)).collect())
}

/// A copy of the world's disk.
fn copy(world: &World) -> World {
    World::on(&world.disk.content())
}

fn accepted(world: &World) -> Option<AcceptedLog> {
    superblock(world).accepted
}

fn superblock(world: &World) -> Superblock {
    let content = world.disk.content();
    Superblock::choose(&content[..PAGE], &content[64 << 10..][..PAGE]).expect("a superblock")
}

fn write_back(store: &Rc<StoreLane>, space: &VolumeSpace, block: u64) {
    let (store, block) = (store.store(), OriginBlock(block));
    let slot = store.peek(space, block).expect("cached").entry.slot;
    let version = store.version_of(space, block, slot).expect("cached");
    assert!(store.written_back(space, block, &version, || false));
}

/// The place of the checkpoint's area on the device, in pages.
fn checkpoint_page(world: &World) -> usize {
    let superblock = superblock(world);
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
    assert!(store.store().is_loaded() && !store.store().checkpoint_is_outdated());
    let (now, at_once) = (everything(&store), everything(&open(&world, u64::MAX)));
    assert_eq!(now, at_once);
    assert!(
        all.iter().all(|(block, entry)| now.0[&space.address(OriginBlock(*block)).0].0 == *entry)
    );
}

#[test]
fn writes_while_the_index_is_loaded_survive_a_crash() {
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
    assert!(!report.clean && !store.store().is_loaded(), "nor is it loaded after a crash");
    assert_eq!((report.blocks, report.records), (BLOCKS, 1));
    load_rest(&world, &store).expect("it is intact");
    for block in [3, 4, 20_000, 5] {
        let cached = world.read(&store, &space, block).expect("there").expect("readable");
        assert_eq!(cached.content[0], if block == 5 { 5 } else { 255 }, "{block}");
    }
}

/// Makes every kind of change to blocks in the checkpoint and to others.
fn change(world: &World, store: &Rc<StoreLane>, space: &VolumeSpace, fill: u8) {
    let part = |sectors| Some(SectorMask::of(8, 0..sectors));
    for round in 0..2 {
        for block in (0..200).chain(BLOCKS..BLOCKS + 50) {
            // Of every other block only the first version.
            if round == 0 || block % 2 == 0 {
                append(store, space, block, fill + round, block % 5 < 3, None);
            }
        }
        for block in 1000..1050 {
            append(store, space, block, fill + round, true, part(1 + block as u32 % 3));
        }
        world.commit(store);
    }
    for block in [2000, 3000, 4000] {
        append(store, space, block, fill, true, part(5));
    }
    for block in (0..90).step_by(10).chain([6000, 6003, BLOCKS + 7]) {
        if store.store().peek(space, OriginBlock(block)).is_some_and(|it| it.entry.dirty) {
            write_back(store, space, block);
        }
    }
    for block in (5..90).step_by(10).chain([7000, 7001, 8000, BLOCKS + 8, 1010]) {
        store.store().forget(space, OriginBlock(block), |_| true);
    }
    world.commit(store);
}

#[test]
fn changes_of_the_log_are_applied_to_each_shard() {
    let world = World::new(300 << 20);
    let store = open(&world, u64::MAX);
    let space = world.add_volume(&store, "v", Mode::Writeback, BLOCKS + 50, &[]);
    for block in 0..BLOCKS {
        let mask = (block % 1000 == 0).then(|| SectorMask::of(8, 0..3));
        append(&store, &space, block, block as u8, is_dirty(block), mask);
        if block % 1000 == 0 {
            world.commit(&store);
        }
    }
    world.commit(&store);
    world.checkpoint(&store, false);
    change(&world, &store, &space, 100);
    drop(store);
    for round in 0..4 {
        let before = copy(&world);
        let at_once = everything(&open(&before, u64::MAX));
        assert!(accepted(&before).is_none(), "there is a new checkpoint");
        let (store, report) = world.open(options(1)).expect("it opens");
        assert!(!report.clean && !store.store().is_loaded() && report.records > 0);
        let accepted = accepted(&world).expect("the superblock says what counts");
        assert!(accepted.left_out.len() <= 1 + round, "{accepted:?}");
        load_rest(&world, &store).expect("it is intact");
        assert_eq!(everything(&store), at_once, "crash {round}");
        assert!(store.store().checkpoint_is_outdated());
        // The next crash happens before that checkpoint.
        change(&world, &store, &space, 110 + 10 * round as u8);
    }
    let store = open(&world, 1);
    load_rest(&world, &store).expect("it is intact");
    let before = everything(&store).0;
    world.checkpoint(&store, true);
    assert!(accepted(&world).is_none());
    drop(store);
    assert_eq!(everything(&open(&world, u64::MAX)).0, before);
}

/// Returns the records with data on a disk by number, with the pages of their headers.
fn records(world: &World) -> BTreeMap<u64, (usize, Vec<DataEntry>)> {
    let (content, geometry) = (world.disk.content(), superblock(world).geometry);
    let pages = content.chunks_exact(PAGE).enumerate();
    let record = |(page, bytes)| {
        let header = record::decode(bytes, &geometry, &Uuid::from_u128(7)).ok()?;
        let Body::Data(entries) = header.body else { return None };
        Some((header.number.0, (page, entries)))
    };
    pages.filter_map(record).collect()
}

/// A crash drops the headers of two records and a cell of the record between them. Recovery ignores
/// these records, and the cache is used. The next recovery must ignore them as well, although later
/// records prove all others durable.
#[test]
fn a_second_recovery_decides_as_the_first_one_did() {
    let (world, space) = closed();
    let store = open(&world, u64::MAX);
    world.checkpoint(&store, false);
    append(&store, &space, 1, 200, true, None);
    world.commit(&store);
    let before = records(&world);
    for block in 1000..1500 {
        append(&store, &space, block, 201, true, None);
    }
    world.commit(&store);
    drop(store);
    let mut new = records(&world);
    new.retain(|number, _| !before.contains_key(number));
    let new: Vec<(usize, Vec<DataEntry>)> = new.into_values().collect();
    let (kept, gone) = (&new[1], [&new[0], &new[2], &new[3]]);
    let headers = gone.map(|(page, _)| world.disk.content()[page * PAGE..][..PAGE].to_vec());
    gone.iter().for_each(|(page, _)| world.disk.edit(*page, |content| content.fill(0)));
    world.disk.edit(kept.0 + 5, |content| content[9] ^= 1);
    let torn = kept.1[4].block.0;
    let check = |store: &Rc<StoreLane>| {
        for (number, (_, entries)) in new.iter().enumerate() {
            for entry in entries {
                let block = entry.block.0;
                let found = world.read(store, &space, block).expect("there").expect("readable");
                let wanted = if number == 1 && block != torn { 201 } else { block as u8 };
                assert_eq!(found.content[0], wanted, "{block}");
            }
        }
    };
    for round in 0..3 {
        let store = open(&world, 1);
        assert!(!store.store().is_loaded());
        let accepted = accepted(&world).expect("the superblock says what counts");
        assert_eq!(accepted.torn.len(), 1);
        load_rest(&world, &store).expect("it is intact");
        check(&store);
        for fill in [250, 251] {
            append(&store, &space, 10 + round, fill, true, None);
            world.commit(&store);
        }
        drop(store);
        // The lost headers turn up.
        for ((page, _), header) in gone.iter().zip(&headers) {
            world.disk.edit(*page, |content| content.copy_from_slice(header));
        }
    }
    for later in [1, u64::MAX] {
        let (store, report) = world.open(options(later)).expect("it opens");
        assert_eq!(report.damage, None);
        load_rest(&world, &store).expect("it is intact");
        check(&store);
        for block in 10..13 {
            let found = world.read(&store, &space, block).expect("there").expect("readable");
            assert_eq!(found.content[0], 251);
        }
    }
}

/// A recovery would otherwise take records of the old volume for those of a new one.
#[test]
fn the_number_of_a_volume_in_the_log_rests_after_a_crash() {
    let (world, _) = closed();
    let store = open(&world, u64::MAX);
    world.checkpoint(&store, false);
    let gone = world.add_volume(&store, "gone", Mode::Writeback, 64, &[]);
    append(&store, &gone, 0, 1, true, None);
    world.commit(&store);
    world.delete_volume(&store, &gone);
    drop(store);
    let store = open(&world, 1);
    assert!(!store.store().is_loaded());
    for rests in [true, false] {
        world.change_counter(&store, gone.id.0);
        let name = format!("new-{rests}");
        let new = world.add_volume(&store, &name, Mode::Writeback, 64, &[]);
        assert_eq!(new.id != gone.id, rests);
        load_rest(&world, &store).expect("it is intact");
        world.checkpoint(&store, false);
    }
}

#[test]
fn a_log_with_a_gap_is_loaded_at_once() {
    let (world, space) = closed();
    let store = open(&world, u64::MAX);
    world.checkpoint(&store, false);
    let mut lost = None;
    for block in 0..3 {
        append(&store, &space, block, 255, true, None);
        let before = world.disk.content();
        world.commit(&store);
        let after = world.disk.content();
        let changed =
            before.chunks(PAGE).zip(after.chunks(PAGE)).rposition(|(old, new)| old != new);
        // The header is in front of the block.
        lost = lost.or(changed.map(|page| page - 1));
    }
    drop(store);
    world.disk.edit(lost.expect("a record"), |page| page[100] ^= 1);
    let (store, report) = world.open(options(1)).expect("it opens");
    assert!(store.store().is_loaded() && report.damage.is_some_and(|damage| damage.count == 1));
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
        // Masks are loaded first and would show the damage at once.
        let (world, space) = closed_with(false);
        let first = checkpoint_page(&world) + 1;
        let store = open(&world, 1);
        // The second and the third chunk of 64 pages.
        for chunk in 1..=damaged {
            world.disk.edit(first + chunk * 64 + 9, |page| page[100] ^= 4);
        }
        let result = load_rest(&world, &store);
        if damaged == 1 {
            result.expect("parity");
            assert!(store.store().checkpoint_is_outdated());
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
        // The log has all data, and the next opening knows that it must be read.
        let (store, report) = world.open(options(1)).expect("it opens");
        assert_eq!(report.blocks, BLOCKS);
        assert!(store.store().is_loaded());
        drop(store);
        let store = open(&world, 1);
        assert!(!store.store().is_loaded(), "there is a new checkpoint");
        load_rest(&world, &store).expect("it is intact");
    }
}

/// Two chunks of masks; the second begins behind the last entry.
#[test]
fn any_number_of_masks_allows_an_index_to_be_loaded_later() {
    let world = World::new(200 << 20);
    let store = open(&world, u64::MAX);
    let space = world.add_volume(&store, "v", Mode::Writeback, BLOCKS, &[]);
    for block in 0..BLOCKS {
        append(&store, &space, block, block as u8, is_dirty(block), Some(SectorMask::of(8, 0..3)));
        if block % 1000 == 0 {
            world.commit(&store);
        }
    }
    world.commit(&store);
    world.checkpoint(&store, true);
    let (store, _) = world.open(options(BLOCKS)).expect("it opens");
    assert!(!store.store().is_loaded(), "everything was loaded at once");
    load_rest(&world, &store).expect("it is intact");
    assert_eq!(everything(&store), everything(&open(&world, u64::MAX)));
}

/// A cache with more blocks than can be replayed at a time.
#[test]
fn an_index_rebuilt_in_parts_equals_one_rebuilt_at_once() {
    let world = World::new(300 << 20);
    let store = open(&world, u64::MAX);
    let space = world.add_volume(&store, "v", Mode::Writeback, BLOCKS + 50, &[]);
    for block in 0..BLOCKS {
        append(&store, &space, block, block as u8, is_dirty(block), None);
        if block % 1000 == 0 {
            world.commit(&store);
        }
    }
    world.commit(&store);
    world.checkpoint(&store, false);
    change(&world, &store, &space, 100);
    drop(store);
    let first = checkpoint_page(&world) + 1;
    for chunk in 1..=2 {
        world.disk.edit(first + chunk * 64 + 9, |page| page[100] ^= 4);
    }
    let rebuilt = |rebuilt_at_once| {
        let copy = copy(&world);
        let options = StoreOptions { rebuilt_at_once, ..options(u64::MAX) };
        let (store, report) = copy.open(options).expect("it opens");
        let figures = (report.blocks, report.dirty, report.records, report.torn, report.damage);
        (everything(&store), figures, report.bytes_read)
    };
    let (at_once, figures, read) = rebuilt(u64::MAX);
    assert!(at_once.0.len() as u64 > BLOCKS - 10, "everything is in the log");
    for (most, parts) in [(20_000, 3), (1, u64::from(SHARDS))] {
        let (in_parts, same_figures, read_in_parts) = rebuilt(most);
        assert!(in_parts == at_once, "{most} blocks at a time");
        assert_eq!(same_figures, figures);
        let each_part_reads_all_headers = read + (parts - 1) * (1 << 20);
        assert!(read_in_parts > each_part_reads_all_headers, "{read_in_parts} and {read} bytes");
    }
}
