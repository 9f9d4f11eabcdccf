use forebay_core::{BlockSize, OriginBlock, SectorMask, VolumeId};
use forebay_device::Queue;
use forebay_format::PAGE;
use forebay_format::record::{encode_data, encode_marks, encode_opening};
use forebay_format::{CheckSeed, payload_check};
use forebay_format::{Head, Mark, MarkKind};
use forebay_lane::MemoryUse;
use forebay_testkit::{Disk, LaneWorld};

use super::walk::{LOOK_AHEAD, Walked};
use super::*;
use crate::index::Index;
use crate::table::TableGeometry;

fn replay_in(memory: &Arc<MemoryBudget>, geometry: Geometry, spaces: &[VolumeSpace]) -> Replay {
    let table = (*index().geometry(), 1);
    Replay::new(geometry, CACHE, spaces, table, memory)
}

const CACHE: Uuid = Uuid::from_u128(7);
const SEGMENT_BYTES: u64 = 1 << 20;
const LIFE: Generation = Generation(8);

fn geometry(block: u64) -> Geometry {
    let block = BlockSize::new(block).expect("a block size");
    Geometry::plan(20 << 20, block, 512, Some(SEGMENT_BYTES)).expect("a plan")
}

fn space(volume: u16, base: u64, blocks: u64) -> VolumeSpace {
    let id = VolumeId(volume);
    VolumeSpace { id, base, blocks, seed: CheckSeed::new(&CACHE, id) }
}

fn replay(block: u64) -> Replay {
    let spaces = [space(1, 0, 100), space(2, 100, 50)];
    let mut replay = replay_in(&Arc::default(), geometry(block), &spaces);
    replay.begin(RecordNumber(10), 1000, None);
    replay
}

/// A dirty, whole block.
fn entry(volume: u16, block: u64, sequence: u64) -> DataEntry {
    DataEntry {
        volume: VolumeId(volume),
        block: OriginBlock(block),
        sequence,
        dirty: true,
        void: false,
        mask: SectorMask::all(8),
        check: 5,
    }
}

fn data(segment: u32, position: u32, number: u64, entries: Vec<DataEntry>) -> RecordHeader {
    RecordHeader {
        segment: SegmentId(segment),
        generation: LIFE,
        position,
        number: RecordNumber(number),
        durable_through: RecordNumber(0),
        payload_bytes: entries.len() as u32 * 4096,
        body: Body::Data(entries),
    }
}

fn marks(number: u64, marks: Vec<Mark>) -> RecordHeader {
    RecordHeader { body: Body::Marks(marks), ..data(0, 200, number, Vec::new()) }
}

/// A record with one block, with this `durable_through`.
fn record(number: u64, durable_through: u64) -> RecordHeader {
    let durable_through = RecordNumber(durable_through);
    RecordHeader {
        durable_through,
        ..data(0, number as u32 * 2, number, vec![entry(1, number, number)])
    }
}

#[test]
fn headers_are_read_as_far_as_memory_goes() {
    // Half of the minimum is left to clients, so 16 MiB remain here.
    let memory = Arc::new(MemoryBudget::new(64 << 20));
    let mut replay = replay_in(&memory, geometry(4096), &[space(1, 0, 100)]);
    let refused = (1..1 << 20).find_map(|number| {
        let header = data(0, 8, number, vec![entry(1, 1, number); 100]);
        replay.add(&header).err().map(|error| (number, error))
    });
    let (number, error) = refused.expect("there is no end");
    assert!((4000..5000).contains(&number), "{number}");
    assert!(matches!(error, StoreError::Memory(_)) && error.to_string().contains("--memory-limit"));
    assert!(memory.total() <= 16 << 20);
    drop(replay);
    assert_eq!(memory.total(), 0);
}

#[test]
fn memory_held_for_a_header_covers_applying_its_content() {
    let of_data = |count| memory_of(&data(0, 8, 1, vec![entry(1, 1, 1); count]), count) as usize;
    // Nodes of a tree are half full.
    let place = size_of::<(u64, RecordLocation)>();
    assert_eq!(of_data(0), 2 * place);
    let each = of_data(9) - of_data(8);
    assert_eq!(of_data(9), of_data(0) + 9 * each);
    assert_eq!(each, 36, "a version takes 32 bytes, and shards differ");
    let whole = memory_of(&data(0, 8, 1, vec![entry(1, 1, 1)]), 1);
    let part = DataEntry { mask: SectorMask::of(8, 2..5), ..entry(1, 1, 1) };
    let part = memory_of(&data(0, 8, 1, vec![part]), 1) as usize;
    assert_eq!(part - whole as usize, 4 * size_of::<(Slot, SectorMask)>());
    let mark = Mark { slot: Slot(1), generation: LIFE, kind: MarkKind::Gone };
    let of_marks = |count| memory_of(&marks(1, vec![mark; count]), 0) as usize;
    let each = of_marks(9) - of_marks(8);
    assert_eq!(of_marks(9), of_data(0) + 9 * each);
    // A list of their effects is at least half full.
    assert_eq!(each, 2 * size_of::<(Address, Option<Entry>)>());
}

#[test]
fn records_that_had_been_durable_and_are_missing_are_lost() {
    let lost = |records: &[(u64, u64)], unreadable| {
        let mut replay = replay(4096);
        records
            .iter()
            .for_each(|(number, durable)| replay.add(&record(*number, *durable)).expect("memory"));
        replay.unreadable = unreadable;
        replay.lost().map(|it| (it.first, it.count))
    };
    assert_eq!(lost(&[], 0), None);
    assert_eq!(lost(&[(11, 10), (12, 11), (13, 11)], 0), None);
    assert_eq!(lost(&[(11, 10), (15, 11)], 0), None, "nothing proves what is missing");
    assert_eq!(lost(&[(13, 11), (12, 11)], 0), Some((11, 1)));
    assert_eq!(lost(&[(11, 10), (12, 11), (14, 13)], 0), Some((13, 1)));
    assert_eq!(
        lost(&[(12, 10), (14, 13), (15, 14)], 0),
        Some((11, 3)),
        "from the first to the last"
    );
    // An unreadable place may have held the last record of all.
    assert_eq!(lost(&[(11, 10), (12, 11)], 2), Some((12, 3)));
    assert_eq!(lost(&[], 1), Some((11, 1)));
    assert_eq!(lost(&[(12, 11)], 1), Some((11, 3)));
}

#[test]
fn a_record_counts_if_it_is_newer_than_the_checkpoint() {
    let mut replay = replay(4096);
    assert!(replay.end_of(SegmentId(3)).is_none());
    for (position, number) in [(9, 10), (5, 11), (1, 9)] {
        replay.add(&data(3, position, number, vec![entry(1, number, 1); 2])).expect("memory");
    }
    replay
        .add(&RecordHeader { body: Body::Opening(Vec::new()), ..data(2, 0, 12, Vec::new()) })
        .expect("memory");
    assert_eq!(replay.found.keys().copied().collect::<Vec<_>>(), [11]);
    assert_eq!(replay.highest_number, RecordNumber(12));
    let end = |segment| replay.end_of(SegmentId(segment)).map(|end| (end.position, end.number));
    assert_eq!(end(3), Some((12, RecordNumber(11))), "behind the two blocks of the last one");
    assert_eq!(end(2), Some((1, RecordNumber(12))));
}

#[test]
fn a_torn_block_is_dropped_and_its_sequence_stays_taken() {
    let mut replay = replay(4096);
    let header = data(1, 3, 11, vec![entry(1, 0, 1001), entry(1, 1, 2000), entry(1, 2, 1002)]);
    replay.add(&header).expect("memory");
    for number in [1, 2] {
        let cells = replay.cells_of(RecordNumber(11), Some(&header));
        replay.drop_cells(&cells[number..=number]);
    }
    assert_eq!((replay.torn, replay.highest_sequence), (2, 2000));
    let slots = [1, 2].map(|number| header.cell(&replay.basis.geometry, number));
    assert_eq!(replay.torn_slots, HashSet::from(slots));
    let index = index();
    apply(&replay.changes(), &index).expect("there is room");
    assert_eq!(
        content(&index),
        BTreeMap::from([(0, (header.cell(&replay.basis.geometry, 0), true))])
    );
}

fn index() -> Index {
    Index::new(TableGeometry::new(1000, 1, 20, 14).expect("small"), 1)
}

/// Applies these records to an empty index; returns the index and the replay.
fn applied(records: impl IntoIterator<Item = RecordHeader>) -> (Index, Replay) {
    let (index, mut replay) = (index(), replay(4096));
    for segment in 0..4 {
        replay.set_generation(SegmentId(segment), Some(LIFE));
    }
    records.into_iter().for_each(|it| replay.add(&it).expect("memory"));
    apply(&replay.changes(), &index).expect("there is room");
    (index, replay)
}

/// Returns the content of the index by address: slot, and whether it is dirty.
fn apply(changes: &Changes, index: &Index) -> Result<(), StoreError> {
    (0..index.shard_count()).try_for_each(|shard| changes.apply_to(index, shard))
}

fn content(index: &Index) -> BTreeMap<u64, (Slot, bool)> {
    let mut content = BTreeMap::new();
    index.scan(|address, entry| {
        content.insert(address.0, (entry.slot, entry.dirty));
    });
    content
}

#[test]
fn the_newest_version_wins_in_whatever_order_records_come() {
    let geometry = geometry(4096);
    for (first, second) in [(2000, 1001), (1001, 2000)] {
        let one = data(1, 3, 11, vec![entry(1, 9, 1500), entry(1, 0, first), entry(2, 0, 1600)]);
        let two = data(0, 7, 12, vec![entry(1, 0, second), entry(1, 8, 1700)]);
        let newest = if first > second { one.cell(&geometry, 1) } else { two.cell(&geometry, 0) };
        let wanted = BTreeMap::from([
            (0, (newest, true)),
            (8, (two.cell(&geometry, 1), true)),
            (9, (one.cell(&geometry, 0), true)),
            (100, (one.cell(&geometry, 2), true)),
        ]);
        let (index, replay) = applied([one, two]);
        assert_eq!(content(&index), wanted);
        assert_eq!((replay.records, replay.highest_sequence), (2, 2000));
    }
}

#[test]
fn versions_in_the_checkpoint_or_in_no_volume_are_left_out() {
    let voided = DataEntry { void: true, ..entry(1, 3, 5000) };
    let clean = DataEntry { dirty: false, ..entry(2, 49, 1001) };
    let part = DataEntry { mask: SectorMask::of(8, 2..5), ..entry(1, 6, 1002) };
    let entries = vec![
        entry(1, 1, 1000),
        entry(1, 100, 1003),
        entry(2, 50, 1004),
        entry(3, 0, 1005),
        voided,
        clean,
        part,
    ];
    let record = data(1, 3, 11, entries);
    let (index, replay) = applied([record.clone()]);
    let slots = [5, 6].map(|number| record.cell(&replay.basis.geometry, number));
    let wanted = BTreeMap::from([(6, (slots[1], true)), (149, (slots[0], false))]);
    assert_eq!(content(&index), wanted);
    assert_eq!(replay.highest_sequence, 1005, "sequences of others are taken, void ones are not");
    let found = index.look_up(crate::index::Address(6), |_| None).expect("there");
    assert!(found.entry.partial);
    assert_eq!(found.mask, Some(SectorMask::of(8, 2..5)));
    let found = index.look_up(crate::index::Address(149), |_| None).expect("there");
    assert!(!found.entry.partial);
}

#[test]
fn marks_count_for_the_life_of_the_segment_that_they_name() {
    let record = data(1, 3, 11, (0..8).map(|block| entry(1, block, 1001 + block)).collect());
    let mark = |number: usize, generation, kind| Mark {
        slot: record.cell(&geometry(4096), number),
        generation,
        kind,
    };
    let (gone, clean) = (MarkKind::Gone, MarkKind::Clean);
    let earlier = Generation(LIFE.0 - 1);
    let first = marks(
        12,
        vec![
            mark(1, LIFE, gone),
            mark(2, LIFE, clean),
            mark(3, LIFE, gone),
            mark(4, LIFE, clean),
            mark(5, earlier, gone),
            mark(6, earlier, clean),
            // A mark in a segment without a known generation.
            Mark { slot: geometry(4096).slot_at(SegmentId(9), 5), generation: LIFE, kind: gone },
        ],
    );
    // Of two marks for one block, "gone" prevails in either order.
    let second = marks(13, vec![mark(3, LIFE, clean), mark(4, LIFE, gone)]);
    let (index, replay) = applied([record, first, second]);
    let left: Vec<_> =
        content(&index).into_iter().map(|(block, (_, dirty))| (block, dirty)).collect();
    assert_eq!(left, [(0, true), (2, false), (5, true), (6, true), (7, true)]);
    assert_eq!(replay.records, 3);
}

/// A disk with one segment in use: the last one, so that no read may go beyond it.
struct World {
    lane: LaneWorld,
    disk: Disk,
    geometry: Geometry,
    segment: SegmentId,
}

impl World {
    fn new(block: u64) -> World {
        let geometry = geometry(block);
        let disk = Disk::of(&vec![0; geometry.end() as usize]);
        let segment = SegmentId(geometry.segment_count - 1);
        World { lane: LaneWorld::new(), disk, geometry, segment }
    }

    /// Page `page` of the segment, on the disk.
    fn page(&self, page: u64) -> usize {
        (self.geometry.segment_offset(self.segment) / PAGE as u64 + page) as usize
    }

    fn head(&self, page: u64, number: u64, generation: Generation) -> Head {
        Head {
            cache: CACHE,
            segment: self.segment,
            generation,
            position: (page * PAGE as u64 / self.geometry.granule()) as u32,
            number: RecordNumber(number),
            durable_through: RecordNumber(0),
        }
    }

    fn put_marks(&self, page: u64, number: u64, generation: Generation) {
        let mark =
            Mark { slot: self.geometry.slot_at(SegmentId(0), 5), generation, kind: MarkKind::Gone };
        let head = self.head(page, number, generation);
        self.disk
            .edit(self.page(page), |into| encode_marks(into, &head, &[mark]).expect("it fits"));
    }

    /// A data record of blocks that are filled with their numbers.
    fn put_data(&self, page: u64, number: u64, blocks: u8) {
        let block = self.geometry.block;
        let payload: Vec<u8> = (0..blocks).flat_map(|it| vec![it; block.as_usize()]).collect();
        let entries: Vec<_> = payload
            .chunks(block.as_usize())
            .zip(0..)
            .map(|(payload, number)| DataEntry {
                mask: SectorMask::all(block.sectors()),
                check: payload_check(&CACHE, VolumeId(1), OriginBlock(number), payload),
                ..entry(1, number, 2000 + number)
            })
            .collect();
        let head = self.head(page, number, LIFE);
        let into = |into: &mut [u8]| encode_data(into, &head, block, &entries).expect("it fits");
        self.disk.edit(self.page(page), into);
        for (at, content) in (page + 1..).zip(payload.chunks(PAGE)) {
            self.disk.edit(self.page(at), |into| into[..content.len()].copy_from_slice(content));
        }
    }

    fn queue(&self) -> Queue {
        self.lane.queue(&self.disk.device)
    }

    /// Returns the pages and numbers of the headers that a walk visits, and its cost.
    fn walk(&self) -> (Vec<(u64, u64)>, Walked) {
        let (queue, geometry, segment) = (self.queue(), self.geometry.clone(), self.segment);
        self.lane.block_on(async move {
            let mut seen = Vec::new();
            let walked = walk_headers(&queue, &geometry, &CACHE, (segment, LIFE), |header| {
                let page = u64::from(header.position) * geometry.granule() / PAGE as u64;
                seen.push((page, header.number.0));
            });
            let walked = walked.await.expect("the disk works");
            (seen, walked)
        })
    }

    fn replay(&self) -> Replay {
        replay_in(&Arc::default(), self.geometry.clone(), &[space(1, 0, 100)])
    }
}

#[test]
fn a_walk_finds_the_headers_of_one_life_wherever_they_are() {
    let world = World::new(2048);
    let opening = world.head(0, 5, LIFE);
    let into = |into: &mut [u8]| encode_opening(into, &opening, &[]).expect("it fits");
    world.disk.edit(world.page(0), into);
    // The payload ends in the middle of a page: the next record starts at the following page.
    world.put_data(1, 5, 3);
    world.put_marks(4, 6, LIFE);
    world.put_marks(7, 8, LIFE);
    // This is in the third stretch that is read ahead.
    world.put_data(150, 20, 1);
    world.put_marks(152, 21, LIFE);
    // A record of an earlier life, and a header in the wrong place.
    world.put_marks(160, 2, Generation(LIFE.0 - 1));
    let mut copy = Vec::new();
    world.disk.edit(world.page(152), |content| copy = content.to_vec());
    world.disk.edit(world.page(170), |content| content.copy_from_slice(&copy));
    let last = SEGMENT_BYTES / PAGE as u64 - 1;
    world.put_marks(last, 30, LIFE);

    let (seen, walked) = world.walk();
    let wanted = [(0, 5), (1, 5), (4, 6), (7, 8), (150, 20), (152, 21), (last, 30)];
    assert_eq!(seen, wanted);
    assert_eq!((walked.bytes, walked.unreadable), (world.disk.faults.bytes_read(), 0));
    assert!(walked.bytes < SEGMENT_BYTES + 4 * LOOK_AHEAD, "it reads ahead, not everything again");
}

#[test]
fn unreadable_places_of_possible_headers_are_counted() {
    let world = World::new(4096);
    world.put_marks(1, 5, LIFE);
    world.put_marks(2, 6, LIFE);
    world.put_marks(4, 8, LIFE);
    world.put_marks(6, 9, LIFE);
    // An unreadable opening does not count, because the first record has the same information.
    for (page, unreadable) in [(0, 0), (3, 1), (5, 2), (100, 2)] {
        world.disk.make_unreadable(world.page(page));
        let (seen, walked) = world.walk();
        assert_eq!(seen, [(1, 5), (2, 6), (4, 8), (6, 9)]);
        assert_eq!(walked.unreadable, unreadable, "page {page}");
    }
    // Without the opening, the loss of the first header counts: it may be that of the newest
    // record.
    world.disk.make_unreadable(world.page(1));
    let (seen, walked) = world.walk();
    assert_eq!((&seen[..], walked.unreadable), (&[(2, 6), (4, 8), (6, 9)][..], 3));
}

#[test]
fn the_newest_life_of_a_segment_is_found_in_any_of_its_pages() {
    let last = SEGMENT_BYTES / PAGE as u64 - 1;
    for block in [2048, 4096] {
        for page in [1, 63, 64, 65, 200, last] {
            let world = World::new(block);
            world.put_marks(30, 9, Generation(3));
            world.put_marks(page, 5, LIFE);
            world.put_marks(90, 9, Generation(4));
            let (queue, replay, segment) = (world.queue(), world.replay(), world.segment);
            let found = world
                .lane
                .block_on(async move { newest_generation(&queue, &replay.basis, segment).await })
                .expect("the disk works");
            assert_eq!(
                (found.generation, found.bytes),
                (Some(LIFE), SEGMENT_BYTES),
                "in page {page}"
            );
            assert!(!found.hides_its_start);
            assert_eq!(world.disk.faults.bytes_read(), SEGMENT_BYTES);
        }
    }
}

/// Replays a segment with one record; calls `damage` between the reading of its header and of its
/// blocks.
fn verified(block: u64, blocks: u8, damage: impl FnOnce(&World)) -> Replay {
    let world = World::new(block);
    world.put_data(3, 11, blocks);
    let (page, geometry) = (world.page(3), &world.geometry);
    let mut header = None;
    world.disk.edit(page, |content| header = record::decode(content, geometry, &CACHE).ok());
    let (queue, mut replay) = (world.queue(), world.replay());
    replay.add(&header.expect("intact")).expect("memory");
    damage(&world);
    let team = Team::new(&world.lane.lane, &queue, &world.disk.device, Vec::new());
    world.lane.block_on(async move { replay.run(&team, 4).await }).expect("the disk works")
}

/// Returns the blocks of a record whose content does not match, after damage to the disk.
fn bad_blocks(block: u64, blocks: u8, damage: impl FnOnce(&World)) -> Vec<u64> {
    let mut replay = verified(block, blocks, damage);
    let pages = PAGE as u64 + (u64::from(blocks) * block).next_multiple_of(PAGE as u64);
    assert_eq!(replay.bytes_read, pages);
    assert_eq!((replay.has_read_all(), replay.lost()), (true, None));
    let index = index();
    apply(&replay.changes(), &index).expect("there is room");
    let left = content(&index);
    let bad: Vec<u64> = (0..u64::from(blocks)).filter(|block| !left.contains_key(block)).collect();
    assert_eq!(replay.torn_slots.len(), bad.len());
    bad
}

#[test]
fn blocks_count_though_their_header_can_be_read_only_once() {
    for damage in [
        |world: &World| world.disk.make_unreadable(world.page(3)),
        |world: &World| flip(world, 3, 70),
    ] {
        let bad = bad_blocks(4096, 5, |world| {
            damage(world);
            flip(world, 5, 100);
        });
        assert_eq!(bad, [1]);
    }
}

fn flip(world: &World, page: u64, at: usize) {
    world.disk.edit(world.page(page), |content| content[at] ^= 1);
}

#[test]
fn a_block_is_torn_if_its_content_can_be_read_and_is_another() {
    let none: [u64; 0] = [];
    for block in [2048, 4096, 8192] {
        assert_eq!(bad_blocks(block, 5, |_| ()), none);
    }
    // The payload starts in page 4.
    for (block, flips, wanted) in [
        (2048, [(4, 0), (4, 1)], &[0][..]),
        (2048, [(4, 2048), (6, 9)], &[1, 4]),
        (4096, [(5, 1), (8, 1)], &[1, 4]),
        (8192, [(5, 1), (13, 1)], &[0, 4]),
    ] {
        let damage = |world: &World| flips.iter().for_each(|(page, at)| flip(world, *page, *at));
        assert_eq!(bad_blocks(block, 5, damage), wanted);
    }
    // An unreadable block does not count as torn.
    for (block, unreadable) in [(2048, 5), (4096, 6), (8192, 8), (8192, 9)] {
        for blocks in [5, 6] {
            let damage = |world: &World| world.disk.make_unreadable(world.page(unreadable));
            assert_eq!(bad_blocks(block, blocks, damage), none, "{block} {unreadable}");
        }
    }
    let both = |world: &World| {
        (4..7).for_each(|page| flip(world, page, 100));
        world.disk.make_unreadable(world.page(5));
    };
    assert_eq!(bad_blocks(2048, 6, both), [0, 4]);
}

/// Returns two halves of a log, each as one lane finds it.
fn halves() -> [Vec<RecordHeader>; 2] {
    let part =
        |sequence| DataEntry { mask: SectorMask::of(8, 2..5), ..entry(2, sequence % 50, sequence) };
    let slot = |record: &RecordHeader, cell| record.cell(&geometry(4096), cell);
    let mark = |slot, kind| Mark { slot, generation: LIFE, kind };
    let one = data(1, 8, 11, vec![entry(1, 1, 1001), entry(1, 2, 1002), part(1003)]);
    let two = data(2, 8, 12, vec![entry(1, 1, 1004), entry(9, 0, 1005), part(1006)]);
    let clean = marks(13, vec![mark(slot(&one, 1), MarkKind::Clean)]);
    let gone = marks(14, vec![mark(slot(&one, 2), MarkKind::Gone)]);
    let proof = RecordHeader {
        durable_through: RecordNumber(14),
        ..data(3, 8, 15, vec![entry(1, 2, 900), entry(1, 7, 1007)])
    };
    [vec![one, gone, proof], vec![two, clean]]
}

/// Earlier programs did not bound generations, and so used numbers twice.
#[test]
fn records_with_one_number_count_once_on_any_lanes() {
    let records =
        [1, 2].map(|segment| data(segment, 8, 11, vec![entry(1, u64::from(segment), 1001)]));
    for lanes in [1, 2] {
        let mut whole = replay(4096);
        for records in records.chunks(2 / lanes) {
            let mut part = Replay::on(whole.basis.clone());
            records.iter().for_each(|record| part.add(record).expect("memory"));
            whole.absorb(part);
        }
        let index = index();
        apply(&whole.changes(), &index).expect("there is room");
        assert_eq!(content(&index).into_keys().collect::<Vec<_>>(), [1], "{lanes} lanes");
    }
}

#[test]
fn parts_of_lanes_add_up_to_the_replay_of_one() {
    let with = |parts: &[&[RecordHeader]]| {
        let mut whole = replay(4096);
        (1..4).for_each(|segment| whole.set_generation(SegmentId(segment), Some(LIFE)));
        for records in parts {
            let mut part = Replay::on(whole.basis.clone());
            records.iter().for_each(|record| part.add(record).expect("memory"));
            (part.bytes_read, part.unreadable) = (10, 1);
            whole.absorb(part);
        }
        let held = whole.basis.memory.used(MemoryUse::Background);
        assert!(held > 0);
        let (found, lost) = (whole.found.len(), whole.lost());
        let numbers = (whole.durable, whole.highest_number, whole.highest_sequence);
        let ends: BTreeMap<u32, u32> =
            whole.ends.iter().map(|(segment, end)| (segment.0, end.position)).collect();
        let deleted = whole.deleted.clone();
        let reads = (whole.bytes_read, whole.unreadable);
        let (index, changes) = (index(), whole.changes());
        assert!(whole.basis.memory.used(MemoryUse::Background) < held);
        assert_eq!((changes.partial_count(), changes.of_record(RecordNumber(12)).len()), (2, 2));
        apply(&changes, &index).expect("there is room");
        drop((whole, changes));
        (content(&index), found, lost.map(|it| it.first), numbers, ends, deleted, reads)
    };
    let [one, two] = halves();
    let all = [&one[..], &two[..]].concat();
    let (single, mut several) = (with(&[&all]), with(&[&two, &one]));
    assert_eq!(several.6, (20, 2));
    several.6 = single.6;
    assert_eq!(several, single);
    let dirty: Vec<(u64, bool)> =
        single.0.iter().map(|(block, (_, dirty))| (*block, *dirty)).collect();
    assert_eq!(dirty, [(1, true), (2, false), (7, true), (106, true)]);
}
