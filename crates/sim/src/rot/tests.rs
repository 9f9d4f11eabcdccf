use forebay_core::{BlockSize, Generation};

use super::*;
use crate::engine::Engine;
use crate::world::RunOptions;

/// Returns a world and a page that may contain a header.
fn world_of(seed: u64, engine: &Engine) -> (World<'_>, Geometry, u64) {
    let world = World::new(seed, engine, RunOptions::default());
    let geometry = Geometry::plan(world.profile.cache_size, BlockSize::default(), 512, None);
    let geometry = geometry.expect("a cache device");
    let page = geometry.segments_offset / PAGE as u64 + 1;
    (world, geometry, page)
}

/// An unreadable page may have contained a record: the store must report it, regardless of other
/// damage to that page.
#[test]
fn a_page_that_is_hit_again_is_still_unreadable() {
    let engine = Engine(None);
    for seed in 0..8 {
        let (mut world, geometry, page) = world_of(seed, &engine);
        let (volumes, headers) = (BTreeMap::new(), BTreeMap::new());
        let unsettled = BTreeSet::new();
        let log = LogSnapshot {
            geometry,
            base: 0,
            accepted: Accepted::default(),
            volumes,
            headers,
            unsettled,
            cells: Vec::new(),
        };
        let told = Told { volume: 0, first: 1, count: 1 };
        world.note_rot(&log, &BTreeSet::new());
        assert!(world.judge_told(told).is_err(), "seed {seed}: nothing was damaged");
        let mut rotten = BTreeSet::new();
        for _ in 0..32 {
            if world.damage(&log.geometry, page) {
                rotten.insert(page);
            }
        }
        assert!(world.is_unreadable(page), "seed {seed}");
        world.note_rot(&log, &rotten);
        assert!(world.judge_told(told).is_ok(), "seed {seed}");
    }
}

/// Zeroes that are overwritten with zeroes lose no record: the store must not report a loss.
#[test]
fn a_page_that_is_as_it_was_is_not_damaged() {
    let engine = Engine(None);
    let mut as_it_was = 0;
    for seed in 0..8 {
        let (mut world, geometry, page) = world_of(seed, &engine);
        let content = |world: &World<'_>| {
            let mut bytes = vec![0; PAGE];
            world.cache.with_image(|image| image.read(page * PAGE as u64, &mut bytes));
            bytes
        };
        while !world.is_unreadable(page) {
            let before = content(&world);
            let damaged = world.damage(&geometry, page);
            let differs = world.is_unreadable(page) || content(&world) != before;
            assert_eq!(damaged, differs, "seed {seed}");
            as_it_was += u32::from(!differs);
        }
    }
    assert!(as_it_was > 0, "no zeroes over zeroes");
}

/// The write of a record was in flight to a page that was unreadable before. The crash kept its
/// header, which no other record proves: the store keeps the block, and reads of it fail.
#[test]
fn a_cell_that_never_arrived_on_an_unreadable_page_may_fail() {
    let engine = Engine(None);
    for (header, fails) in [(RecordNumber(8), true), (RecordNumber(7), false)] {
        let (mut world, geometry, page) = world_of(1, &engine);
        world.cache.make_unreadable(page * SECTORS);
        let slot = Slot((PAGE as u64 / geometry.granule()) as u32);
        let (volume, block) = (VolumeId(1), OriginBlock(2));
        let cell = Cell { header, slot, generation: Generation(1), volume, block, sequence: 1 };
        let (volumes, headers) = (BTreeMap::from([(volume, 0)]), BTreeMap::new());
        let (unsettled, cells) = (BTreeSet::new(), vec![cell.clone()]);
        let log = LogSnapshot {
            geometry,
            base: 7,
            accepted: Accepted::default(),
            volumes,
            headers,
            unsettled,
            cells,
        };
        assert_eq!(log.pages(&cell), page..page + 1);
        let place = log.place(&world, volume, block).expect("a place on the volume");
        world.taint_cut_off(&log);
        assert_eq!(world.oracle.is_tainted(place), fails, "{header:?}");
    }
}

/// A record is proved by a header that was not synced. The next crash may revert that header, and
/// the lost record then looks torn: the store may or may not report it.
#[test]
fn a_proof_that_the_next_crash_may_drop_allows_both() {
    let engine = Engine(None);
    for (proof, tells, is_silent) in
        [(None, false, true), (Some(true), true, false), (Some(false), true, true)]
    {
        let (mut world, geometry, page) = world_of(1, &engine);
        let (volume, block) = (VolumeId(1), OriginBlock(2));
        // Another page is needed: the damage of this one would be reported separately.
        let slot = Slot((4 * PAGE as u64 / geometry.granule()) as u32);
        let number = RecordNumber(8);
        let cell =
            Cell { header: number, slot, generation: Generation(1), volume, block, sequence: 1 };
        let entry = DataEntry {
            volume,
            block,
            sequence: 1,
            void: false,
            ..DataEntry::void(geometry.block)
        };
        let header = |number: u64, durable, body| RecordHeader {
            segment: SegmentId(0),
            generation: Generation(1),
            position: 0,
            number: RecordNumber(number),
            durable_through: RecordNumber(durable),
            payload_bytes: 0,
            body,
        };
        let opening = header(8, 7, Body::Opening(Vec::new()));
        let data = header(8, 7, Body::Data(vec![entry]));
        let mut headers = BTreeMap::from([(page - 1, opening), (page, data)]);
        let mut unsettled = BTreeSet::new();
        if let Some(settled) = proof {
            headers.insert(page + 8, header(9, 8, Body::Opening(Vec::new())));
            unsettled.extend((!settled).then_some(page + 8));
        }
        let volumes = BTreeMap::from([(volume, 0)]);
        let log = LogSnapshot {
            geometry,
            base: 7,
            accepted: Accepted::default(),
            volumes,
            headers,
            unsettled,
            cells: vec![cell],
        };
        let place = log.place(&world, volume, block).expect("a place on the volume");
        assert!(world.judge_differing(0).is_err(), "nothing is lost yet");
        world.note_rot(&log, &BTreeSet::from([page]));
        assert_eq!(world.judge_differing(0).is_ok(), is_silent, "{proof:?}");
        assert_eq!(world.rot.missed[&8].contains(&place), tells, "{proof:?}");
        assert_eq!(world.oracle.is_tainted(place), is_silent, "{proof:?}");
    }
}

/// A crash can revert the beginning of a segment and keep a later record: recovery does not see
/// that record, so its content proves nothing about earlier records.
#[test]
fn a_header_behind_a_lost_beginning_proves_nothing() {
    let (_, geometry, first) = world_of(1, &Engine(None));
    let header = |page: u64, number: u64, generation: u64| {
        let position = (page - first + 1) * PAGE as u64 / geometry.granule();
        let header = RecordHeader {
            segment: SegmentId(0),
            generation: Generation(generation),
            position: position as u32,
            number: RecordNumber(number),
            durable_through: RecordNumber(number - 1),
            payload_bytes: 0,
            body: Body::Marks(Vec::new()),
        };
        (page, header)
    };
    let surely = |headers: &[(u64, RecordHeader)], rotten: &[u64]| {
        let log = LogSnapshot {
            geometry: geometry.clone(),
            base: 7,
            accepted: Accepted::default(),
            volumes: BTreeMap::new(),
            headers: headers.iter().cloned().collect(),
            unsettled: BTreeSet::new(),
            cells: Vec::new(),
        };
        let proven = log.proven(&rotten.iter().copied().collect());
        assert_eq!(proven.perhaps, 11);
        proven.surely
    };
    let last = header(first + 9, 12, 3);
    assert_eq!(surely(&[header(first, 10, 3), last.clone()], &[]), 11);
    assert_eq!(surely(&[header(first, 10, 3), last.clone()], &[first]), 7);
    assert_eq!(surely(&[header(first, 10, 2), last], &[]), 9);
}
