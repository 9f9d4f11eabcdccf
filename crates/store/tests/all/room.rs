//! Room in the log: a writer that finds none takes none away from later writers, and a look-ahead
//! may pass the end.

use forebay_core::{Mode, OriginBlock};
use forebay_store::{Appended, Class, Condition, StoreOptions, Version};

use crate::world::{World, append_as, version};

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

    // While the lane does not run, nothing is written and every segment keeps its image.
    assert!((0..cells).all(|_| append(Class::Rewritten)));
    let room = in_a_row(Class::Foreground);
    assert!(room >= 2 * cells && room.is_multiple_of(cells), "{room}");
    world.commit(&store);
    assert_eq!(closed(), room / cells);

    // Both open segments are full, and no image is free for another one.
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
    assert_eq!(store.store().index.room(), blocks, "it takes all addresses that this index has");
    for ahead in [0, 7, u64::MAX - blocks] {
        store.store().expect(&space, OriginBlock(blocks + ahead), ahead % 2 == 0);
    }
}

/// Reclaim relies on this number when it uses the reserved segments, so the number must never be
/// too high.
#[test]
fn background_work_knows_its_room_without_another_segment() {
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
        // A record or the segment was full. Commits take cells, which the number does not include.
        if opened > 0 {
            assert!(round > store.store().cells_per_segment() / 2, "{round}");
            return;
        }
        world.commit(&store);
    }
    panic!("no other segment was opened");
}

/// Reclaim reads a block, and writeback makes it clean meanwhile: the reinserted copy is clean too,
/// here and after a crash, and is not counted as dirty.
#[test]
fn a_copy_of_a_version_that_has_become_clean_is_clean() {
    let world = World::new(16 << 20);
    let (store, _) = world.open(StoreOptions::default()).expect("a cache");
    let space = world.add_volume(&store, "v", Mode::Writeback, 64, &[]);
    for block in [1, 2] {
        append_as(Class::Foreground, &store, &space, block, (7, true, None));
    }
    world.commit(&store);
    let slot = |block| {
        let found = store.store().peek(&space, OriginBlock(block)).expect("it is cached");
        found.entry.slot
    };
    let old = [slot(1), slot(2)];
    let kept = store.store().version_of(&space, OriginBlock(1), old[0]).expect("it is there");
    assert!(store.store().written_back(&space, OriginBlock(1), &kept, || false));
    for (block, slot) in [(1, old[0]), (2, old[1])] {
        let condition = Condition::Copy(slot);
        let copy = Version { condition, ..version(&space, block, true, None) };
        let appended = store.append_whole(copy, Class::Background, &[7; 4096]);
        assert!(matches!(appended, Appended::Done { .. }), "{appended:?}");
    }
    let again = Version { condition: Condition::Copy(old[0]), ..version(&space, 1, true, None) };
    let appended = store.append_whole(again, Class::Background, &[7; 4096]);
    assert!(matches!(appended, Appended::Refused), "{appended:?}");
    let segment = store.store().segment_of(slot(2));
    let closed = || {
        let mut closed = Vec::new();
        store.store().segments.closed(&mut closed);
        closed.into_iter().find(|closed| closed.id == segment)
    };
    while closed().is_none() {
        append_as(Class::Background, &store, &space, 3, (3, false, None));
        world.commit(&store);
    }
    assert_eq!(closed().map(|closed| closed.live.dirty), Some(1), "reclaim goes by this");
    drop(store);

    let (store, report) = world.open(StoreOptions::default()).expect("the same cache");
    assert_eq!((report.blocks, report.dirty), (3, 1));
    let is_dirty = |block| {
        let found = store.store().peek(&space, OriginBlock(block)).expect("it is cached");
        found.entry.dirty
    };
    assert!(!is_dirty(1) && is_dirty(2));
}
