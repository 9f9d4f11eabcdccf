//! A checkpoint, and the superblock means exactly this one. In the input only the first page of
//! the header and of each chunk is present, the rest is zeroes; a reserved byte chooses the cache.

use std::sync::LazyLock;

use crate::{CACHE, memory, mend};
use forebay_core::BlockSize;
use forebay_format::{
    CheckpointReader, CheckpointRef, CheckpointWriter, Geometry, IndexEntry, PAGE, PartialMask,
    SegmentState,
};

const RESERVED: usize = 13;

/// Small devices, and one whose segment table does not fit one chunk.
static GEOMETRIES: LazyLock<Vec<Geometry>> = LazyLock::new(|| {
    let caches: [(u64, u64, Option<u64>); 5] = [
        (8 << 20, 4096, None),
        (8 << 20, 2048, None),
        (16 << 20, 64 << 10, None),
        (160 << 20, 1 << 20, None),
        (5 << 30, 4096, Some(256 << 10)),
    ];
    let plan = |(device, block, segment)| {
        let block = BlockSize::new(block).expect("a block size");
        Geometry::plan(device, block, 512, segment).expect("large enough")
    };
    caches.map(plan).to_vec()
});

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    mend::mutate(data, size, max_size, seed, 3, mend::checkpoint)
}

#[derive(Default, Debug, PartialEq)]
struct Content {
    segments: Vec<SegmentState>,
    entries: Vec<IndexEntry>,
    masks: Vec<PartialMask>,
}

/// Everything in a checkpoint, if all of it is accepted. `chunk` gives the bytes at a place.
fn read(
    header: &[u8],
    reference: &CheckpointRef,
    geometry: &Geometry,
    mut chunk: impl FnMut(u32, u64, usize) -> Vec<u8>,
) -> Option<(forebay_format::CheckpointHeader, Content)> {
    let mut reader = CheckpointReader::open(header, reference, geometry, CACHE).ok()?;
    let mut content = Content::default();
    let mut index = 0;
    while let Some((offset, len)) = reader.place() {
        assert!(offset + len as u64 <= geometry.checkpoint_area_bytes);
        let bytes = chunk(index, offset, len);
        let items = reader.feed(&bytes).ok()?;
        content.segments.extend(items.segments());
        content.entries.extend(items.entries());
        content.masks.extend(items.masks());
        index += 1;
    }
    Some((reader.finish().ok()?, content))
}

/// What was read can be written again, and is the same then.
fn write(geometry: &Geometry, header: &forebay_format::CheckpointHeader, content: &Content) {
    let mut writer = CheckpointWriter::new(geometry, CACHE, 1, header.number, header.check_bits)
        .expect("the header was accepted");
    let mut chunks = Vec::new();
    macro_rules! push {
        ($push:ident, $items:expr) => {
            let mut rest = &$items[..];
            while !rest.is_empty() {
                let taken = writer.$push(rest).expect("what was read can be written");
                rest = &rest[taken..];
                if !rest.is_empty() {
                    let chunk = writer.take_chunk().expect("there is room").expect("it is full");
                    chunks.push((chunk.offset, chunk.bytes.to_vec()));
                }
            }
        };
    }
    push!(push_segments, content.segments);
    push!(push_entries, content.entries);
    push!(push_masks, content.masks);
    if let Some(chunk) = writer.take_chunk().expect("there is room") {
        chunks.push((chunk.offset, chunk.bytes.to_vec()));
    }
    let finished = writer
        .finish(header.base, header.highest_sequence, header.next_generation)
        .expect("complete");
    let (again, same) =
        read(&finished.header, &finished.reference, geometry, |index, offset, _| {
            let (at, bytes) = chunks[index as usize].clone();
            assert_eq!(at, offset);
            bytes
        })
        .expect("what was written can be read");
    assert_eq!(same, *content);
    assert_eq!((again.base, again.highest_sequence), (header.base, header.highest_sequence));
}

/// One input.
pub(crate) fn run(data: &[u8]) {
    let choice = data.get(RESERVED).copied().unwrap_or(0);
    let geometry = &GEOMETRIES[usize::from(choice) % GEOMETRIES.len()];
    let mut header = data[..data.len().min(PAGE)].to_vec();
    header.resize(PAGE, 0);
    let reference = CheckpointRef {
        area: 0,
        len: mend::u64_at(&header, 80),
        header_crc: mend::u32_at(&header, 8),
        number: mend::u64_at(&header, 32),
    };
    memory::within(32 << 20, || {
        let chunk = |index, _, len| mend::chunk_of(data, index, len);
        let Some((header, content)) = read(&header, &reference, geometry, chunk) else { return };
        assert_eq!(content.segments.len() as u64, u64::from(geometry.segment_count));
        assert_eq!(content.entries.len() as u64, header.entry_count);
        assert_eq!(content.masks.len() as u64, header.mask_count);
        assert!(content.entries.iter().all(|entry| geometry.holds_block(entry.slot)));
        write(geometry, &header, &content);
    });
}
