//! Upper bounds, in bytes, of the memory that requests take.

use forebay_core::Op;

/// Zeroes up to this length in bytes are written as data; longer runs are written in pieces of this
/// length where the origin cannot zero them.
pub(crate) const WRITTEN_ZEROES: u64 = 256 << 10;

/// Reads are served in pieces of this many bytes, so that the memory beside their data is bounded.
pub(crate) const READ_PIECE: u64 = 4 << 20;
/// Prefetches fill this many bytes at a time.
pub(crate) const PREFETCH_PIECE: u64 = 1 << 20;
/// The task of any request.
const TASK: u64 = 12 << 10;
/// The buffer of a device that has to write zeroes as data.
const DEVICE_ZEROES: u64 = 1 << 20;

/// Returns the bound for a request of `len` bytes on a volume with blocks of `block` bytes,
/// including its data. Writes that are not `aligned` to the origin's logical blocks are copied
/// completely.
pub(crate) fn of_request(op: Op, len: u64, block: u64, aligned: bool) -> u64 {
    // Both edges may be parts of cached blocks.
    let edges = 2 * block;
    // Origin data is read into a second buffer, widened to whole blocks at both edges. The tasks
    // for the parts, at most one per block, take less than the parts.
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
