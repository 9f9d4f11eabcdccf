//! Parity of a checkpoint: the XOR of all chunks and a copy of the header, behind the last chunk.
//!
//! Neither has a checksum of its own: a rebuilt chunk or header is verified like the original.
//! Caches of the first programs may have no room for parity; their checkpoints go without.

use super::{CHUNK_BYTES, CheckpointRef};
use crate::PAGE;
use crate::geometry::Geometry;

/// Place of a checkpoint's parity, in bytes from the start of the checkpoint area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityPlace {
    /// Offset of the XOR of all chunks.
    pub offset: u64,
    /// Length of the XOR: that of the longest chunk.
    pub len: usize,
    /// Offset of the copy of the header page.
    pub header: u64,
}

impl ParityPlace {
    /// Returns the place of the parity of the checkpoint that `reference` names; `None` if the area
    /// has no room for it.
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

/// Returns the most bytes that parity takes in an area with `area` bytes for the checkpoint itself.
pub fn parity_bytes(area: u64) -> u64 {
    (area - PAGE as u64).min(CHUNK_BYTES as u64) + PAGE as u64
}

/// XORs `piece`, which may be shorter, into a parity; a second time removes it. The parity with all
/// other chunks XORed in is the missing chunk.
pub fn add_to_parity(parity: &mut [u8], piece: &[u8]) {
    for (byte, other) in parity.iter_mut().zip(piece) {
        *byte ^= other;
    }
}
