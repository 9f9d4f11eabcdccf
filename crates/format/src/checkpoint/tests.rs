use proptest::prelude::*;

use super::*;
use crate::layout::SEGMENTS_ALIGNMENT;
use crate::{MAX_BLOCKS, MAX_COUNT, MAX_NARROW_GENERATION};
use forebay_core::SegmentId;

fn cache() -> Uuid {
    Uuid::from_u128(0xfeed)
}

fn geometry(block: u64, device: u64) -> Geometry {
    let block = BlockSize::new(block).expect("a block size");
    Geometry::plan(device, block, 512, None).expect("a plan")
}

/// The content of a checkpoint.
#[derive(Clone, Debug, PartialEq, Default)]
struct Content {
    segments: Vec<SegmentState>,
    entries: Vec<IndexEntry>,
    masks: Vec<PartialMask>,
}

/// Makes at most `entries` entries, or as many as fit; every `every`th is partial.
fn content(geometry: &Geometry, entries: u64, every: u64) -> Content {
    let usages = [SegmentUse::Free, SegmentUse::Open, SegmentUse::Closed];
    let per_segment = geometry.blocks_per_segment();
    let most = per_segment * u64::from(geometry.segment_count);
    let sectors = geometry.block.sectors();
    let mut content = Content {
        segments: (0..geometry.segment_count)
            .map(|index| SegmentState {
                generation: Generation(MAX_NARROW_GENERATION + 7 - u64::from(index)),
                usage: usages[index as usize % 3],
                write_position: index % (geometry.granules_per_segment() as u32 + 1),
            })
            .collect(),
        ..Content::default()
    };
    for index in 0..entries.min(most) {
        let position =
            geometry.granules_per_header() + index % per_segment * geometry.granules_per_block();
        let segment = SegmentId((index / per_segment) as u32);
        let (volume, block) =
            (VolumeId(index as u16 ^ 0xff00), OriginBlock(MAX_BLOCKS - 1 - index));
        let partial = index % every == 0;
        content.entries.push(IndexEntry {
            block,
            slot: geometry.slot_at(segment, position as u32),
            check: (index as u32).wrapping_mul(0x9e37_79b9) >> 4,
            volume,
            rank: index as u8 % 16,
            dirty: index % 3 == 0,
            partial,
        });
        if partial {
            let mask = SectorMask::of(sectors, 0..1 + index as u32 % (sectors - 1));
            content.masks.push(PartialMask { volume, block, mask });
        }
    }
    content
}

/// A checkpoint area as stored on a device.
struct Area {
    bytes: Vec<u8>,
    reference: CheckpointRef,
    parity: Vec<u8>,
}

fn write(geometry: &Geometry, content: &Content) -> Result<Area, CheckpointWriteError> {
    // Old bytes everywhere, as in a reused area.
    let mut bytes = vec![0xa5; geometry.checkpoint_area_bytes as usize];
    let mut writer = CheckpointWriter::new(geometry, cache(), 1, 77, MAX_CHECK_BITS)?;
    let flush = |writer: &mut CheckpointWriter, bytes: &mut Vec<u8>| {
        let chunk = writer.take_chunk()?;
        if let Some(chunk) = &chunk {
            let at = chunk.offset as usize;
            bytes[at..at + chunk.bytes.len()].copy_from_slice(chunk.bytes);
        }
        Ok(chunk.is_some())
    };
    let mut segments = &content.segments[..];
    while !segments.is_empty() {
        segments = &segments[writer.push_segments(segments)?..];
        if !segments.is_empty() {
            flush(&mut writer, &mut bytes)?;
        }
    }
    // Entries are pushed in batches, as they come from the shards of an index.
    for mut batch in content.entries.chunks(1000) {
        while !batch.is_empty() {
            batch = &batch[writer.push_entries(batch)?..];
            if !batch.is_empty() {
                flush(&mut writer, &mut bytes)?;
            }
        }
    }
    let mut masks = &content.masks[..];
    while !masks.is_empty() {
        masks = &masks[writer.push_masks(masks)?..];
        if !masks.is_empty() {
            flush(&mut writer, &mut bytes)?;
        }
    }
    while flush(&mut writer, &mut bytes)? {}
    let finished = writer.finish(RecordNumber(1234), 5678, Generation(91))?;
    bytes[..PAGE].copy_from_slice(&finished.header);
    Ok(Area { bytes, reference: finished.reference, parity: finished.parity })
}

fn read(geometry: &Geometry, area: &Area) -> Result<Content, CheckpointError> {
    let mut reader = CheckpointReader::open(&area.bytes, &area.reference, geometry, cache())?;
    let mut content = Content::default();
    while let Some((offset, len)) = reader.place() {
        let end = (offset as usize + len).min(area.bytes.len());
        let items = reader.feed(&area.bytes[offset as usize..end])?;
        content.segments.extend(items.segments());
        content.entries.extend(items.entries());
        content.masks.extend(items.masks());
    }
    reader.finish()?;
    Ok(content)
}

/// Every block size; nothing, one, whole chunks and their neighbours, and everything that fits.
#[test]
fn checkpoints_survive_the_round_trip() {
    for shift in 11..=20 {
        let geometry = geometry(1 << shift, 200 << 20);
        for entries in [0, 1, 16382, 16383, 16384, 33000, u64::MAX] {
            for every in [1, 2, 7, u64::MAX] {
                let content = content(&geometry, entries, every);
                let area = write(&geometry, &content).expect("it fits");
                assert!(read(&geometry, &area).as_ref() == Ok(&content), "{shift} {entries}");
            }
        }
    }
}

#[test]
fn the_header_says_what_was_written() {
    let geometry = geometry(4096, 16 << 20);
    let area = write(&geometry, &content(&geometry, 20, 5)).expect("it fits");
    let reader = CheckpointReader::open(&area.bytes, &area.reference, &geometry, cache());
    let expected = CheckpointHeader {
        next_generation: Generation(91),
        bounded: true,
        arrangement: None,
        number: 77,
        base: RecordNumber(1234),
        highest_sequence: 5678,
        check_bits: MAX_CHECK_BITS,
        entry_count: 20,
        mask_count: 4,
        segment_count: geometry.segment_count,
        len: 2 * PAGE as u64,
    };
    assert_eq!(*reader.expect("a checkpoint").header(), expected);
    assert_eq!((area.reference.area, area.reference.len), (1, 2 * PAGE as u64));
}

#[test]
fn chunks_of_entries_can_be_read_in_any_order() {
    let geometry = geometry(4096, 200 << 20);
    let content = content(&geometry, 40_000, 7);
    let area = write(&geometry, &content).expect("it fits");
    let reader = CheckpointReader::open(&area.bytes, &area.reference, &geometry, cache());
    let reader = reader.expect("a checkpoint");
    let all = content.entries.len() as u64;
    let chunks = reader.chunk_of_entry(0)..reader.chunk_of_entry(all - 1) + 1;
    assert_eq!(chunks, 0..3);
    let mut before = all;
    for chunk in chunks.rev() {
        let mut reader = reader.at(chunk);
        let (offset, len) = reader.place().expect("it exists");
        let items = reader.feed(&area.bytes[offset as usize..offset as usize + len]);
        let entries: Vec<_> = items.expect("it is intact").entries().collect();
        let first = before - entries.len() as u64;
        assert!(entries == content.entries[first as usize..before as usize], "{chunk}");
        assert_eq!(
            (reader.chunk_of_entry(first), reader.chunk_of_entry(before - 1)),
            (chunk, chunk)
        );
        before = first;
    }
    assert_eq!(before, 0);
}

#[test]
fn the_header_counts_dirty_entries_of_a_known_order() {
    let geometry = geometry(4096, 16 << 20);
    let mut writer = CheckpointWriter::new(&geometry, cache(), 0, 5, 28).expect("possible");
    let order = Arrangement { shards: 8, key_bits: 30, spaces: 0x1234_5678_9abc, dirty: 0 };
    writer.arrange(order);
    let mut content = content(&geometry, 100, u64::MAX);
    content.entries.iter_mut().for_each(|entry| entry.partial = false);
    writer.push_segments(&content.segments).expect("they fit");
    writer.push_entries(&content.entries).expect("they fit");
    writer.take_chunk().expect("it fits").expect("items");
    let finished = writer.finish(RecordNumber(1), 1, Generation(9)).expect("complete");
    let reader = CheckpointReader::open(&finished.header, &finished.reference, &geometry, cache());
    let dirty = content.entries.iter().filter(|entry| entry.dirty).count() as u64;
    assert!(dirty > 0);
    let found = reader.expect("a checkpoint").header().arrangement;
    assert_eq!(found, Some(Arrangement { dirty, ..order }));
}

#[test]
fn a_full_cache_of_partial_blocks_fits_its_area() {
    for shift in 11..=20 {
        for device in [160 << 20, 300 << 20, 1 << 30] {
            let geometry = geometry(1 << shift, device);
            assert!(
                geometry
                    .segments_offset
                    .is_multiple_of(SEGMENTS_ALIGNMENT.min(geometry.segment_bytes))
            );
            let content = content(&geometry, u64::MAX, 1);
            assert!(write(&geometry, &content).is_ok());
        }
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let geometry = geometry(4096, 16 << 20);
    let content = content(&geometry, 20, 5);
    let mut area = write(&geometry, &content).expect("it fits");
    let used = PAGE + CHUNK_HEADER_BYTES + content.segments.len() * 16 + 20 * 16 + 4 * 16;
    for bit in 0..used * 8 {
        area.bytes[bit / 8] ^= 1 << (bit % 8);
        let refused = read(&geometry, &area);
        assert!(refused.is_err(), "bit {bit}");
        area.bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(read(&geometry, &area), Ok(content));
}

#[test]
fn every_truncation_is_refused() {
    let geometry = geometry(4096, 16 << 20);
    let mut area = write(&geometry, &content(&geometry, 20, 5)).expect("it fits");
    for len in (0..area.reference.len as usize).rev() {
        area.bytes.truncate(len);
        assert_eq!(read(&geometry, &area), Err(CheckpointError::Truncated), "length {len}");
    }
}

#[test]
fn chunks_of_another_place_time_or_cache_are_refused() {
    let geometry = geometry(4096, 1 << 30);
    let good = write(&geometry, &content(&geometry, 40_000, 3)).expect("it fits");
    let chunk = |index| chunk_offset(index) as usize..chunk_offset(index + 1) as usize;
    let mut swapped =
        Area { bytes: good.bytes.clone(), reference: good.reference, parity: Vec::new() };
    swapped.bytes[chunk(0)].copy_from_slice(&good.bytes[chunk(1)]);
    assert_eq!(read(&geometry, &swapped), Err(CheckpointError::Checksum));

    let other = CheckpointReader::open(&good.bytes, &good.reference, &geometry, Uuid::nil());
    assert_eq!(other.err(), Some(CheckpointError::OtherCache));
    let newer = CheckpointRef { number: 78, ..good.reference };
    let stale = CheckpointReader::open(&good.bytes, &newer, &geometry, cache());
    assert_eq!(stale.err(), Some(CheckpointError::OtherNumber { expected: 78, found: 77 }));
    let wrong = CheckpointRef { header_crc: 0, ..good.reference };
    let wrong = CheckpointReader::open(&good.bytes, &wrong, &geometry, cache());
    assert_eq!(wrong.err(), Some(CheckpointError::Checksum));
    let empty = CheckpointReader::open(&[0; PAGE], &good.reference, &geometry, cache());
    assert_eq!(empty.err(), Some(CheckpointError::NotACheckpoint));

    // A chunk of an earlier checkpoint at the same position of the same cache.
    let mut earlier =
        Area { bytes: good.bytes.clone(), reference: good.reference, parity: Vec::new() };
    earlier.bytes[chunk(0).start + 8] = 76;
    mend_chunk(&mut earlier.bytes, 0);
    let expected = CheckpointError::OtherNumber { expected: 77, found: 76 };
    assert_eq!(read(&geometry, &earlier), Err(expected));
}

fn mend_chunk(bytes: &mut [u8], index: u32) {
    let start = chunk_offset(index) as usize;
    let len = u32::from_le_bytes([
        bytes[start + 4],
        bytes[start + 5],
        bytes[start + 6],
        bytes[start + 7],
    ]) as usize;
    let end = (start + CHUNK_HEADER_BYTES + len).min(bytes.len());
    let checksum = chunk_checksum(&bytes[start + 4..end], &cache(), index);
    bytes[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn mend_header(area: &mut Area) {
    let checksum = crc32c(&area.bytes[CHECKSUM_FROM..PAGE]);
    area.bytes[8..CHECKSUM_FROM].copy_from_slice(&checksum.to_le_bytes());
    area.reference.header_crc = checksum;
}

#[test]
fn impossible_values_with_a_valid_checksum_are_refused_by_name() {
    type Forgery = (&'static str, usize, &'static [u8]);
    let geometry = geometry(4096, 16 << 20);
    let content = content(&geometry, 20, 5);
    let header: &[Forgery] = &[
        ("check_bits", 12, &[29]),
        ("check_bits", 12, &[255]),
        ("base", 40, &[0xff; 8]),
        ("base", 40, &[0, 0, 0, 0, 0, 0, 0, 0x40]),
        ("highest_sequence", 48, &[0xff; 8]),
        ("highest_sequence", 48, &[0, 0, 0, 0, 0, 0, 0, 0x40]),
        ("entry_count", 56, &[0xff; 8]),
        ("mask_count", 64, &[0xff; 8]),
        ("segment_count", 72, &[0; 4]),
        ("segment_count", 72, &[0xff; 4]),
        ("chunk_bytes", 76, &[0; 4]),
        ("len", 80, &[0; 8]),
        ("len", 80, &[0xff; 8]),
        ("chunk.len", 56, &[19, 0]),
        ("entry_count", 56, &[30, 0]),
        ("chunk.len", 64, &[3]),
        ("mask_count", 64, &[5]),
        // Fewer bits than the entries use.
        ("entry", 12, &[3]),
    ];
    for (index, (field, at, value)) in header.iter().enumerate() {
        let mut area = write(&geometry, &content).expect("it fits");
        area.bytes[*at..at + value.len()].copy_from_slice(value);
        mend_header(&mut area);
        let result = read(&geometry, &area);
        assert_eq!(result, Err(CheckpointError::Absurd(field)), "header line {index}");
    }
    let segments = CHUNK_HEADER_BYTES;
    let entries = segments + 16 * content.segments.len();
    let masks = entries + 16 * 20;
    let chunk: &[Forgery] = &[
        ("segment", segments, &[0xff; 4]),
        ("segment", segments + 4, &[3]),
        ("segment", segments + 8, &[0xff; 4]),
        ("entry", entries, &[4 | 1]),
        ("entry", entries, &[8]),
        ("entry", entries + 8, &[0xff; 4]),
        ("entry", entries + 8, &[0; 4]),
        ("mask_count", entries, &[0]),
        ("mask", masks, &[1]),
        ("mask", masks + 9, &[1]),
        ("chunk.len", 4, &[3, 0]),
        ("mask_count", 4, &[0, 0]),
    ];
    for (index, (field, at, value)) in chunk.iter().enumerate() {
        let mut area = write(&geometry, &content).expect("it fits");
        area.bytes[PAGE + at..PAGE + at + value.len()].copy_from_slice(value);
        mend_chunk(&mut area.bytes, 0);
        let result = read(&geometry, &area);
        let expected = match (*at, *field) {
            (4, "mask_count") => CheckpointError::Absurd("segment_count"),
            _ => CheckpointError::Absurd(field),
        };
        assert_eq!(result, Err(expected), "chunk line {index}");
    }
}

#[test]
fn unreadable_checkpoints_are_not_written() {
    use CheckpointWriteError::{Full, Incomplete, Order, Range};
    let geometry = geometry(4096, 16 << 20);
    let good = content(&geometry, 20, 5);
    let new = || CheckpointWriter::new(&geometry, cache(), 0, 1, 8).expect("possible");
    assert_eq!(CheckpointWriter::new(&geometry, cache(), 2, 1, 8).err(), Some(Range("area")));
    assert_eq!(
        CheckpointWriter::new(&geometry, cache(), 0, 1, 29).err(),
        Some(Range("check_bits"))
    );
    let entry = IndexEntry { check: 255, ..good.entries[0] };
    assert_eq!(new().push_entries(&[entry]), Ok(1));
    for bad in [
        IndexEntry { check: 256, ..entry },
        IndexEntry { rank: 16, ..entry },
        IndexEntry { block: OriginBlock(MAX_BLOCKS), ..entry },
    ] {
        assert_eq!(new().push_entries(&[bad]), Err(Range("entry")));
    }
    let mask = PartialMask { mask: SectorMask::all(16), ..good.masks[0].clone() };
    assert_eq!(new().push_masks(&[mask]), Err(Range("mask")));
    let old = SegmentState { generation: Generation(MAX_COUNT), ..good.segments[0] };
    assert_eq!(new().push_segments(&[old]), Err(Range("generation")));
    let mut writer = new();
    assert_eq!(writer.push_entries(&[entry]), Ok(1));
    assert_eq!(writer.push_segments(&good.segments), Err(Order));
    assert!(matches!(writer.finish(RecordNumber(0), 0, Generation(1)), Err(Incomplete(_))));

    let without = |change: fn(&mut Content)| {
        let mut content = good.clone();
        change(&mut content);
        write(&geometry, &content).err()
    };
    assert!(matches!(without(|content| content.segments.truncate(1)), Some(Incomplete(_))));
    assert!(matches!(without(|content| content.masks.truncate(1)), Some(Incomplete(_))));
    assert!(matches!(without(|content| content.entries[1].partial = true), Some(Incomplete(_))));

    // A chunk for each entry: the area overflows eventually.
    let mut writer = new();
    let full = (0..1000).find_map(|_| {
        writer.push_entries(&[entry]).expect("possible");
        writer.take_chunk().err()
    });
    assert_eq!(full, Some(Full));
}

proptest! {
    #[test]
    fn forged_bytes_with_mended_checksums_never_panic(
        at in 0usize..900,
        value in prop::collection::vec(any::<u8>(), 1..24),
        in_header: bool,
    ) {
        let geometry = geometry(4096, 16 << 20);
        let mut area = write(&geometry, &content(&geometry, 20, 5)).expect("it fits");
        let at = if in_header { 12 + at % 100 } else { PAGE + 4 + at };
        area.bytes[at..at + value.len()].copy_from_slice(&value);
        mend_header(&mut area);
        mend_chunk(&mut area.bytes, 0);
        if let Ok(content) = read(&geometry, &area) {
            prop_assert!(content.entries.iter().all(|entry| geometry.holds_block(entry.slot)));
        }
    }
}

#[test]
fn parity_and_all_other_chunks_are_the_missing_chunk() {
    let geometry = geometry(4096, 256 << 20);
    let area = write(&geometry, &content(&geometry, 40_000, 3)).expect("it fits");
    let place = ParityPlace::of(&area.reference, &geometry).expect("there is room");
    assert_eq!((place.len, place.offset), (CHUNK_BYTES, area.reference.len));
    let chunks: Vec<&[u8]> =
        area.bytes[PAGE..area.reference.len as usize].chunks(CHUNK_BYTES).collect();
    assert!(chunks.len() > 2);
    let (parity, header) = area.parity.split_at(place.len);
    assert_eq!(header, &area.bytes[..PAGE]);
    for missing in 0..chunks.len() {
        let mut found = parity.to_vec();
        for (_, other) in chunks.iter().enumerate().filter(|(number, _)| *number != missing) {
            add_to_parity(&mut found, other);
        }
        assert!(found[..chunks[missing].len()] == *chunks[missing], "chunk {missing}");
    }
    let full =
        CheckpointRef { len: geometry.checkpoint_area_bytes - PAGE as u64, ..area.reference };
    assert_eq!(ParityPlace::of(&full, &geometry), None);
}
