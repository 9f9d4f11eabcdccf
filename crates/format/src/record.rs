//! Records: a header page, followed in data records by one cell of one block per entry.

use std::mem::{offset_of, size_of};

use forebay_core::{BlockSize, Generation, RecordNumber, SegmentId, Slot};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::Geometry;
use crate::{MAX_COUNT, PAGE, crc32c, generation};

mod entry;
mod mark;

pub use entry::{DataEntry, ENTRY_BYTES, entry_bytes};
pub use mark::{MAX_MARKS, Mark, MarkKind};

/// First bytes of a record header: `FBRC`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FBRC");
/// Bytes in a record header, entries and padding included.
pub const HEADER_BYTES: usize = PAGE;

/// Maximum number of free segments that an opening names.
pub const MAX_FREE: usize = (HEADER_BYTES - FIXED) / 4 - 1;

const FIXED: usize = size_of::<OnDiskHead>();
const CHECKSUM_FROM: usize = 8;
const KIND_DATA: u8 = 1;
const KIND_MARKS: u8 = 2;
const KIND_OPENING: u8 = 3;
/// XORed with the upper half of the generation: the first programs stored the length of the header
/// in that field, which is thereby decoded as 0.
const NARROW: u32 = HEADER_BYTES as u32;

/// The fixed part of a record header as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskHead {
    magic: U32,
    checksum: U32,
    cache: [u8; 16],
    segment: U32,
    generation: U32,
    position: U32,
    kind: u8,
    reserved: u8,
    count: U16,
    generation_high: U32,
    payload_length: U32,
    number: U64,
    durable_through: U64,
}

const _: () = {
    assert!(size_of::<OnDiskHead>() == 64);
    assert!(offset_of!(OnDiskHead, cache) == CHECKSUM_FROM);
    assert!(offset_of!(OnDiskHead, segment) == 24);
    assert!(offset_of!(OnDiskHead, generation) == 28);
    assert!(offset_of!(OnDiskHead, position) == 32);
    assert!(offset_of!(OnDiskHead, kind) == 36);
    assert!(offset_of!(OnDiskHead, count) == 38);
    assert!(offset_of!(OnDiskHead, generation_high) == 40);
    assert!(offset_of!(OnDiskHead, payload_length) == 44);
    assert!(offset_of!(OnDiskHead, number) == 48);
    assert!(offset_of!(OnDiskHead, durable_through) == 56);
};

/// Returns the maximum number of entries in a data record: 126 for blocks of up to 32 KiB, 14 for 1
/// MiB.
pub fn max_entries(block: BlockSize) -> usize {
    (HEADER_BYTES - FIXED) / entry_bytes(block.sectors())
}

/// Returns the size of a data record with `entries` entries, in bytes, including header and
/// payload.
pub fn data_record_bytes(block: BlockSize, entries: usize) -> u64 {
    HEADER_BYTES as u64 + entries as u64 * block.bytes()
}

/// Why bytes are not a record of this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecordError {
    /// The page holds no start of a record.
    #[error("there is no record header")]
    NotARecord,
    /// Fewer bytes than a header has.
    #[error("the record header is cut off")]
    Truncated,
    /// The header is torn or damaged.
    #[error("the record header is damaged: its checksum does not match")]
    Checksum,
    /// The header is intact, but of another cache.
    #[error("the record header belongs to another cache")]
    OtherCache,
    /// A field with an impossible value under a valid checksum.
    #[error("the record header has an impossible value in its field '{0}'")]
    Absurd(&'static str),
}

/// Why a header cannot be encoded: a bug in the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EncodeError {
    /// The buffer does not have exactly [`HEADER_BYTES`].
    #[error("a record header needs a buffer of {HEADER_BYTES} bytes")]
    Buffer,
    /// The record has no entries, or more than fit.
    #[error("{given} entries are not possible in one record; there are 1 to {most}")]
    Count {
        /// Number of entries that were given.
        given: usize,
        /// Maximum number of entries.
        most: usize,
    },
    /// A value does not fit its field.
    #[error("the value for the field '{0}' does not fit a record header")]
    Range(&'static str),
}

/// The fields that all record headers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The cache to which the record belongs.
    pub cache: Uuid,
    /// The segment that holds the record.
    pub segment: SegmentId,
    /// Generation of the segment's opening to which the record belongs.
    pub generation: Generation,
    /// Position of the record, in granules from the start of the segment.
    pub position: u32,
    /// The record's number.
    pub number: RecordNumber,
    /// All records with numbers up to this one were durable when this header was created.
    pub durable_through: RecordNumber,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Blocks.
    Data(Vec<DataEntry>),
    /// State changes of blocks in earlier records.
    Marks(Vec<Mark>),
    /// An opening has no entries: it precedes the first record of a segment's life and has that
    /// record's number, so that two pages identify the life. It names segments that were free when
    /// it was made; the first releases named none.
    Opening(Vec<SegmentId>),
}

impl Body {
    /// Returns whether this is an opening instead of a record.
    pub fn is_opening(&self) -> bool {
        matches!(self, Body::Opening(_))
    }
}

/// A decoded record header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The segment that holds the record.
    pub segment: SegmentId,
    /// Generation of the segment's opening to which the record belongs.
    pub generation: Generation,
    /// Position of the record, in granules from the start of the segment.
    pub position: u32,
    /// The record's number.
    pub number: RecordNumber,
    /// All records with numbers up to this one were durable when this header was created.
    pub durable_through: RecordNumber,
    /// Bytes of payload behind the header.
    pub payload_bytes: u32,
    /// Content of the record.
    pub body: Body,
}

impl RecordHeader {
    /// Returns the number of granules in the record, including header and payload.
    pub fn granules(&self, geometry: &Geometry) -> u32 {
        ((HEADER_BYTES as u64 + u64::from(self.payload_bytes)) / geometry.granule()) as u32
    }

    /// Returns the slot of the cell of entry `index`, which must be below the number of entries.
    pub fn cell(&self, geometry: &Geometry, index: usize) -> Slot {
        let cells = geometry.granules_per_header() + index as u64 * geometry.granules_per_block();
        geometry.slot_at(self.segment, self.position + cells as u32)
    }
}

/// Writes the header of a data record with blocks of `block` bytes into `into`, which must have
/// exactly [`HEADER_BYTES`]. The masks must be for that block size.
///
/// # Errors
/// The buffer's size, the number of entries or a value is impossible.
pub fn encode_data(
    into: &mut [u8],
    head: &Head,
    block: BlockSize,
    entries: &[DataEntry],
) -> Result<(), EncodeError> {
    let most = max_entries(block);
    if entries.is_empty() || entries.len() > most {
        return Err(EncodeError::Count { given: entries.len(), most });
    }
    let payload = entries.len() as u64 * block.bytes();
    let body = begin(into, head, KIND_DATA, entries.len(), payload as u32)?;
    for (entry, place) in entries.iter().zip(body.chunks_exact_mut(entry_bytes(block.sectors()))) {
        entry.encode(block, place).map_err(EncodeError::Range)?;
    }
    seal(into);
    Ok(())
}

/// Writes a marks record into `into`, which must have exactly [`HEADER_BYTES`]. It has no payload.
///
/// # Errors
/// The buffer's size, the number of marks or a value of `head` is impossible.
pub fn encode_marks(into: &mut [u8], head: &Head, marks: &[Mark]) -> Result<(), EncodeError> {
    if marks.is_empty() || marks.len() > MAX_MARKS {
        return Err(EncodeError::Count { given: marks.len(), most: MAX_MARKS });
    }
    let body = begin(into, head, KIND_MARKS, marks.len(), 0)?;
    for (mark, place) in marks.iter().zip(body.chunks_exact_mut(8)) {
        place.copy_from_slice(&mark.encode());
    }
    seal(into);
    Ok(())
}

/// Writes the opening of a segment into `into`, which must have exactly [`HEADER_BYTES`]. `head` is
/// that of the segment's first record, except for the position. At most [`MAX_FREE`] of the `free`
/// segments are named.
///
/// # Errors
/// The buffer's size or a value is impossible.
pub fn encode_opening(into: &mut [u8], head: &Head, free: &[SegmentId]) -> Result<(), EncodeError> {
    let free = &free[..free.len().min(MAX_FREE)];
    let body = begin(into, head, KIND_OPENING, 0, 0)?;
    let words = std::iter::once(free.len() as u32).chain(free.iter().map(|segment| segment.0));
    for (word, place) in words.zip(body.chunks_exact_mut(4)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    seal(into);
    Ok(())
}

/// Reads the segments that an opening names.
fn decode_free(body: &[u8], geometry: &Geometry) -> Result<Vec<SegmentId>, RecordError> {
    let impossible = RecordError::Absurd("free");
    let (words, _) = <[U32]>::ref_from_prefix_with_elems(body, MAX_FREE + 1)
        .map_err(|_| RecordError::Truncated)?;
    let (count, named) = words.split_first().ok_or(impossible)?;
    let named = named.get(..count.get() as usize).ok_or(impossible)?;
    let segment = |number: &U32| {
        (number.get() < geometry.segment_count).then(|| SegmentId(number.get())).ok_or(impossible)
    };
    named.iter().map(segment).collect()
}

/// Clears `into`, writes the fixed part without the checksum, and returns the rest.
fn begin<'a>(
    into: &'a mut [u8],
    head: &Head,
    kind: u8,
    count: usize,
    payload: u32,
) -> Result<&'a mut [u8], EncodeError> {
    if into.len() != HEADER_BYTES {
        return Err(EncodeError::Buffer);
    }
    let (low, high) = generation::split(head.generation).ok_or(EncodeError::Range("generation"))?;
    if head.number.0 >= MAX_COUNT {
        return Err(EncodeError::Range("number"));
    }
    if head.durable_through.0 >= head.number.0.max(1) {
        return Err(EncodeError::Range("durable_through"));
    }
    into.fill(0);
    let (fixed, body) = into.split_at_mut(FIXED);
    let raw = OnDiskHead {
        magic: MAGIC.into(),
        checksum: 0.into(),
        cache: *head.cache.as_bytes(),
        segment: head.segment.0.into(),
        generation: low.into(),
        position: head.position.into(),
        kind,
        reserved: 0,
        count: (count as u16).into(),
        generation_high: (high ^ NARROW).into(),
        payload_length: payload.into(),
        number: head.number.0.into(),
        durable_through: head.durable_through.0.into(),
    };
    fixed.copy_from_slice(raw.as_bytes());
    Ok(body)
}

fn seal(header: &mut [u8]) {
    let checksum = crc32c(&header[CHECKSUM_FROM..]);
    header[4..CHECKSUM_FROM].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads a record header from the start of `bytes`; the payload after it is not examined.
///
/// Segment, generation and position are only checked to be possible on this device; the caller must
/// compare them with the place where the bytes were found.
///
/// # Errors
/// The bytes are not a header that this cache wrote or could have written.
pub fn decode(
    bytes: &[u8],
    geometry: &Geometry,
    cache: &Uuid,
) -> Result<RecordHeader, RecordError> {
    let (head, raw, body) = intact(bytes, geometry, cache)?;
    let count = usize::from(raw.count.get());
    let body = match raw.kind {
        KIND_DATA => Body::Data(entry::decode_all(body, geometry.block, count)?),
        KIND_MARKS => Body::Marks(mark::decode_all(body, geometry, count)?),
        _ => Body::Opening(decode_free(body, geometry)?),
    };
    let Head { segment, generation, position, number, durable_through, .. } = head;
    let payload_bytes = raw.payload_length.get();
    Ok(RecordHeader { segment, generation, position, number, durable_through, payload_bytes, body })
}

/// Like [`decode`], without the content of the record.
///
/// # Errors
/// The bytes are not a header that this cache wrote.
pub fn decode_head(bytes: &[u8], geometry: &Geometry, cache: &Uuid) -> Result<Head, RecordError> {
    intact(bytes, geometry, cache).map(|(head, ..)| head)
}

/// Returns segment, position and generation from the first 64 bytes of a header. Its checksum is
/// not verified, so the result can rule out a header for [`decode_head`], but not prove one.
pub fn claimed(bytes: &[u8], cache: &Uuid) -> Option<(SegmentId, u32, Generation)> {
    let (head, _) = OnDiskHead::ref_from_prefix(bytes).ok()?;
    let is_ours = head.magic.get() == MAGIC && head.cache == *cache.as_bytes();
    let generation = generation::join(head.generation.get(), head.generation_high.get() ^ NARROW)?;
    is_ours.then_some((SegmentId(head.segment.get()), head.position.get(), generation))
}

/// Checks a header. Returns the common part, its fixed part, and the rest, which is not checked.
fn intact<'a>(
    bytes: &'a [u8],
    geometry: &Geometry,
    cache: &Uuid,
) -> Result<(Head, &'a OnDiskHead, &'a [u8]), RecordError> {
    let magic = MAGIC.to_le_bytes();
    let seen = &bytes[..bytes.len().min(magic.len())];
    if seen != &magic[..seen.len()] {
        return Err(RecordError::NotARecord);
    }
    let header = bytes.get(..HEADER_BYTES).ok_or(RecordError::Truncated)?;
    let (head, body) = OnDiskHead::ref_from_prefix(header).map_err(|_| RecordError::Truncated)?;
    if crc32c(&header[CHECKSUM_FROM..]) != head.checksum.get() {
        return Err(RecordError::Checksum);
    }
    if head.cache != *cache.as_bytes() {
        return Err(RecordError::OtherCache);
    }
    let check = |good: bool, field| if good { Ok(()) } else { Err(RecordError::Absurd(field)) };
    check(head.segment.get() < geometry.segment_count, "segment")?;
    let generation = generation::join(head.generation.get(), head.generation_high.get() ^ NARROW)
        .ok_or(RecordError::Absurd("generation"))?;
    check(head.number.get() < MAX_COUNT, "number")?;
    // A record cannot be durable before it exists.
    check(head.durable_through.get() < head.number.get().max(1), "durable_through")?;
    let count = usize::from(head.count.get());
    let (counts, cell) = match head.kind {
        KIND_DATA => (1..=max_entries(geometry.block), geometry.block.bytes()),
        KIND_MARKS => (1..=MAX_MARKS, 0),
        KIND_OPENING => (0..=0, 0),
        _ => return Err(RecordError::Absurd("kind")),
    };
    check(counts.contains(&count), "count")?;
    let payload = u64::from(head.payload_length.get());
    check(payload == count as u64 * cell, "payload_length")?;
    let start = u64::from(head.position.get()) * geometry.granule();
    let end = start + HEADER_BYTES as u64 + payload;
    check(end <= geometry.segment_bytes, "position")?;
    let shared = Head {
        cache: *cache,
        segment: SegmentId(head.segment.get()),
        generation,
        position: head.position.get(),
        number: RecordNumber(head.number.get()),
        durable_through: RecordNumber(head.durable_through.get()),
    };
    Ok((shared, head, body))
}

#[cfg(test)]
mod tests;
