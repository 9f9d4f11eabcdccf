//! Volumes are created, grow and are deleted: their addresses in the index are used again, and
//! large volumes find room beside others.

use std::cell::Cell;
use std::rc::Rc;

use forebay_core::{Mode, OriginBlock, SectorMask};
use forebay_store::{
    Appended, Class, Condition, Store, StoreLane, StoreOptions, Version, VolumeSpace,
};

use crate::world::{World, append_as, version};

const BYTES: usize = 16 << 20;

/// Blocks of a volume with 64 TiB.
const LARGE: u64 = 1 << 34;

fn open(world: &World) -> Rc<StoreLane> {
    world.open(StoreOptions::default()).expect("a cache").0
}

fn append(store: &Rc<StoreLane>, space: &VolumeSpace, block: u64, fill: u8, dirty: bool) {
    append_as(Class::Foreground, store, space, block, (fill, dirty, None));
}

fn first_byte(world: &World, store: &Rc<StoreLane>, space: &VolumeSpace, block: u64) -> Option<u8> {
    world.read(store, space, block).map(|read| read.expect("it is intact").content[0])
}

fn space_of(store: &Rc<StoreLane>, space: &VolumeSpace) -> VolumeSpace {
    store.store().space_of(space.id).expect("it is there")
}

/// The index has addresses for only a few such volumes. One block of each of two neighbours stays
/// cached at every moment, and after a crash.
#[test]
fn addresses_of_deleted_volumes_are_used_again_without_end() {
    let world = World::new(BYTES);
    let mut store = open(&world);
    let room = store.store().index.room();
    let blocks = room / 4;
    let kept = world.add_volume(&store, "kept", Mode::Writeback, blocks, &[]);
    append(&store, &kept, 7, 77, true);
    let mut old: Option<VolumeSpace> = None;
    for round in 0..500u64 {
        let name = format!("v{round}");
        let new = world.add_volume(&store, &name, Mode::Writeback, blocks - round % 3, &[]);
        for block in 0..3 {
            assert!(world.read(&store, &new, block).is_none(), "{round}: a new volume has nothing");
            append(&store, &new, block, round as u8, block == 0);
        }
        if let Some(old) = old {
            assert_eq!(first_byte(&world, &store, &old, 1), Some((round - 1) as u8));
            world.delete_volume(&store, &old);
        }
        assert_eq!(store.store().index.room(), room);
        assert_eq!(store.store().index.len(), 4);
        old = Some(new);
        if round % 100 == 50 {
            world.commit(&store);
            drop(store);
            store = open(&world);
            let new = space_of(&store, &new);
            assert_eq!(first_byte(&world, &store, &new, 0), Some(round as u8));
            assert_eq!(first_byte(&world, &store, &space_of(&store, &kept), 7), Some(77));
            assert_eq!(store.store().index.len(), 4, "nothing of deleted volumes is back");
            old = Some(new);
        }
    }
}

/// A request that did not end in time may insert a block of a deleted volume at any moment.
#[test]
fn addresses_are_not_given_away_while_something_uses_them() {
    let world = World::new(BYTES);
    let store = open(&world);
    let blocks = store.store().index.room() / 4;
    let gone = world.add_volume(&store, "gone", Mode::Writeback, blocks, &[]);
    let used = store.store().use_space_of(gone.id).expect("it is there");
    let ticket = store.store().index.begin_fill(gone.address(OriginBlock(5)));
    world.delete_volume(&store, &gone);
    let late = Version { condition: Condition::Fill(&ticket), ..version(&gone, 5, false, None) };
    let refused = store.append(late, Class::Foreground, |cell| cell.fill(1));
    assert!(matches!(refused, Appended::Refused), "the fill was begun before");
    drop(ticket);
    append(&store, &gone, 6, 1, true);

    let beside = world.add_volume(&store, "beside", Mode::Writeback, blocks, &[]);
    assert_ne!(beside.base, gone.base);
    append(&store, &gone, 7, 1, true);
    drop(used);
    let new = world.add_volume(&store, "new", Mode::Writeback, blocks, &[]);
    assert_eq!(new.base, gone.base);
    assert!((5..8).all(|block| world.read(&store, &new, block).is_none()));
    assert_eq!(store.store().index.len(), 0);
    let segments = &store.store().segments;
    let live = (0..segments.count()).map(|it| segments.live(forebay_core::SegmentId(it)));
    assert_eq!(live.sum::<u32>(), 0, "they count for nothing");
}

/// Blocks with every kind of state, found again under `space`.
fn fill(world: &World, store: &Rc<StoreLane>, space: &VolumeSpace, blocks: u64) {
    for block in 0..blocks {
        append(store, space, block, block as u8, block % 3 == 0);
        if block % 50 == 49 {
            world.commit(store);
        }
    }
    let mask = SectorMask::of(8, 0..3);
    append_as(Class::Foreground, store, space, blocks, (99, true, Some(mask)));
}

fn check(world: &World, store: &Rc<StoreLane>, space: &VolumeSpace, blocks: u64) {
    for block in 0..blocks {
        let found = world.read(store, space, block).expect("it is cached").expect("it is intact");
        assert_eq!((found.content[0], found.dirty), (block as u8, block % 3 == 0), "{block}");
        assert!(found.mask.is_none());
    }
    let found = world.read(store, space, blocks).expect("it is cached").expect("it is intact");
    assert_eq!((found.content[0], found.dirty), (99, true));
    assert_eq!(found.mask, Some(SectorMask::of(8, 0..3)));
}

#[test]
fn the_index_gets_room_for_a_large_volume_beside_others() {
    let world = World::new(BYTES);
    let store = open(&world);
    let small = world.add_volume(&store, "small", Mode::Writeback, 1000, &[]);
    fill(&world, &store, &small, 500);
    let before = store.store().index.check_bits();
    let large = world.add_volume(&store, "large", Mode::Writeback, LARGE, &[]);
    assert!(store.store().index.check_bits() < before && store.store().index.room() > LARGE);
    check(&world, &store, &small, 500);
    let far = [0, 1 << 20, 1 << 30, LARGE - 1];
    for block in far {
        append(&store, &large, block, 200, true);
    }
    for open_again in [false, true] {
        check(&world, &store, &space_of(&store, &small), 500);
        let large = space_of(&store, &large);
        assert!(far.iter().all(|it| first_byte(&world, &store, &large, *it) == Some(200)));
        if !open_again {
            world.checkpoint(&store, false);
            append(&store, &large, 3, 201, true);
            world.commit(&store);
        }
    }
    drop(store);
    let store = open(&world);
    check(&world, &store, &space_of(&store, &small), 500);
    let large = space_of(&store, &large);
    assert!(far.iter().all(|it| first_byte(&world, &store, &large, *it) == Some(200)));
    assert_eq!(first_byte(&world, &store, &large, 3), Some(201));
    // No index can distinguish that many addresses, and nothing has changed.
    let refused = world.block_on({
        let store = store.clone();
        async move { store.add_space(forebay_core::VolumeId(99), 1 << 44).await }
    });
    let error = refused.expect_err("too many").to_string();
    assert!(error.contains("use another cache device"), "{error}");
    assert_eq!(first_byte(&world, &store, &large, 3), Some(201));
}

/// A checkpoint with entries from before and after the widening would compare checks with bits that
/// the latter do not have.
#[test]
fn a_checkpoint_is_made_before_or_after_the_index_gets_room() {
    let world = World::new(BYTES);
    let store = open(&world);
    let small = world.add_volume(&store, "small", Mode::Writeback, 1000, &[]);
    fill(&world, &store, &small, 500);
    world.commit(&store);
    let ended = Rc::new(Cell::new(false));
    let (inner, end) = (store.clone(), ended.clone());
    world.lane.spawn(async move {
        inner.checkpoint(false).await.expect("the disk works");
        end.set(true);
    });
    let added = world.block_on({
        let store = store.clone();
        async move { store.add_space(forebay_core::VolumeId(99), LARGE).await }
    });
    added.expect("there is room");
    assert!(ended.get(), "it waits for the checkpoint");
    check(&world, &store, &small, 500);
    drop(store);
    let store = open(&world);
    check(&world, &store, &space_of(&store, &small), 500);
}

#[test]
fn a_volume_grows_beside_others() {
    for (case, behind) in [("nothing", 0), ("a volume", 100), ("a large volume", LARGE)] {
        for wanted in [1100, 1 << 22, LARGE] {
            let world = World::new(BYTES);
            let store = open(&world);
            let space = world.add_volume(&store, "grows", Mode::Writeback, 1000, &[]);
            fill(&world, &store, &space, 500);
            let other = (behind > 0)
                .then(|| world.add_volume(&store, "behind", Mode::Writeback, behind, &[]));
            if let Some(other) = &other {
                fill(&world, &store, other, 90);
            }
            let used = store.store().use_space_of(space.id);
            let grow = |store: &Rc<StoreLane>| {
                let store = store.clone();
                world.block_on(async move { store.grow_space(space.id, wanted).await })
            };
            assert_eq!(grow(&store).is_err(), other.is_some(), "{case}: it is in use");
            drop(used);
            let grown = grow(&store).expect("there is room").expect("it is there");
            assert_eq!((grown.blocks, space_of(&store, &space)), (wanted, grown), "{case}");
            assert_eq!(grown.base != space.base, other.is_some(), "{case}");
            check(&world, &store, &grown, 500);
            append(&store, &grown, wanted - 1, 9, true);
            append(&store, &grown, 0, 0, true);
            world.commit(&store);
            let check_all = |store: &Rc<StoreLane>| {
                let mine = space_of(store, &space);
                check(&world, store, &mine, 500);
                assert_eq!(first_byte(&world, store, &mine, wanted - 1), Some(9), "{case}");
                if let Some(other) = &other {
                    check(&world, store, &space_of(store, other), 90);
                }
                let others = if other.is_some() { 91 } else { 0 };
                assert_eq!(store.store().index.len(), 502 + others);
            };
            check_all(&store);
            world.checkpoint(&store, false);
            check_all(&store);
            drop(store);
            let mut options = StoreOptions::default();
            options.grown.push((space.id, wanted));
            let (store, _) = world.open(options).expect("it opens");
            check_all(&store);
        }
    }
}

#[test]
fn numbers_of_deleted_volumes_do_not_run_out() {
    let world = World::new(BYTES);
    let store = open(&world);
    let due = |store: &Store| store.checkpoint_is_due();
    world.rest_numbers(&store, 1..=(1 << 14) - 1);
    assert!(!due(store.store()));
    world.rest_numbers(&store, 1 << 14..=(1 << 15) - 1);
    assert!(due(store.store()), "in the background");
    let rest = |store: &Rc<StoreLane>| {
        let store = store.clone();
        world.block_on(async move { store.rest_volume_ids().await }).expect("the disk works");
    };
    rest(&store);
    assert!(due(store.store()), "there are enough for now");
    world.rest_numbers(&store, 1 << 15..=1 << 15);
    rest(&store);
    assert!(!due(store.store()), "none rests any more");
}
