//! Bytes on the cache device: superblock, volume table, record headers, checkpoints, checksums.
//!
//! Pure functions between bytes and structs: no I/O, no clock, no state. `docs/format.md` specifies
//! the meaning of the bytes, field by field; this crate is its only implementation.
//!
//! - [`geometry`]: offsets and sizes on a device
//! - [`layout`]: the layout of a device of a given size
//! - [`superblock`]: the two copies of the root structure, and the choice between them
//! - [`volume`]: the volume table
//! - [`record`]: the headers in the log
//! - [`checkpoint`]: the snapshot of the index from which recovery starts
//! - [`checksum`]: CRC32C, and how a payload is bound to its address
//! - [`digest`]: a digest of data that may end with the CRC32C of the rest
//!
//! Decoded bytes are not trusted: lengths and counts are checked against the bytes at hand before
//! anything is allocated, and a valid checksum does not make an impossible value acceptable.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod checksum;
pub mod digest;
mod generation;
pub mod geometry;
pub mod layout;
pub mod record;
pub mod superblock;
pub mod volume;

pub use checkpoint::{
    Arrangement, CheckpointError, CheckpointHeader, CheckpointReader, CheckpointRef,
    CheckpointWriteError, CheckpointWriter, IndexEntry, PartialMask, SegmentState, SegmentUse,
};
pub use checksum::{CheckSeed, crc32c, crc32c_append, payload_check};
pub use digest::Digest;
pub use geometry::Geometry;
pub use layout::FormatError;
pub use record::{
    Body, DataEntry, EncodeError, HEADER_BYTES as RECORD_HEADER_BYTES, Head, MAX_MARKS, Mark,
    MarkKind, RecordError, RecordHeader, max_entries,
};
pub use superblock::{AcceptedLog, Superblock, SuperblockError, VolumeTableRef};
pub use uuid::Uuid;
pub use volume::{VolumeRecord, VolumeTableError};

/// Bytes in a page: superblock copies, record headers and checkpoint headers are one page each,
/// and every area starts at a multiple of it.
pub const PAGE: usize = 4096;

/// Block numbers on an origin are below this: 44 bits, or 32 PiB with blocks of 2 KiB.
pub const MAX_BLOCKS: u64 = 1 << 44;

/// From this generation on, headers and segment tables need [`superblock::WIDE_GENERATIONS`].
pub const MAX_NARROW_GENERATION: u64 = 1 << generation::LOW_BITS;

/// Limit of every counter that grows for the life of a cache: numbers of records and checkpoints,
/// sequences, generations of segments and superblocks. It leaves room to compute the next value.
pub const MAX_COUNT: u64 = 1 << 62;
