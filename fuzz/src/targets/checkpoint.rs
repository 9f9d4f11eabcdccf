//! A checkpoint, and the superblock means exactly this one. In the input only the first page of
//! the header and of each chunk is present, the rest is zeroes; a byte of which readers know one
//! bit chooses the cache.

use std::sync::LazyLock;

use crate::{CACHE, memory, mend};
use forebay_core::{BlockSize, Generation, OriginBlock, RecordNumber, SectorMask, Slot, VolumeId};
use forebay_format::checkpoint::FinishedCheckpoint;
use forebay_format::{
    CheckpointHeader, CheckpointReader, CheckpointRef, CheckpointWriter, Geometry, IndexEntry,
    PAGE, PartialMask, SegmentState, SegmentUse,
};

const CHOICE: usize = 13;

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

/// The cache that an input is for.
fn geometry_of(short: &[u8]) -> &'static Geometry {
    let choice = short.get(CHOICE).copied().unwrap_or(0);
    &GEOMETRIES[usize::from(choice) % GEOMETRIES.len()]
}

/// A checkpoint that is accepted, in its short form. Mutations alone hardly ever find one, because
/// counts, lengths and items have to agree.
fn sound(rng: &mut fastrand::Rng) -> Vec<u8> {
    let choice = rng.usize(0..GEOMETRIES.len());
    let geometry = &GEOMETRIES[choice];
    let sectors = geometry.block.sectors();
    let mut content = Content::default();
    content.segments.resize(geometry.segment_count as usize, SegmentState::default());
    // All that is not zero has to be in the first page of the first chunk.
    let used = content.segments.len().min(rng.usize(0..32));
    for state in &mut content.segments[..used] {
        state.generation = Generation(rng.u64(1..1 << 40));
        state.usage = SegmentUse::Closed;
        state.write_position = 1;
    }
    let fits = geometry.segment_count <= 64;
    let slots = (0..64 << 10).map(Slot).filter(|slot| geometry.holds_block(*slot));
    for slot in slots.take(if fits { rng.usize(0..32) } else { 0 }) {
        let (volume, block) = (VolumeId(rng.u16(1..4)), OriginBlock(rng.u64(0..1 << 20)));
        let (dirty, partial) = (rng.bool(), rng.bool());
        let (check, rank) = (rng.u32(0..1 << 16), rng.u8(0..16));
        content.entries.push(IndexEntry { block, slot, check, volume, rank, dirty, partial });
        if partial {
            let first = rng.u32(0..sectors);
            let mask = SectorMask::of(sectors, first..rng.u32(first + 1..=sectors));
            content.masks.push(PartialMask { volume, block, mask });
        }
    }
    let header = CheckpointHeader {
        number: rng.u64(1..1 << 20),
        base: RecordNumber(rng.u64(1..1 << 20)),
        highest_sequence: rng.u64(1..1 << 20),
        check_bits: 16,
        entry_count: content.entries.len() as u64,
        mask_count: content.masks.len() as u64,
        segment_count: geometry.segment_count,
        len: 0,
        next_generation: Generation(1 << 40),
        bounded: true,
        arrangement: None,
    };
    let (chunks, finished) = write(geometry, &header, &content);
    let mut short = finished.header.to_vec();
    // The lowest bit is the one that readers know, and set.
    short[CHOICE] =
        choice as u8 + if choice.is_multiple_of(2) { GEOMETRIES.len() as u8 } else { 0 };
    for (_, chunk) in &chunks {
        short.extend(&chunk[..chunk.len().min(PAGE)]);
    }
    mend::checkpoint(&mut short, geometry.segment_count);
    short
}

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut rng = fastrand::Rng::with_seed(u64::from(seed));
    if rng.u8(..) < 8 {
        let sound = sound(&mut rng);
        let size = sound.len().min(max_size);
        data[..size].copy_from_slice(&sound[..size]);
        return size;
    }
    mend::mutate(data, size, max_size, seed, 3, |short| {
        mend::checkpoint(short, geometry_of(short).segment_count);
    })
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
) -> Option<(CheckpointHeader, Content)> {
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

/// The chunks of a checkpoint with their places, and its header.
fn write(
    geometry: &Geometry,
    header: &CheckpointHeader,
    content: &Content,
) -> (Vec<(u64, Vec<u8>)>, FinishedCheckpoint) {
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
    (chunks, finished)
}

/// Parsed content can be written again, and is the same then.
fn write_again(geometry: &Geometry, header: &CheckpointHeader, content: &Content) {
    let (chunks, finished) = write(geometry, header, content);
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

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let geometry = geometry_of(data);
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
        write_again(geometry, &header, &content);
    });
}
