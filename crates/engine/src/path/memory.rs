//! Bytes of memory that requests take at most.

use forebay_core::Op;

/// Zeroes up to this many bytes are written like data, and longer runs in pieces of it.
pub(crate) const WRITTEN_ZEROES: u64 = 256 << 10;

/// Reads are answered in pieces of this many bytes, so that what they need beside their data does not
/// grow with them.
pub(crate) const READ_PIECE: u64 = 4 << 20;
/// Prefetches fill so many bytes at a time.
pub(crate) const PREFETCH_PIECE: u64 = 1 << 20;
/// What the task of a request takes, whatever it does.
const TASK: u64 = 12 << 10;
/// What a device writes of zeroes at a time if it cannot make them by itself.
const DEVICE_ZEROES: u64 = 1 << 20;

/// For a request of `len` bytes on a volume with blocks of `block` bytes, its data included. Writes
/// that are not `aligned` to the origin's logical blocks are copied as a whole.
pub(crate) fn of_request(op: Op, len: u64, block: u64, aligned: bool) -> u64 {
    // Both edges may be parts of a block that is cached.
    let edges = 2 * block;
    // What comes from the origin is read beside the data, with all of the blocks at its edges. The
    // tasks for its parts, of which there are two for two blocks, take less than the parts.
    let read = |len: u64| 2 * (len + edges);
    let data = match op {
        Op::Flush => 0,
        Op::Read => len + read(len.min(READ_PIECE)),
        Op::Prefetch => len.min(PREFETCH_PIECE) + read(len.min(PREFETCH_PIECE)),
        Op::Write => len * if aligned { 1 } else { 2 } + edges,
        Op::WriteZeroes | Op::Discard => {
            let written = len.min(WRITTEN_ZEROES);
            2 * written + edges + if len > WRITTEN_ZEROES { DEVICE_ZEROES } else { 0 }
        }
    };
    TASK + data
}
