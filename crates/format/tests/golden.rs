//! The bytes of format version 1, with and without its features, frozen. If an image differs,
//! existing caches can no longer be read: that needs a new version, not a new image.
//!
//! Images of new structures are created with `FOREBAY_WRITE_GOLDEN=1 cargo test -p forebay-format`;
//! existing images are never overwritten.

use std::path::PathBuf;

use forebay_core::{
    BlockSize, Durability, Generation, Identity, IdentityPart, Mode, OriginBlock, RecordNumber,
    ReplacementKind, SectorMask, SegmentId, Slot, VolumeId,
};
use forebay_format::record::{self, HEADER_BYTES};
use forebay_format::superblock::{COPY_A, COPY_B, ORDERED, ORIGINS_KNOWN};
use forebay_format::volume::{Left, ORDERED_RECORD, ORDERED_SEQUENCE, SampleCheck, Samples};
use forebay_format::{
    AcceptedLog, Body, CheckpointReader, CheckpointRef, CheckpointWriter, DataEntry, Geometry,
    Head, IndexEntry, Mark, MarkKind, PartialMask, SegmentState, SegmentUse, Superblock, Uuid,
    VolumeRecord, VolumeTableRef, volume,
};

/// Compares with the image of that name, or creates it on request if it does not exist.
fn compare(name: &str, bytes: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, bytes).expect("the image can be written");
    }
    let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let differs = golden.iter().zip(bytes).position(|(golden, new)| golden != new);
    assert_eq!(differs, None, "{name}: first byte that differs");
    assert_eq!(golden.len(), bytes.len(), "{name}: length");
}

fn cache() -> Uuid {
    Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff)
}

fn block(bytes: u64) -> BlockSize {
    BlockSize::new(bytes).expect("a block size")
}

fn geometry(block: BlockSize) -> Geometry {
    Geometry::plan(1 << 30, block, 512, Some(8 << 20)).expect("a plan")
}

/// A cache as the first programs planned it, without space for parity after the largest checkpoint.
fn first_geometry() -> Geometry {
    let area = 0x0080_1000;
    let checkpoints = 384 << 10;
    Geometry {
        segment_count: 125,
        segments_offset: 17 << 20,
        checkpoint_areas: [checkpoints, checkpoints + area],
        checkpoint_area_bytes: area,
        ..geometry(BlockSize::DEFAULT)
    }
}

fn small_geometry() -> Geometry {
    let area = 64 << 10;
    Geometry {
        device_bytes: 8 << 20,
        segment_bytes: 256 << 10,
        segment_count: 30,
        segments_offset: 512 << 10,
        checkpoint_areas: [384 << 10, (384 << 10) + area],
        checkpoint_area_bytes: area,
        ..geometry(BlockSize::DEFAULT)
    }
}

fn superblock() -> Superblock {
    Superblock {
        cache: cache(),
        generation: 42,
        compat: 1 << 63,
        incompat: 0,
        ro_compat: 2,
        geometry: first_geometry(),
        volume_table: VolumeTableRef { area: 1, len: 357, crc: 0x0102_0304 },
        checkpoint: Some(CheckpointRef {
            area: 1,
            len: 0x3000,
            header_crc: 0x0506_0708,
            number: 0x1122_3344_5566_7788,
        }),
        clean_shutdown: true,
        next_volume_id: 0x1234,
        last_record: RecordNumber(0x0fed_cba9_8765_4321),
        accepted: None,
    }
}

#[test]
fn superblocks() {
    let first =
        Superblock { generation: 1, checkpoint: None, clean_shutdown: false, ..superblock() };
    let origins = Superblock { generation: 2, incompat: ORIGINS_KNOWN, ..first.clone() };
    let ordered = Superblock { generation: 3, incompat: ORIGINS_KNOWN | ORDERED, ..first.clone() };
    let mut accepted = Superblock { generation: 4, ..first.clone() };
    accepted.accept(Some(AcceptedLog {
        through: RecordNumber(0x1000_2000),
        sequence: 0x0102_0304_0506_0708,
        next_generation: Generation(0x1122_3344_5566),
        left_out: vec![0x11..=0x12, 0x14..=0x14, 0x2000..=0x1000_2000],
        torn: vec![Slot(1), Slot(0x1234)],
    }));
    for (name, superblock, at) in [
        ("superblock-a-accepted.bin", accepted, COPY_A),
        ("superblock-a.bin", superblock(), COPY_A),
        ("superblock-b-first.bin", first, COPY_B),
        ("superblock-a-origins.bin", origins, COPY_A),
        ("superblock-b-ordered.bin", ordered, COPY_B),
    ] {
        let bytes = superblock.encode(at);
        compare(name, &bytes);
        assert_eq!(Superblock::decode(&bytes, at), Ok(superblock));
    }
}

/// Volumes as the first programs wrote them.
fn volumes() -> [VolumeRecord; 2] {
    [
        VolumeRecord {
            id: VolumeId(1),
            uuid: Uuid::from_u128(1),
            name: "data".into(),
            origin: "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4".into(),
            origin_bytes: 4 << 40,
            alignment: 0,
            mode: Mode::Writeback,
            durability: Durability::Flush,
            policy: ReplacementKind::Lru,
            withdrawn_policy: None,
            started: true,
            fingerprint: Some([0xab; 32]),
            identity: None,
            left: Left::default(),
            samples: None,
            settings: vec![(1, 60), (0xffff, u64::MAX)],
        },
        VolumeRecord {
            id: VolumeId(0x1233),
            uuid: Uuid::from_u128(2),
            name: "Old_disk-2.x".into(),
            origin: "/srv/bild-\u{e4}.raw".into(),
            origin_bytes: 512,
            alignment: 3584,
            mode: Mode::Passthrough,
            durability: Durability::Strict,
            policy: ReplacementKind::Random,
            withdrawn_policy: None,
            started: false,
            fingerprint: None,
            identity: None,
            left: Left::default(),
            samples: None,
            settings: vec![],
        },
    ]
}

fn compare_table(name: &str, volumes: &[VolumeRecord]) {
    let table = volume::encode(volumes, &cache(), BlockSize::DEFAULT).expect("possible");
    compare(name, &table.bytes);
    let read = volume::decode(&table.bytes, &table.reference(0), &cache(), BlockSize::DEFAULT);
    assert_eq!(read.as_deref(), Ok(volumes));
}

#[test]
fn volume_table() {
    compare_table("volume-table.bin", &volumes());
}

#[test]
fn volume_table_with_origins() {
    let mut volumes = volumes();
    let identity = Identity::new([
        (IdentityPart::Wwid, "naa.5000c500a1b2c3d4".into()),
        (IdentityPart::PartitionUuid, "0fc63daf-8483-4772-8e79-3d69d8477de4".into()),
        (IdentityPart::Start, "2048".into()),
    ]);
    volumes[0].identity = identity;
    let by = SampleCheck::Crc32c;
    volumes[0].samples = Some(Samples {
        by,
        checks: (0..128).map(|number| 0x0102_0304 * number).collect(),
        untouched: 0xfedc_ba98_7654_3210_0123_4567_89ab_cdef,
    });
    volumes[1].samples = Some(Samples { by, checks: vec![0xcafe_f00d], untouched: 1 });
    compare_table("volume-table-origins.bin", &volumes);
}

#[test]
fn volume_table_with_digests_of_samples() {
    let mut volumes = volumes();
    let by = SampleCheck::Digest;
    volumes[0].samples = Some(Samples {
        by,
        checks: (0..128).map(|number| 0x0102_0304 * number).collect(),
        untouched: 0xfedc_ba98_7654_3210_0123_4567_89ab_cdef,
    });
    let checks = vec![by.of(&[7; 512])];
    assert_eq!(checks, [0x729d_41bf]);
    volumes[1].samples = Some(Samples { by, checks, untouched: 1 });
    compare_table("volume-table-digests.bin", &volumes);
}

#[test]
fn volume_table_with_origins_as_they_were_left() {
    let mut volumes = volumes();
    volumes[0].identity = Identity::new([(IdentityPart::Wwid, "naa.5000c500a1b2c3d4".into())]);
    let counted = "counted 1 0fc63daf-8483-4772-8e79-3d69d8477de4 123456789abcdef0 7 70";
    volumes[0].left = Left {
        evidence: counted.parse().ok(),
        starts: Some(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
    };
    volumes[1].left.evidence = "file 1 12 512 1700000000123456789 1700000000123456790".parse().ok();
    assert!(volumes.iter().all(|volume| volume.left.evidence.is_some()));
    compare_table("volume-table-left.bin", &volumes);
}

#[test]
fn volume_table_with_a_volume_in_order() {
    let mut volumes = volumes();
    volumes[0].settings.extend([
        (32, 1),
        (ORDERED_SEQUENCE, 0x0102_0304_0506_0708),
        (ORDERED_RECORD, 0x0011_2233_4455_6677),
    ]);
    compare_table("volume-table-ordered.bin", &volumes);
}

fn head() -> Head {
    Head {
        cache: cache(),
        segment: SegmentId(5),
        generation: Generation(0x7654_3210),
        position: 0x10,
        number: RecordNumber(0x0011_2233_4455_6677),
        durable_through: RecordNumber(0x0011_2233_4455_6670),
    }
}

#[test]
fn data_records() {
    for (name, bytes) in [("record-data-4k.bin", 4096), ("record-data-256k.bin", 256 << 10)] {
        let block = block(bytes);
        let sectors = block.sectors();
        let entries = vec![
            DataEntry {
                volume: VolumeId(0x1234),
                block: OriginBlock(0x0abc_def0_1234),
                sequence: 0x0102_0304_0506_0708,
                dirty: true,
                void: false,
                mask: SectorMask::of(sectors, 1..sectors - 1),
                check: 0xcafe_f00d,
            },
            DataEntry::void(block),
            DataEntry {
                volume: VolumeId(1),
                block: OriginBlock(7),
                sequence: 9,
                dirty: false,
                void: false,
                mask: SectorMask::all(sectors),
                check: 1,
            },
        ];
        let mut page = [0; HEADER_BYTES];
        record::encode_data(&mut page, &head(), block, &entries).expect("possible");
        compare(name, &page);
        let read = record::decode(&page, &geometry(block), &cache()).expect("a record");
        assert_eq!(read.body, Body::Data(entries));
    }
}

#[test]
fn marks_record() {
    let geometry = geometry(BlockSize::DEFAULT);
    let mark = |position, generation, kind| Mark {
        slot: geometry.slot_at(SegmentId(3), position),
        generation: Generation(generation),
        kind,
    };
    let marks = vec![mark(1, 0x7fff_ffff, MarkKind::Clean), mark(0x123, 2, MarkKind::Gone)];
    let mut page = [0; HEADER_BYTES];
    record::encode_marks(&mut page, &head(), &marks).expect("possible");
    compare("record-marks.bin", &page);
    assert!(marks[0].means(Generation(0x7fff_ffff)) && !marks[0].means(Generation(0x7fff_fffe)));
    assert!(marks[1].means(Generation(2 + (5 << 31))));
    let read = record::decode(&page, &geometry, &cache()).expect("a record");
    assert_eq!(read.body, Body::Marks(marks));
}

#[test]
fn opening_with_free_segments() {
    let free = vec![SegmentId(2), SegmentId(0x7c)];
    let mut page = [0; HEADER_BYTES];
    record::encode_opening(&mut page, &head(), &free).expect("possible");
    compare("record-opening.bin", &page);
    let read = record::decode(&page, &geometry(BlockSize::DEFAULT), &cache()).expect("a record");
    assert_eq!(read.body, Body::Opening(free));
}

#[test]
fn records_of_wide_generations() {
    let head = Head { generation: Generation(0x0123_4567_89ab_cdef), ..head() };
    let mut page = [0; HEADER_BYTES];
    record::encode_opening(&mut page, &head, &[]).expect("possible");
    compare("record-opening-wide.bin", &page);
    let read = record::decode(&page, &geometry(BlockSize::DEFAULT), &cache()).expect("a record");
    assert_eq!((read.generation, read.body), (head.generation, Body::Opening(Vec::new())));
    assert_eq!((read.number, read.payload_bytes), (head.number, 0));
}

/// The first programs read the next generation some time after the segment table.
#[test]
fn checkpoint_of_the_first_programs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/checkpoint.bin");
    let bytes = std::fs::read(path).expect("it is in the tree");
    let crc = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
    let reference = CheckpointRef { area: 1, len: 8192, header_crc: crc, number: 9 };
    let mut reader = CheckpointReader::open(&bytes, &reference, &small_geometry(), cache())
        .expect("a checkpoint");
    assert_eq!(reader.header().next_generation, Generation(0x3333));
    assert!(!reader.header().bounded);
    assert_eq!(reader.feed(&bytes[4096..]).expect("a chunk").entries().len(), 4);
}

#[test]
fn checkpoint() {
    let geometry = small_geometry();
    let usages = [SegmentUse::Closed, SegmentUse::Open, SegmentUse::Free];
    let segments: Vec<SegmentState> = (0..geometry.segment_count)
        .map(|index| SegmentState {
            generation: Generation(u64::from(3 - index.min(3)) << (8 * index.min(3))),
            usage: usages[index.min(2) as usize],
            write_position: 64 >> (index.min(3) * 2),
        })
        .collect();
    let entry = |block, position, dirty, partial| IndexEntry {
        block: OriginBlock(block),
        slot: geometry.slot_at(SegmentId(1), position),
        check: 0x0abc_def0 + position,
        volume: VolumeId(0x1234),
        rank: position as u8,
        dirty,
        partial,
    };
    let entries = [
        entry(0x0fff_ffff_ffff, 1, false, false),
        entry(0x0123_4567_89ab, 2, true, false),
        entry(5, 3, true, true),
        entry(0, 15, false, true),
    ];
    let mask =
        |block, mask| PartialMask { volume: VolumeId(0x1234), block: OriginBlock(block), mask };
    let masks = [mask(5, SectorMask::of(8, 1..3)), mask(0, SectorMask::of(8, 0..7))];

    let mut writer = CheckpointWriter::new(&geometry, cache(), 1, 9, 28).expect("possible");
    assert_eq!(writer.push_segments(&segments), Ok(segments.len()));
    assert_eq!(writer.push_entries(&entries), Ok(entries.len()));
    assert_eq!(writer.push_masks(&masks), Ok(masks.len()));
    let chunk = writer.take_chunk().expect("it fits").expect("a chunk").bytes.to_vec();
    let next = Generation(0x0333_3333_3333_3333);
    let finished = writer.finish(RecordNumber(0x1111), 0x2222, next).expect("complete");
    compare("checkpoint-parity.bin", &[&finished.header[..], &chunk, &finished.parity].concat());
    assert_eq!(finished.parity, [&chunk[..], &finished.header].concat(), "of one chunk");

    let mut reader =
        CheckpointReader::open(&finished.header, &finished.reference, &geometry, cache())
            .expect("a checkpoint");
    assert_eq!(reader.place(), Some((4096, chunk.len())));
    let items = reader.feed(&chunk).expect("a chunk");
    assert!(items.segments().eq(segments));
    assert!(items.entries().eq(entries));
    assert!(items.masks().eq(masks));
    assert_eq!(reader.finish().expect("complete").base, RecordNumber(0x1111));
}
