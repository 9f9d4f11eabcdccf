//! Size, block size and policy of a tier.

use forebay_core::{ReplacementKind, SECTOR_SIZE};

/// The unit of caching in RAM: a power of two from 512 bytes to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamBlock(u32);

impl RamBlock {
    /// Smallest block, in bytes.
    pub const MIN: u64 = 512;
    /// Largest block, in bytes.
    pub const MAX: u64 = 64 << 10;

    /// Returns the block size of `bytes` bytes, or `None` if there is no such block size.
    pub fn new(bytes: u64) -> Option<Self> {
        let good = bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes);
        good.then_some(RamBlock(bytes as u32))
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// Returns the sectors in a block: 1 to 128.
    pub fn sectors(self) -> u32 {
        self.0 / SECTOR_SIZE as u32
    }

    pub(crate) fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }
}

impl Default for RamBlock {
    fn default() -> Self {
        RamBlock(4096)
    }
}

/// Most RAM per block beside its data, in bytes: the index at its emptiest, masks, and the policy with
/// its ghosts.
const OVERHEAD: u64 = 80;

/// How a tier is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierOptions {
    /// Bytes of cached data.
    pub bytes: u64,
    /// The unit of caching.
    pub block: RamBlock,
    /// The replacement policy.
    pub policy: ReplacementKind,
    /// Seed of policies that draw random numbers.
    pub seed: u64,
}

impl TierOptions {
    /// Returns the most RAM that the tier takes, in bytes.
    pub fn memory(&self) -> u64 {
        self.bytes.saturating_add(self.bytes / self.block.bytes() * OVERHEAD)
    }
}
