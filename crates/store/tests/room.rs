//! Room: who finds none in the log takes none away from those who come later, and what is looked up
//! ahead may be behind the end.

mod world;

use forebay_core::{Mode, OriginBlock, VolumeId};
use forebay_store::{Appended, Class, StoreOptions};

use world::{World, append_as, version};

#[test]
fn segments_that_are_left_together_give_their_images_back() {
    let world = World::new(16 << 20);
    let (store, _) = world.open(StoreOptions::default()).expect("a cache");
    let space = world.add_volume(&store, "v", Mode::Writeback, 64, &[]);
    let append = |class| {
        let version = version(&space, 1, true, None);
        matches!(store.append(version, class, |cell| cell.fill(1)), Appended::Done { .. })
    };
    let in_a_row = |class| (0..).take_while(|_| append(class)).count() as u64;
    let closed = || {
        let mut closed = Vec::new();
        store.store().segments.closed(&mut closed);
        closed.len() as u64
    };
    let cells = store.store().cells_per_segment();

    // As long as the lane does not run nothing is written, and every segment keeps its image.
    assert!((0..cells).all(|_| append(Class::Rewritten)));
    let room = in_a_row(Class::Foreground);
    assert!(room >= 2 * cells && room.is_multiple_of(cells), "{room}");
    world.commit(&store);
    assert_eq!(closed(), room / cells);

    // Both open segments are full, and there is no image for another one.
    assert!((0..room).all(|_| append(Class::Foreground)));
    assert!(!append(Class::Rewritten));
    world.commit(&store);
    assert_eq!(closed(), 1 + 2 * room / cells);
    assert_eq!(in_a_row(Class::Foreground), room + cells, "images are lost");
}

#[test]
fn an_append_that_panics_keeps_nobody_waiting() {
    let world = World::new(16 << 20);
    let (store, _) = world.open(StoreOptions::default()).expect("a cache");
    let space = world.add_volume(&store, "v", Mode::Writeback, 64, &[]);
    let appending = store.clone();
    world.lane.spawn(async move {
        let version = version(&space, 1, true, None);
        appending.append(version, Class::Foreground, |_| panic!("on purpose"));
    });
    let committing = store.clone();
    let ended = world.block_on(async move { committing.commit().await });
    let error = ended.expect_err("the record lacks a block").to_string();
    assert!(error.contains("an append panicked"), "{error}");
}

#[test]
fn hints_may_point_behind_the_last_block() {
    let world = World::new(16 << 20);
    let (store, _) = world.open(StoreOptions::default()).expect("a cache");
    let blocks = 1 << 20;
    let space = world.add_volume(&store, "v", Mode::Writeback, blocks, &[]);
    // It takes all addresses that this index has.
    assert!(store.add_space(VolumeId(9), 1).is_err());
    for ahead in [0, 7, u64::MAX - blocks] {
        store.store().expect(&space, OriginBlock(blocks + ahead));
    }
}

/// Reclaim goes by this when a part of the reserved segments is gone: what it says there is, there is.
#[test]
fn background_work_knows_what_it_can_append_without_another_segment() {
    let world = World::new(16 << 20);
    let (store, _) = world.open(StoreOptions::default()).expect("a cache");
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    let free_segments = || store.store().segments.free_count();
    assert_eq!(store.free_background_cells(), 0, "nothing is open");
    let append = |block| append_as(Class::Background, &store, &space, block, (1, true, None));
    append(0);
    let free = free_segments();
    for round in 0..2 * store.store().cells_per_segment() {
        let cells = store.free_background_cells();
        append(1 + round);
        let opened = free - free_segments();
        if cells > 0 {
            assert_eq!(opened, 0, "cell {round} of {cells} was not there");
            continue;
        }
        // A record or the segment was full; commits cost cells, which are not promised.
        if opened > 0 {
            assert!(round > store.store().cells_per_segment() / 2, "{round}");
            return;
        }
        world.commit(&store);
    }
    panic!("no other segment was opened");
}
