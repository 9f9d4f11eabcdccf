//! Repeated crashes, with different subsets of the writes before each that a device may keep.

use std::rc::Rc;

use forebay_core::{BlockSize, Mode, OriginBlock};
use forebay_format::{Body, Geometry, PAGE, RecordHeader, Superblock, Uuid, record};
use forebay_store::{Class, Damage, StoreLane, StoreOptions, VolumeSpace};
use forebay_testkit::OpKind;
use forebay_testkit::disk::bytes;

use crate::world::image::{self, End, differences};
use crate::world::{World, append, append_as};

const BYTES: usize = 8 << 20;

fn open(world: &World) -> Rc<StoreLane> {
    world.open(StoreOptions::default()).expect("it opens").0
}

fn volume(world: &World, store: &Rc<StoreLane>) -> VolumeSpace {
    world.add_volume(store, "v", Mode::Writeback, 4096, &[])
}

/// Returns the headers on a device with the pages that contain them.
fn headers(content: &[u8]) -> Vec<(usize, RecordHeader)> {
    let geometry = Geometry::plan(BYTES as u64, BlockSize::DEFAULT, 512, None).expect("a plan");
    let pages = content.chunks_exact(PAGE).enumerate();
    let cache = Uuid::from_u128(7);
    pages
        .filter_map(|(page, bytes)| Some((page, record::decode(bytes, &geometry, &cache).ok()?)))
        .collect()
}

fn first_byte(world: &World, store: &Rc<StoreLane>, space: &VolumeSpace, block: u64) -> Option<u8> {
    let found = world.read(store, space, block)?;
    Some(found.expect("it can be read").content[0])
}

/// Crash 1 leaves a record of a segment whose first pages did not reach the device, so recovery
/// does not see it. The segment is used again; crash 2 leaves less of it, and the old record is
/// still behind.
#[test]
fn a_record_that_recovery_did_not_see_never_counts() {
    for world in World::both(BYTES) {
        let store = open(&world);
        let space = volume(&world, &store);
        world.checkpoint(&store, false);
        // Background work opens a segment first each time, so that clients get the same segment
        // again.
        append_as(Class::Background, &store, &space, 50, (1, true, None));
        world.commit(&store);
        let before = world.disk.content();
        for (block, fill) in [(0, 1), (100, 2), (7, 99)] {
            for block in block..block + 5 {
                append(&store, &space, block, fill, true, None);
            }
            world.commit(&store);
        }
        let records = headers(&world.disk.content());
        let (last, stale) = records.iter().max_by_key(|(_, it)| it.number).expect("three").clone();
        let segment = stale.segment;
        // Crash 1: only the last of these records has reached the device.
        for (page, _) in records.iter().filter(|(page, it)| it.segment == segment && *page < last) {
            let old = before[page * PAGE..][..PAGE].to_vec();
            world.disk.edit(*page, |content| content.copy_from_slice(&old));
        }
        drop(store);
        let store = open(&world);
        let space = store.store().space_of(space.id).expect("there");
        assert_eq!(first_byte(&world, &store, &space, 7), None, "nobody saw it");
        // Block 7 is written and flushed, and then the same segment is opened again.
        append_as(Class::Background, &store, &space, 7, (3, true, None));
        world.commit(&store);
        append(&store, &space, 1000, 4, true, None);
        world.commit(&store);
        // Crash 2: the beginning of the segment is torn again, so that its generation has to be
        // searched for.
        let first = headers(&world.disk.content())
            .into_iter()
            .find(|(_, it)| it.segment == segment && it.generation > stale.generation)
            .expect("it has been opened again")
            .0;
        for page in [first, first + 1] {
            world.disk.edit(page, |content| content[100] ^= 1);
        }
        assert!(
            headers(&world.disk.content()).contains(&(last, stale)),
            "the old record is still there"
        );
        drop(store);
        let store = open(&world);
        let space = store.store().space_of(space.id).expect("there");
        assert_eq!(first_byte(&world, &store, &space, 7), Some(3), "what was flushed");
        assert_eq!(world.loaded_later.get() > 0, world.loads_later);
    }
}

#[test]
fn no_number_sequence_or_generation_is_given_out_twice() {
    for world in World::both(BYTES) {
        let (mut numbers, mut sequences, mut generations) = (0, 0, Default::default());
        let store = open(&world);
        let mut space = volume(&world, &store);
        drop(store);
        for round in 0..5 {
            let store = open(&world);
            space = store.store().space_of(space.id).expect("there");
            let before = world.disk.content();
            append(&store, &space, round, 1, true, None);
            world.commit(&store);
            let records = headers(&world.disk.content());
            let (_, newest) = records.iter().max_by_key(|(_, it)| it.number).expect("just written");
            let Body::Data(entries) = &newest.body else { panic!("{newest:?}") };
            assert!(newest.number.0 > numbers, "a number was used again");
            assert!(entries[0].sequence > sequences, "a sequence was used again");
            assert!(newest.generation > generations, "a generation was used again");
            (numbers, sequences, generations) =
                (newest.number.0, entries[0].sequence, newest.generation);
            // A crash that keeps none of the writes.
            if round % 2 == 0 {
                world.disk.overwrite(&before);
            }
        }
        assert_eq!(world.loaded_later.get() > 0, world.loads_later);
    }
}

/// Openings beyond 31 bits, for caches that are written for a long time or crash often.
#[test]
fn generations_go_on_beyond_31_bits() {
    for world in World::both(BYTES) {
        let store = open(&world);
        let space = volume(&world, &store);
        store.store().segments.skip_generations((1 << 31) - 3);
        world.checkpoint(&store, false);
        assert_ne!(
            superblock(&world).incompat & 4,
            0,
            "the device says so before the first of them"
        );
        for block in 0..600 {
            append(&store, &space, block, 1 + (block % 200) as u8, true, None);
            if block % 50 == 0 {
                world.commit(&store);
            }
        }
        world.commit(&store);
        // Marks name the lower half only.
        for block in 0..50 {
            store.store().forget(&space, OriginBlock(block), |_| true).expect("cached");
        }
        world.commit(&store);
        append(&store, &space, 4000, 9, true, None);
        world.commit(&store);
        drop(store);
        let highest = headers(&world.disk.content()).iter().map(|(_, it)| it.generation.0).max();
        assert!(highest > Some(1 << 31), "{highest:?}");
        for clean in [false, true] {
            let (store, report) = world.open(StoreOptions::default()).expect("it opens");
            assert_eq!((report.clean, report.damage), (clean, None));
            assert_eq!(store.store().index.len(), 551);
            let space = store.store().space_of(space.id).expect("there");
            assert_eq!(first_byte(&world, &store, &space, 49), None);
            for block in 50..600 {
                assert_eq!(
                    first_byte(&world, &store, &space, block),
                    Some(1 + (block % 200) as u8)
                );
            }
            world.checkpoint(&store, true);
        }
        assert_eq!(world.loaded_later.get() > 0, world.loads_later);
    }
}

fn superblock(world: &World) -> Superblock {
    let content = world.disk.content();
    Superblock::choose(&content[..PAGE], &content[64 << 10..][..PAGE]).expect("a superblock")
}

/// A lost record that later ones prove damages every volume that it may have contained, until the
/// damage is acknowledged for that volume.
#[test]
fn damage_is_durable_and_a_matter_of_each_volume() {
    let world = World::new(BYTES);
    let store = open(&world);
    let a = volume(&world, &store);
    let b = world.add_volume(&store, "b", Mode::Writeback, 4096, &[]);
    let through = world.add_volume(&store, "through", Mode::Writethrough, 4096, &[]);
    append(&store, &through, 0, 5, false, None);
    append(&store, &a, 0, 1, true, None);
    append(&store, &b, 0, 2, true, None);
    world.commit(&store);
    let lost = headers(&world.disk.content()).last().expect("a record").0;
    // The volume made the block dirty before it entered its mode, and may not have been drained.
    world.change_volumes(&store, |volumes| {
        volumes.iter_mut().filter(|it| it.name == "b").for_each(|it| it.mode = Mode::Writethrough);
    });
    // A volume with another UUID, as in a copied cache, is still as old as before.
    world.change_volumes(&store, |volumes| {
        let own = volumes.iter_mut().filter(|it| it.name == "v");
        own.for_each(|it| it.uuid = Uuid::from_u128(99));
    });
    let later = world.add_volume(&store, "later", Mode::Writeback, 4096, &[]);
    append(&store, &later, 0, 3, true, None);
    append(&store, &later, 1, 4, false, None);
    world.commit(&store);
    append(&store, &a, 1, 1, true, None);
    world.commit(&store);
    drop(store);
    world.disk.edit(lost, |page| page[2000] ^= 4);
    let damaged = |store: &Rc<StoreLane>| {
        [a.id, b.id, through.id, later.id].map(|id| store.store().damage_of(id))
    };
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    let damage = report.damage.expect("a record is lost");
    assert_eq!(damage.count, 1);
    assert_eq!(damaged(&store), [Some(damage), Some(damage), None, None]);
    let space = store.store().space_of(later.id).expect("there");
    for (block, fill) in [(0, 3), (1, 4)] {
        assert_eq!(first_byte(&world, &store, &space, block), Some(fill), "it came later");
    }
    let space = store.store().space_of(through.id).expect("there");
    assert_eq!(first_byte(&world, &store, &space, 0), None, "a clean copy may be out of date");
    assert_ne!(superblock(&world).incompat & 8, 0);
    // The log no longer shows the damage, but it is still recorded; acknowledging one volume leaves
    // the other damaged.
    for clean in [false, true] {
        drop(world.open(StoreOptions::default()).expect("it opens"));
        let (store, report) = world.open(StoreOptions::default()).expect("it opens");
        assert_eq!(report.damage, None);
        assert_eq!(damaged(&store)[1], Some(damage));
        world.change_volumes(&store, |volumes| {
            volumes.iter_mut().filter(|it| it.name == "v").for_each(Damage::acknowledge);
        });
        assert_eq!(damaged(&store), [None, Some(damage), None, None]);
        world.checkpoint(&store, clean);
    }
    let store = open(&world);
    world.change_volumes(&store, |volumes| volumes.retain(|volume| volume.name != "b"));
    assert_eq!(superblock(&world).incompat & 8, 0, "nobody is damaged any more");
}

/// Cables and controllers fail a read and do the next.
#[test]
fn a_read_that_fails_once_costs_nothing() {
    for clean in [false, true] {
        let (_, content, model) = image::make(if clean { End::Clean } else { End::Crash });
        let world = World::on(&content);
        for page in 0..world.disk.content().len() / PAGE {
            world.disk.faults.fail_next(OpKind::Read, bytes(page), 2);
        }
        let (store, report) = world.open(StoreOptions::default()).expect("it opens");
        assert_eq!((report.damage, report.clean), (None, clean));
        world.disk.faults.heal();
        assert_eq!(differences(&world, &store, &model), []);
    }
}

/// Location of the current checkpoint, with its parity.
fn checkpoint_pages(world: &World) -> std::ops::Range<usize> {
    let superblock = superblock(world);
    let reference = superblock.checkpoint.expect("there is one");
    let start = superblock.geometry.checkpoint_areas[usize::from(reference.area)] as usize / PAGE;
    start..start + superblock.geometry.checkpoint_area_bytes as usize / PAGE
}

/// The checkpoint is damaged in more than one place: all recoverable blocks are found in the log.
#[test]
fn a_checkpoint_beyond_repair_is_rebuilt_from_the_log() {
    let world = World::new(BYTES);
    let store = open(&world);
    let (a, b) = (volume(&world, &store), world.add_volume(&store, "b", Mode::Writeback, 64, &[]));
    for block in 0..40 {
        append(&store, &a, block, 1, true, None);
        append(&store, &b, block, 2, true, None);
    }
    world.commit(&store);
    append(&store, &a, 7, 3, true, None);
    store.store().forget(&b, OriginBlock(9), |_| true).expect("cached");
    world.commit(&store);
    world.checkpoint(&store, false);
    append(&store, &a, 8, 4, true, None);
    world.commit(&store);
    drop(store);
    for page in checkpoint_pages(&world) {
        world.disk.edit(page, |content| content.fill(0x5a));
    }
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    assert!(!report.clean && !report.notes.is_empty(), "{report:?}");
    let [a, b] = [a.id, b.id].map(|id| store.store().space_of(id).expect("there"));
    for block in 0..40 {
        let wanted = if block == 7 {
            3
        } else if block == 8 {
            4
        } else {
            1
        };
        assert_eq!(first_byte(&world, &store, &a, block), Some(wanted));
        let wanted = if block == 9 { None } else { Some(2) };
        assert_eq!(first_byte(&world, &store, &b, block), wanted);
    }
    // All records since the creation of the volumes exist, so the volumes cannot have lost data.
    assert!([a.id, b.id].iter().all(|id| store.store().damage_of(*id).is_none()));
    append(&store, &a, 0, 9, true, None);
    world.commit(&store);
    drop(store);
    // Numbers are skipped after a crash, because recovery cannot tell whether records had them.
    drop(open(&world));
    for page in checkpoint_pages(&world) {
        world.disk.edit(page, |content| content.fill(0x5a));
    }
    let (store, report) = world.open(StoreOptions::default()).expect("it opens");
    assert_eq!(first_byte(&world, &store, &a, 0), Some(9));
    assert!(report.damage.is_some());
    assert!([a.id, b.id].iter().all(|id| store.store().damage_of(*id).is_some()));
}

/// A volume number may be used again once no record in the log can be taken for one of the new
/// volume.
#[test]
fn volume_numbers_are_used_again() {
    let world = World::new(BYTES);
    let store = open(&world);
    let kept = volume(&world, &store);
    world.change_counter(&store, u16::MAX - 1);
    let mut seen = Vec::new();
    for round in 0..6 {
        let space = world.add_volume(&store, &format!("v{round}"), Mode::Writeback, 64, &[]);
        append(&store, &space, 0, 1 + round, true, None);
        world.commit(&store);
        world.delete_volume(&store, &space);
        assert!(space.id != kept.id && !seen.contains(&space.id), "{:?} rests", space.id);
        seen.push(space.id);
    }
    assert!(seen.iter().any(|id| id.0 < 10) && seen.iter().any(|id| id.0 > 60_000), "{seen:?}");
    world.change_counter(&store, seen[0].0);
    world.checkpoint(&store, false);
    let again = world.add_volume(&store, "again", Mode::Writeback, 64, &[]);
    assert_eq!(again.id, seen[0], "nothing of the old one is in the log any more");
    drop(store);
    let store = open(&world);
    let space = store.store().space_of(again.id).expect("there");
    assert_eq!(first_byte(&world, &store, &space, 0), None);
}

/// Loses any page of a superblock or volume table at any moment, also between the writes of a
/// change. The cache opens, has every completed change, and tolerates the next lost page.
#[test]
fn no_root_is_the_only_one_at_any_moment() {
    let world = World::new(BYTES);
    let store = open(&world);
    volume(&world, &store);
    let base = store.store().volumes()[0].settings.len();
    world.disk.record_writes();
    let (inner, faults) = (store.clone(), world.disk.faults.clone());
    let before = faults.writes();
    let ended = world.block_on(async move {
        let mut ended = Vec::new();
        for number in 0..4u64 {
            let changed = inner.change_volumes(|volumes, _| {
                volumes[0].settings.push((1000 + number as u16, number));
                Ok(())
            });
            changed.await.expect("the disk works");
            ended.push((faults.writes() - before) as usize);
        }
        ended
    });
    let areas = superblock(&world).geometry.volume_areas.map(|at| at as usize / PAGE);
    let pages = [0, 16, areas[0], areas[1]];
    let states = world.disk.recorded();
    assert_eq!((states.len(), ended.last()), (16, Some(&16)));
    for (number, content) in states.into_iter().enumerate() {
        for (page, next) in pages.into_iter().flat_map(|page| pages.map(|next| (page, next))) {
            let world = World::on(&content);
            let done = ended.iter().filter(|writes| **writes <= number + 1).count();
            let mut least = done;
            for page in [page, next] {
                world.disk.edit(page, |content| content.fill(0));
                let opened = world.open(StoreOptions::default());
                let case = format!("after write {}, without page {page}", number + 1);
                let (store, _) = opened.unwrap_or_else(|error| panic!("{case}: {error}"));
                let found = store.store().volumes()[0].settings.len() - base;
                assert!((least..=done + 1).contains(&found), "{case}: {found} of {done} changes");
                least = found;
            }
        }
    }
}
