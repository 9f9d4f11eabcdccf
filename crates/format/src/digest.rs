//! A digest of data that other programs wrote.
//!
//! It is not a CRC: file systems store a CRC32C after their metadata, and the CRC32C of both
//! together is the same for all metadata.

/// A digest of numbers and pieces of data.
#[derive(Clone, Debug)]
pub struct Digest([u64; 2]);

impl Digest {
    const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];

    /// Begins a digest.
    #[expect(clippy::new_without_default, reason = "no digest is the usual one")]
    pub fn new() -> Self {
        Digest(Self::FACTORS)
    }

    /// Adds a number.
    pub fn add_word(&mut self, word: u64) {
        for (sum, factor) in self.0.iter_mut().zip(Self::FACTORS) {
            let product = (*sum ^ word).wrapping_mul(factor);
            *sum = product ^ product >> 32;
        }
    }

    /// Adds data and its length, so that the boundaries between pieces count.
    pub fn add(&mut self, data: &[u8]) {
        self.add_word(data.len() as u64);
        for piece in data.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.add_word(u64::from_le_bytes(word));
        }
    }

    /// Returns the digest: the first sum, then the second one.
    pub fn value(&self) -> u128 {
        u128::from(self.0[0]) << 64 | u128::from(self.0[1])
    }
}
