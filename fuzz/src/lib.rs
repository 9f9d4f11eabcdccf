//! What the fuzz targets share.
//!
//! - [`memory`]: a bound on what a target may allocate
//! - [`mend`]: checksums put right after a mutation, so that the fuzzer gets behind them
//! - [`image`]: small cache devices, made by the real engine
//! - [`device`]: a device over such an image that keeps changes apart
//! - [`world`]: one lane, driven by hand
//!
//! `scripts/fuzz` runs them. An input that fails becomes a test in the crate that owns the code.

pub mod device;
pub mod image;
pub mod memory;
pub mod mend;
pub mod world;

use forebay_core::BlockSize;
use forebay_format::Uuid;

/// The cache of the golden images.
pub const CACHE: Uuid = Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff);

/// Every block size, the default first: a reserved byte of 0 means that one.
pub fn block_size(choice: u8) -> BlockSize {
    const SHIFTS: [u32; 10] = [12, 11, 13, 14, 15, 16, 17, 18, 19, 20];
    let shift = SHIFTS[usize::from(choice) % SHIFTS.len()];
    BlockSize::new(1 << shift).unwrap_or_default()
}

/// Cuts `bytes` into pieces of random lengths that the bytes themselves decide, so that an input
/// always behaves the same. At most `most` pieces.
pub fn pieces(bytes: &[u8], most: usize) -> Vec<&[u8]> {
    let mut rng = fastrand::Rng::with_seed(u64::from(forebay_format::crc32c(bytes)));
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() && pieces.len() + 1 < most {
        let longest = 1 << rng.u32(0..12);
        let (piece, after) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}
