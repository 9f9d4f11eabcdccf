//! The parity of a checkpoint: the XOR of all chunks and a copy of the header, after the last
//! chunk.
//!
//! Neither has a separate checksum: a rebuilt chunk or header is verified like the original. Caches
//! of the first programs may have no space for parity; their checkpoints have none.

use super::{CHUNK_BYTES, CheckpointRef};
use crate::PAGE;
use crate::geometry::Geometry;

/// Position of a checkpoint's parity, in bytes from the start of the checkpoint area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityPlace {
    /// Offset of the XOR of all chunks.
    pub offset: u64,
    /// Length of the XOR, which is that of the longest chunk.
    pub len: usize,
    /// Offset of the copy of the header page.
    pub header: u64,
}

impl ParityPlace {
    /// Returns the position of the parity of the checkpoint that `reference` names. `None` if the
    /// area has no space for it.
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

/// Returns the maximum size of the parity in an area with `area` bytes for the checkpoint itself,
/// in bytes.
pub fn parity_bytes(area: u64) -> u64 {
    (area - PAGE as u64).min(CHUNK_BYTES as u64) + PAGE as u64
}

/// XORs `piece`, which may be shorter, into a parity; doing so a second time removes it. The XOR of
/// the parity and all other chunks is the missing chunk.
pub fn add_to_parity(parity: &mut [u8], piece: &[u8]) {
    for (byte, other) in parity.iter_mut().zip(piece) {
        *byte ^= other;
    }
}
