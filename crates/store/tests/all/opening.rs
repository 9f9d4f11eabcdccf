//! The state of a cache after it has been opened, and the reads that opening took.

use std::rc::Rc;

use forebay_core::{BlockSize, Generation, Mode, OriginBlock, RecordNumber};
use forebay_format::record::encode_data;
use forebay_format::superblock::{self, COPY_A, COPY_B};
use forebay_format::volume::{ORDERED_RECORD, ORDERED_SEQUENCE};
use forebay_format::{Body, Geometry, Head, PAGE, RecordHeader, Superblock, Uuid, record};
use forebay_store::segments::SegmentUse;
use forebay_store::{Class, StoreLane, StoreOptions, VolumeSpace};

use crate::world::image::{self, End, differences};
use crate::world::{World, append, append_as};

const BYTES: usize = 8 << 20;

fn open(world: &World) -> Rc<StoreLane> {
    world.open(StoreOptions::default()).expect("it opens").0
}

fn superblock(world: &World) -> Superblock {
    let content = world.disk.content();
    Superblock::choose(&content[..PAGE], &content[64 << 10..][..PAGE]).expect("a superblock")
}

/// Returns the headers of records on a device with the pages that contain them.
fn records(world: &World) -> Vec<(usize, RecordHeader)> {
    let content = world.disk.content();
    let geometry = Geometry::plan(content.len() as u64, BlockSize::DEFAULT, 512, None);
    let (geometry, cache) = (geometry.expect("a plan"), Uuid::from_u128(7));
    let pages = content.chunks_exact(PAGE).enumerate();
    pages
        .filter_map(|(page, bytes)| Some((page, record::decode(bytes, &geometry, &cache).ok()?)))
        .filter(|(_, header)| !header.body.is_opening())
        .collect()
}

fn closed(store: &Rc<StoreLane>) -> Vec<SegmentUse> {
    let mut closed = Vec::new();
    store.store().segments.closed(&mut closed);
    closed
}

#[test]
fn the_report_counts_what_was_read_and_replayed() {
    // The reads of the roots are not counted; they are the same each time.
    let mut roots = Vec::new();
    for end in [End::Crash, End::Clean] {
        let (_, content, model) = image::make(end);
        let world = World::on(&content);
        let after = superblock(&world).last_record;
        let wanted = records(&world).iter().filter(|(_, it)| it.number > after).count() as u64;
        let (_, report) = world.open(StoreOptions::default()).expect("it opens");
        assert_eq!((report.records, report.torn), (wanted, 0), "{end:?}");
        assert_eq!(wanted == 0, end == End::Clean);
        assert_eq!(report.blocks, model.len() as u64);
        assert_eq!(report.dirty, model.values().filter(|it| it.dirty).count() as u64);
        roots.push(world.disk.faults.bytes_read() - report.bytes_read);
    }
    assert_eq!(roots[0], roots[1]);
}

#[test]
fn recovery_reads_no_more_of_old_segments_than_their_beginnings() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    for block in 0..400 {
        append(&store, &space, block, 1, true, None);
        if block % 40 == 0 {
            world.commit(&store);
        }
    }
    world.checkpoint(&store, false);
    append(&store, &space, 0, 2, true, None);
    world.commit(&store);
    drop(store);
    let geometry = superblock(&world).geometry;
    let beginnings = u64::from(geometry.segment_count) * 2 * PAGE as u64;
    let checkpoint = geometry.checkpoint_area_bytes;
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    let most = beginnings + checkpoint + geometry.segment_bytes + 64 * 1024;
    assert!(report.bytes_read < most, "{} of {most}", report.bytes_read);
    assert_eq!((report.records, report.blocks), (1, 400));
    world.checkpoint(&store, true);
    drop(store);
    let (_, report) = world.open(StoreOptions::default()).expect("it opens");
    assert!(report.clean && report.bytes_read <= checkpoint, "{report:?}");
}

#[test]
fn records_with_torn_blocks_are_counted() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    append(&store, &space, 9, 9, true, None);
    world.commit(&store);
    for block in 0..3 {
        append(&store, &space, block, 1, true, None);
    }
    world.commit(&store);
    drop(store);
    let last = records(&world).into_iter().max_by_key(|(_, it)| it.number).expect("two").0;
    world.disk.edit(last + 2, |page| page[0] ^= 1);
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    assert_eq!((report.torn, report.records, report.blocks, report.damage), (1, 2, 3, None));
    let space = store.store().space_of(space.id).expect("there");
    assert!(world.read(&store, &space, 1).is_none() && world.read(&store, &space, 2).is_some());
}

#[test]
fn volumes_have_their_parts_of_the_index_side_by_side() {
    let world = World::new(BYTES);
    let store = open(&world);
    let [a, b, c] =
        ["a", "b", "c"].map(|name| world.add_volume(&store, name, Mode::Writeback, 64, &[]));
    world.change_volumes(&store, |volumes| {
        // Its first block begins before the origin, so its last one ends after it.
        volumes.iter_mut().filter(|it| it.name == "a").for_each(|it| it.alignment = 512);
    });
    drop(store);
    for (grown, blocks) in
        [(vec![], [65, 64, 64]), (vec![(b.id, 5000), (a.id, 10)], [65, 5000, 64])]
    {
        let options = StoreOptions { grown, ..StoreOptions::default() };
        let (store, _) = world.open(options).expect("it opens");
        let spaces = [a, b, c].map(|it: VolumeSpace| store.store().space_of(it.id).expect("there"));
        assert_eq!(spaces.map(|it| it.blocks), blocks);
        assert_eq!(spaces.map(|it| it.base), [0, blocks[0], blocks[0] + blocks[1]]);
    }
}

#[test]
fn segments_are_free_again_unless_something_points_into_them() {
    for clean in [false, true] {
        let world = World::new(BYTES);
        let store = open(&world);
        let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
        let settings = [(32, 1), (ORDERED_SEQUENCE, 0), (ORDERED_RECORD, 0)];
        let ordered = world.add_volume(&store, "ordered", Mode::Writeback, 4096, &settings);
        store.store().begin_ordered(ordered.id);
        let cells = store.store().cells_per_segment();
        // At the end the first segment is empty, the second one has only older versions of an
        // ordered volume, and the third one has the newest versions of all blocks.
        let appended = |space: &VolumeSpace, blocks, fill| {
            for block in 0..blocks {
                append(&store, space, block, fill, block % 3 == 0, None);
            }
            world.commit(&store);
        };
        appended(&space, cells, 1);
        appended(&ordered, cells, 2);
        let cut = store.store().cut(ordered.id, forebay_core::Nanos(1)).expect("ordered");
        store.store().confirm_cut(ordered.id, cut);
        for block in 0..cells {
            append_as(Class::Background, &store, &ordered, block, (3, true, None));
        }
        world.commit(&store);
        appended(&space, cells, 4);
        world.checkpoint(&store, clean);
        let before = store.store().segments.all_live();
        let kept_by_rank = before.1;
        drop(store);

        let (store, report) = world.open(StoreOptions::default()).expect("it opens");
        let segments = &store.store().segments;
        assert_eq!((report.clean, report.blocks), (clean, 2 * cells));
        let listed = closed(&store);
        assert_eq!(listed.len() as u32 + segments.free_count(), segments.count());
        assert!(listed.iter().all(|it| it.live.blocks > 0 || it.held), "{listed:?}");
        assert!(listed.iter().any(|it| it.live.blocks == 0 && it.held), "{listed:?}");
        let held = listed.iter().filter(|it| it.held).count() as u32;
        assert_eq!(
            (segments.with_held(), listed.iter().map(|it| it.live.blocks).sum()),
            (held, 2 * cells as u32)
        );
        assert_eq!(segments.all_live(), (2 * cells, kept_by_rank));
        let dirty: u32 = listed.iter().map(|it| it.live.dirty).sum();
        assert_eq!(u64::from(dirty), report.dirty);
        let positions = listed.iter().map(|it| segments.position(it.id));
        assert!(positions.min() > Some(1), "what was appended is known");
        assert!(
            listed.iter().map(|it| it.opened).collect::<std::collections::BTreeSet<_>>().len()
                == listed.len()
        );
    }
}

#[test]
fn ranks_come_back_from_a_checkpoint() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    for block in 0..10 {
        append(&store, &space, block, 1, false, None);
    }
    for block in 0..4 {
        let slot = store.store().peek(&space, OriginBlock(block)).expect("cached").entry.slot;
        store.store().rerank(&space, OriginBlock(block), slot, |_| 0);
    }
    world.checkpoint(&store, true);
    drop(store);
    assert_eq!(open(&world).store().segments.all_live(), (10, 6));
}

#[test]
fn numbers_go_on_where_an_orderly_stop_left_them() {
    let world = World::new(BYTES);
    let store = open(&world);
    let mut space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    drop(store);
    drop(open(&world));
    let mut last = None;
    for round in 0..3 {
        let store = open(&world);
        space = store.store().space_of(space.id).expect("there");
        append(&store, &space, round, 1, true, None);
        world.commit(&store);
        let (_, newest) =
            records(&world).into_iter().max_by_key(|(_, it)| it.number).expect("just written");
        let Body::Data(entries) = &newest.body else { panic!("{newest:?}") };
        let now = (newest.number.0, newest.generation.0, entries[0].sequence);
        if let Some((number, generation, sequence)) = last {
            assert_eq!((now.0, now.1), (number + 1, generation + 1));
            assert!(now.2 > sequence);
        }
        last = Some(now);
        world.checkpoint(&store, true);
    }
}

#[test]
fn an_orderly_stop_needs_no_new_checkpoint_unless_it_is_damaged() {
    let (_, content, model) = image::make(End::Clean);
    let world = World::on(&content);
    let reference = superblock(&world).checkpoint;
    drop(world.open(StoreOptions::default()).expect("it opens"));
    let after = superblock(&world);
    assert_eq!((after.checkpoint, after.clean_shutdown), (reference, false));

    let world = World::on(&content);
    let area = reference.expect("there is one").area;
    let page = superblock(&world).geometry.checkpoint_areas[usize::from(area)] as usize / PAGE;
    world.disk.edit(page + 1, |content| content[20] ^= 1);
    for notes in [1, 0] {
        let (store, report) = world.open(StoreOptions::default()).expect("it opens");
        assert_eq!((report.notes.len(), report.damage), (notes, None), "{report:?}");
        assert_eq!(differences(&world, &store, &model), []);
    }
}

#[test]
fn clean_copies_that_are_distrusted_are_dropped_once() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    append(&store, &space, 1, 1, true, None);
    append(&store, &space, 2, 2, false, None);
    world.commit(&store);
    let inner = store.clone();
    assert!(world.block_on(async move { inner.distrust_clean().await }));
    // A checkpoint that began before the device failed.
    world.checkpoint(&store, false);
    drop(store);
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    assert_eq!((report.blocks, report.dirty), (1, 1), "the dirty one");
    let space = store.store().space_of(space.id).expect("there");
    append(&store, &space, 2, 2, false, None);
    world.commit(&store);
    drop(store);
    let (_, report) = world.open(StoreOptions::default()).expect("it opens");
    assert_eq!((report.blocks, report.dirty), (2, 1));
}

#[test]
fn a_last_header_that_cannot_be_read_may_have_been_a_record() {
    let (_, content, _) = image::make(End::Crash);
    let world = World::on(&content);
    let (last, header) =
        records(&world).into_iter().max_by_key(|(_, it)| it.number).expect("there are some");
    world.disk.make_unreadable(last);
    let (_, report) = world.open(StoreOptions::default()).expect("it opens");
    let damage = report.damage.expect("nothing tells that there was no record");
    assert!((damage.first..damage.first + damage.count).contains(&header.number.0), "{damage:?}");
}

/// The newest record is the first of its segment. Neither the opening nor the header can be read,
/// so nothing shows that the segment was opened.
#[test]
fn a_segment_without_its_beginning_may_have_had_the_last_record() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    append(&store, &space, 1, 1, true, None);
    world.commit(&store);
    world.checkpoint(&store, false);
    append_as(Class::Background, &store, &space, 2, (2, true, None));
    world.commit(&store);
    drop(store);
    let (last, header) =
        records(&world).into_iter().max_by_key(|(_, it)| it.number).expect("there are two");
    assert!(matches!(header.body, Body::Data(_)) && header.position == 1, "{header:?}");
    for page in [last - 1, last] {
        world.disk.make_unreadable(page);
    }
    let (_, report) = world.open(StoreOptions::default()).expect("it opens");
    let damage = report.damage.expect("nothing tells that there was no record");
    assert!((damage.first..damage.first + damage.count).contains(&header.number.0), "{damage:?}");
}

/// The beginning of a segment shows that it was opened since the checkpoint. Without it, the
/// records behind it are searched, and data that they prove durable is reported missing.
#[test]
fn a_segment_whose_beginning_is_lost_is_found_by_later_headers() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    world.checkpoint(&store, false);
    for block in 0..3 {
        append(&store, &space, block, 1, true, None);
        world.commit(&store);
    }
    drop(store);
    let (first, _) = records(&world).into_iter().min_by_key(|(_, it)| it.number).expect("three");
    world.disk.edit(first - 1, |opening| opening.fill(0));
    world.disk.edit(first, |page| page[40] ^= 1);
    let (_, report) = world.open(StoreOptions::default()).expect("it opens");
    assert_eq!(report.damage.expect("the first record is missed").count, 1, "{report:?}");
    assert_eq!(report.dirty, 2, "{report:?}");
}

/// The opening and the record behind it are written together, but a crash may have kept only the
/// record.
#[test]
fn a_segment_is_opened_again_if_only_its_first_record_says_so() {
    let world = World::new(BYTES);
    let store = open(&world);
    let space = world.add_volume(&store, "v", Mode::Writeback, 4096, &[]);
    append(&store, &space, 1, 1, true, None);
    world.commit(&store);
    world.checkpoint(&store, false);
    let generation = store.store().segments.next_generation();
    drop(store);
    let content = world.disk.content();
    let (first, header) = records(&world).into_iter().next().expect("one");
    let Body::Data(mut entries) = header.body else { panic!("of data") };
    entries[0].sequence += 1;
    let head = |generation| Head {
        cache: Uuid::from_u128(7),
        segment: header.segment,
        generation,
        position: header.position,
        number: RecordNumber(header.number.0 + 1),
        durable_through: header.number,
    };
    // A generation before the one in the checkpoint, and one after it.
    for (generation, replayed) in [(Generation(0), 0), (generation, 1)] {
        let world = World::on(&content);
        world.disk.edit(first, |page| {
            page.fill(0);
            encode_data(page, &head(generation), BlockSize::DEFAULT, &entries).expect("it fits");
        });
        let (_, report) = world.open(StoreOptions::default()).expect("it opens");
        assert_eq!((report.records, report.torn, report.dirty), (replayed, 0, 1), "{report:?}");
    }
}

#[test]
fn copies_that_cannot_be_used_are_in_the_report() {
    let (_, content, _) = image::make(End::Crash);
    let world = World::on(&content);
    world.disk.edit(0, |page| page[100] ^= 1);
    for notes in [1, 0] {
        let (_, report) = world.open(StoreOptions::default()).expect("it opens");
        assert_eq!(report.notes.len(), notes, "{report:?}");
    }
}

/// Every segment may have been opened once more than its headers show.
#[test]
fn a_rebuilt_cache_leaves_out_the_generations_that_nobody_saw() {
    let (_, content, _) = image::make(End::Crash);
    let world = World::on(&content);
    let superblock = superblock(&world);
    let highest = records(&world).iter().map(|(_, it)| it.generation.0).max().expect("some");
    for area in superblock.geometry.checkpoint_areas {
        for page in 0..superblock.geometry.checkpoint_area_bytes as usize / PAGE {
            world.disk.edit(area as usize / PAGE + page, |content| content.fill(0x5a));
        }
    }
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    assert!(!report.notes.is_empty(), "{report:?}");
    let next = store.store().segments.next_generation().0;
    assert_eq!(next, highest + 1 + u64::from(superblock.geometry.segment_count));
}

/// A change of the volume table has set a bit of the superblock, and one or two of the four pages
/// of the roots are stale or lost. The superblock always describes the table that recovery finds.
#[test]
fn the_superblock_describes_the_table_that_recovery_found() {
    let world = World::new(BYTES);
    let store = open(&world);
    world.add_volume(&store, "v", Mode::Writeback, 64, &[]);
    let before = world.disk.content();
    world.change_volumes(&store, |volumes| {
        volumes[0].settings = vec![(ORDERED_RECORD, 1), (ORDERED_SEQUENCE, 1)];
    });
    drop(store);
    let after = world.disk.content();
    let areas = superblock(&world).geometry.volume_areas;
    let pages = [COPY_A, COPY_B, areas[0], areas[1]].map(|at| at as usize / PAGE);
    let is_ordered = |bit: u64| bit & superblock::ORDERED != 0;
    let mut opened = 0;
    // Each page has its present content, its former content, or zeroes.
    for case in 0..3usize.pow(4) {
        let mut content = after.clone();
        for (digit, page) in pages.into_iter().enumerate() {
            let bytes = page * PAGE..(page + 1) * PAGE;
            match case / 3usize.pow(digit as u32) % 3 {
                0 => (),
                1 => content[bytes.clone()].copy_from_slice(&before[bytes]),
                _ => content[bytes].fill(0),
            }
        }
        let world = World::on(&content);
        let Ok((store, _)) = world.open(StoreOptions::default()) else { continue };
        opened += 1;
        let volume = &store.store().volumes()[0];
        let in_order = volume.settings.iter().any(|(tag, _)| *tag == ORDERED_RECORD);
        drop(store);
        let found = superblock(&world);
        assert_eq!(is_ordered(found.incompat), in_order, "case {case}");
    }
    assert!(opened > 40, "{opened}");
}
