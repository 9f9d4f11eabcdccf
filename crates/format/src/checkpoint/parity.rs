//! What mends a checkpoint: behind its last chunk lie the XOR of all chunks and a copy of the header.
//!
//! Neither has a checksum of its own: whatever is mended is verified like what was damaged. Caches of
//! the first programs may have no room for it; then a checkpoint does without.

use super::{CHUNK_BYTES, CheckpointRef};
use crate::PAGE;
use crate::geometry::Geometry;

/// Where the parity of a checkpoint lies, in bytes from the start of the checkpoint area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityPlace {
    /// The XOR of all chunks.
    pub offset: u64,
    /// Its length: that of the longest chunk.
    pub len: usize,
    /// The copy of the header page.
    pub header: u64,
}

impl ParityPlace {
    /// Where it is for the checkpoint that `reference` means; `None`: there is no room for it.
    pub fn of(reference: &CheckpointRef, geometry: &Geometry) -> Option<ParityPlace> {
        let offset = reference.len;
        let chunks = offset.checked_sub(PAGE as u64)?;
        let len = chunks.min(CHUNK_BYTES as u64);
        let header = offset.checked_add(len)?;
        let end = header.checked_add(PAGE as u64)?;
        let fits = end <= geometry.checkpoint_area_bytes;
        fits.then_some(ParityPlace { offset, len: len as usize, header })
    }
}

/// Bytes that the parity of any checkpoint needs in an area in which `area` bytes are for the
/// checkpoint itself.
pub fn parity_bytes(area: u64) -> u64 {
    (area - PAGE as u64).min(CHUNK_BYTES as u64) + PAGE as u64
}

/// Adds `piece`, which may be shorter, to a parity, or takes it out again. All other chunks and the
/// parity together are the missing chunk.
pub fn add_to_parity(parity: &mut [u8], piece: &[u8]) {
    for (byte, other) in parity.iter_mut().zip(piece) {
        *byte ^= other;
    }
}
