//! Size, block size and policy of a tier.

use forebay_core::{ReplacementKind, SECTOR_SIZE};

use crate::index::MOST_FRAMES;

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
const BLOCK_OVERHEAD: u64 = 72;
/// Most RAM per shard beside its blocks, in bytes.
const SHARD_OVERHEAD: u64 = 104 << 10;
/// Most shards of a tier, unless it has more blocks than they can hold. Two lanes rarely meet in one
/// of so many.
const MOST_SHARDS: u64 = 64;
/// Fewest blocks in a shard, if there is more than one. Each has a policy with memory of its own, and
/// with fewer blocks that would evict much sooner than one policy for all of them.
const SHARD_BLOCKS: u64 = 4096;

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
    /// Returns the most RAM that a tier made with these options takes, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_in(self.shards())
    }

    /// As [`TierOptions::memory`], for a tier with this number of shards.
    pub(crate) fn memory_in(&self, shards: u64) -> u64 {
        let blocks = self.bytes / self.block.bytes();
        let overhead = blocks.saturating_mul(BLOCK_OVERHEAD) + shards * SHARD_OVERHEAD;
        self.bytes.saturating_add(overhead)
    }

    /// Returns the number of shards: a power of two.
    pub(crate) fn shards(&self) -> u64 {
        let blocks = self.bytes / self.block.bytes();
        let fewest = blocks.div_ceil(u64::from(MOST_FRAMES) - 1).max(1);
        (blocks / SHARD_BLOCKS).clamp(1, MOST_SHARDS).max(fewest).next_power_of_two()
    }
}
