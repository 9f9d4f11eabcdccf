use forebay_core::{OriginBlock, SectorMask, VolumeId};
use proptest::prelude::*;

use super::*;
use crate::{MAX_BLOCKS, MAX_NARROW_GENERATION};

const SIZES: [u64; 10] = [
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];

fn block(bytes: u64) -> BlockSize {
    BlockSize::new(bytes).expect("a block size")
}

fn geometry(block: BlockSize) -> Geometry {
    Geometry::plan(1 << 30, block, 512, None).expect("a plan")
}

fn cache() -> Uuid {
    Uuid::from_u128(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00)
}

fn head() -> Head {
    Head {
        cache: cache(),
        segment: SegmentId(5),
        generation: Generation(0x1234_5678_9abc_def0),
        position: 0,
        number: RecordNumber(1000),
        durable_through: RecordNumber(990),
    }
}

fn entries(block: BlockSize, count: usize) -> Vec<DataEntry> {
    (0..count as u32)
        .map(|index| DataEntry {
            volume: VolumeId(index as u16 * 500),
            block: OriginBlock(MAX_BLOCKS - 1 - u64::from(index)),
            sequence: MAX_COUNT - 1 - u64::from(index),
            dirty: index % 2 == 0,
            void: false,
            mask: SectorMask::of(block.sectors(), index % block.sectors()..block.sectors()),
            check: 0xffff_0000 + index,
        })
        .collect()
}

fn data(block: BlockSize, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; HEADER_BYTES];
    encode_data(&mut bytes, &head(), block, &entries(block, count)).expect("possible");
    bytes
}

#[test]
fn the_number_of_entries_is_what_a_page_holds() {
    let most: Vec<usize> = SIZES.iter().map(|bytes| max_entries(block(*bytes))).collect();
    assert_eq!(most, [126, 126, 126, 126, 126, 100, 72, 45, 26, 14]);
    assert_eq!(MAX_MARKS, 504);
    assert_eq!(data_record_bytes(BlockSize::DEFAULT, 126), 127 * 4096);
}

/// Every block size with every number of entries that fits its record and its segment.
#[test]
fn data_records_survive_the_round_trip() {
    for bytes in SIZES {
        let (block, geometry) = (block(bytes), geometry(block(bytes)));
        for count in 1..=max_entries(block) {
            let mut entries = entries(block, count);
            if count > 2 {
                entries[1] = DataEntry::void(block);
            }
            let mut header = vec![0xee; HEADER_BYTES];
            encode_data(&mut header, &head(), block, &entries).expect("possible");
            let decoded = decode(&header, &geometry, &cache());
            if data_record_bytes(block, count) > geometry.segment_bytes {
                assert_eq!(decoded, Err(RecordError::Absurd("position")));
                continue;
            }
            let decoded = decoded.expect("a record");
            assert_eq!(decoded.segment, head().segment);
            assert_eq!(decoded.generation, head().generation);
            assert_eq!(decoded.number, head().number);
            assert_eq!(decoded.durable_through, head().durable_through);
            assert_eq!(u64::from(decoded.payload_bytes), count as u64 * bytes);
            for index in 0..count {
                let offset = geometry.slot_offset(decoded.cell(&geometry, index));
                let expected = geometry.segment_offset(SegmentId(5)) + 4096 + index as u64 * bytes;
                assert_eq!(offset, expected);
            }
            let granules = u64::from(decoded.granules(&geometry));
            assert_eq!(granules * geometry.granule(), data_record_bytes(block, count));
            assert_eq!(decoded.body, Body::Data(entries));
        }
    }
}

#[test]
fn marks_survive_the_round_trip() {
    let geometry = geometry(BlockSize::DEFAULT);
    for count in [1, 2, 503, 504] {
        let marks: Vec<Mark> = (0..count)
            .map(|index| Mark {
                slot: geometry.slot_at(SegmentId(index % 7), 1 + index % 60),
                generation: Generation(MAX_NARROW_GENERATION - 1 - u64::from(index)),
                kind: if index % 3 == 0 { MarkKind::Gone } else { MarkKind::Clean },
            })
            .collect();
        let mut header = vec![0xee; HEADER_BYTES];
        encode_marks(&mut header, &head(), &marks).expect("possible");
        let decoded = decode(&header, &geometry, &cache()).expect("a record");
        assert_eq!(decoded.payload_bytes, 0);
        assert_eq!(decoded.body, Body::Marks(marks));
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let good = data(BlockSize::DEFAULT, 60);
    let geometry = geometry(BlockSize::DEFAULT);
    for bit in 0..HEADER_BYTES * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let expected = if bit < 32 { RecordError::NotARecord } else { RecordError::Checksum };
        assert_eq!(decode(&bytes, &geometry, &cache()), Err(expected), "bit {bit}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let good = data(BlockSize::DEFAULT, 126);
    for len in 0..HEADER_BYTES {
        let decoded = decode(&good[..len], &geometry(BlockSize::DEFAULT), &cache());
        assert_eq!(decoded, Err(RecordError::Truncated));
    }
}

#[test]
fn impossible_values_with_a_valid_checksum_are_refused_by_name() {
    type Forgery = (&'static str, usize, &'static [u8]);
    let matrix: &[Forgery] = &[
        ("segment", 24, &[0xff; 4]),
        ("segment", 24, &[0, 1, 0, 0]),
        ("generation", 28, &[0xff; 4]),
        ("generation", 28, &[0, 0, 0, 0x80]),
        ("position", 32, &[0xff; 4]),
        ("position", 32, &[0, 4, 0, 0]),
        ("kind", 36, &[0]),
        ("kind", 36, &[4]),
        ("count", 36, &[3]),
        ("count", 38, &[0, 0]),
        ("count", 38, &[127, 0]),
        ("count", 38, &[0xff, 0xff]),
        ("generation", 40, &[0xff; 4]),
        ("payload_length", 44, &[0; 4]),
        ("payload_length", 44, &[0xff; 4]),
        ("payload_length", 38, &[1, 0]),
        ("number", 48, &[0xff; 8]),
        ("number", 48, &[0, 0, 0, 0, 0, 0, 0, 0x40]),
        ("durable_through", 48, &[0; 8]),
        ("durable_through", 56, &[0xff; 8]),
        ("entry.block", 64, &[0xff; 8]),
        ("entry.block", 64, &[0, 0, 0, 0, 0, 0x10, 0, 0]),
        ("entry.sequence", 64 + 8, &[0xff; 8]),
        ("entry.sequence", 64 + 8, &[0, 0, 0, 0, 0, 0, 0, 0x40]),
        ("entry.flags", 64 + 22, &[4]),
        ("entry.flags", 64 + 22, &[0x83]),
        ("entry.mask", 64 + 24, &[0, 1]),
        ("entry.mask", 64 + 24, &[0xff; 8]),
    ];
    let geometry = geometry(BlockSize::DEFAULT);
    for (index, (field, at, value)) in matrix.iter().enumerate() {
        let mut bytes = data(BlockSize::DEFAULT, 3);
        bytes[*at..at + value.len()].copy_from_slice(value);
        seal(&mut bytes);
        let decoded = decode(&bytes, &geometry, &cache());
        assert_eq!(decoded, Err(RecordError::Absurd(field)), "line {index}");
    }
    let mark = |slot| Mark { slot, generation: Generation(1), kind: MarkKind::Clean };
    let beyond = Slot(geometry.slot_count() as u32 + 1);
    let header_page = geometry.slot_at(SegmentId(1), 0);
    for slot in [beyond, header_page, Slot(u32::MAX)] {
        let mut bytes = vec![0; HEADER_BYTES];
        encode_marks(&mut bytes, &head(), &[mark(slot)]).expect("possible");
        let decoded = decode(&bytes, &geometry, &cache());
        assert_eq!(decoded, Err(RecordError::Absurd("mark.slot")));
    }
}

#[test]
fn the_first_bytes_of_a_header_tell_what_it_claims() {
    let bytes = data(BlockSize::DEFAULT, 3);
    let Head { segment, position, generation, .. } = head();
    let wanted = Some((segment, position, generation));
    for len in [64, 512, HEADER_BYTES, bytes.len()] {
        assert_eq!(claimed(&bytes[..len], &cache()), wanted);
    }
    assert_eq!(claimed(&bytes[..63], &cache()), None);
    assert_eq!(claimed(&bytes, &Uuid::from_u128(8)), None);
    let mut other = bytes.clone();
    other[0] ^= 1;
    assert_eq!(claimed(&other, &cache()), None);
    // Whether the rest is intact is not known.
    other = bytes;
    other[100] ^= 1;
    assert_eq!(
        (
            claimed(&other, &cache()),
            decode_head(&other, &geometry(BlockSize::DEFAULT), &cache()).ok()
        ),
        (wanted, None)
    );
}

#[test]
fn records_of_other_caches_are_refused() {
    let decoded = decode(&data(BlockSize::DEFAULT, 1), &geometry(BlockSize::DEFAULT), &Uuid::nil());
    assert_eq!(decoded, Err(RecordError::OtherCache));
    let zero = decode(&[0; HEADER_BYTES], &geometry(BlockSize::DEFAULT), &cache());
    assert_eq!(zero, Err(RecordError::NotARecord));
}

#[test]
fn unreadable_records_are_not_written() {
    let block = BlockSize::DEFAULT;
    let mut page = vec![0; HEADER_BYTES];
    let mut encode = |head: &Head, entries: &[DataEntry]| {
        encode_data(&mut page, head, block, entries).expect_err("impossible")
    };
    let good = entries(block, 1);
    assert_eq!(encode(&head(), &[]), EncodeError::Count { given: 0, most: 126 });
    let many = entries(block, 127);
    assert_eq!(encode(&head(), &many), EncodeError::Count { given: 127, most: 126 });
    let far = DataEntry { block: OriginBlock(MAX_BLOCKS), ..good[0].clone() };
    assert_eq!(encode(&head(), &[far]), EncodeError::Range("block"));
    let wide = DataEntry { mask: SectorMask::all(16), ..good[0].clone() };
    assert_eq!(encode(&head(), &[wide]), EncodeError::Range("mask"));
    let old = Head { generation: Generation(MAX_COUNT), ..head() };
    assert_eq!(encode(&old, &good), EncodeError::Range("generation"));
    let late = Head { number: RecordNumber(MAX_COUNT), ..head() };
    assert_eq!(encode(&late, &good), EncodeError::Range("number"));
    let last = DataEntry { sequence: MAX_COUNT, ..good[0].clone() };
    assert_eq!(encode(&head(), &[last]), EncodeError::Range("sequence"));
    let early = Head { durable_through: head().number, ..head() };
    assert_eq!(encode(&early, &good), EncodeError::Range("durable_through"));
    let short = encode_data(&mut [0; 4095], &head(), block, &good);
    assert_eq!(short, Err(EncodeError::Buffer));
}

proptest! {
    #[test]
    fn random_bytes_with_a_valid_checksum_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES),
        size in 0..SIZES.len(),
        kind in 0u8..4,
        count in 0u16..600,
    ) {
        let block = block(SIZES[size]);
        let good = data(block, 1);
        bytes[..64].copy_from_slice(&good[..64]);
        bytes[36] = kind;
        bytes[38..40].copy_from_slice(&count.to_le_bytes());
        let cells = if kind == KIND_MARKS { 0 } else { u32::from(count) * block.bytes() as u32 };
        bytes[44..48].copy_from_slice(&cells.to_le_bytes());
        seal(&mut bytes);
        if let Ok(header) = decode(&bytes, &geometry(block), &cache()) {
            match header.body {
                Body::Data(entries) => prop_assert_eq!(entries.len(), usize::from(count)),
                Body::Marks(marks) => prop_assert_eq!(marks.len(), usize::from(count)),
                Body::Opening(free) => prop_assert_eq!((count, free.len() <= MAX_FREE), (0, true)),
            }
        }
    }
}

#[test]
fn an_opening_names_the_free_segments_that_it_has_room_for() {
    let geometry = geometry(block(4096));
    let head = head();
    let of = |free: &[SegmentId]| {
        let mut page = [0; HEADER_BYTES];
        encode_opening(&mut page, &head, free).expect("possible");
        (decode(&page, &geometry, &cache()).expect("an opening").body, page)
    };
    let some = vec![SegmentId(3), SegmentId(geometry.segment_count - 1)];
    for free in [Vec::new(), some.clone()] {
        assert_eq!(of(&free).0, Body::Opening(free));
    }
    let many = vec![SegmentId(1); MAX_FREE + 7];
    assert_eq!(of(&many).0, Body::Opening(many[..MAX_FREE].to_vec()));
    // A count beyond the page, and a segment that does not exist.
    for (at, value) in [(64, MAX_FREE as u32 + 1), (64, u32::MAX), (68, geometry.segment_count)] {
        let (_, mut page) = of(&some);
        page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        seal(&mut page);
        let read = decode(&page, &geometry, &cache());
        assert_eq!(read, Err(RecordError::Absurd("free")), "{value} at {at}");
    }
}
