//! Size, block size, policy and strategy of a tier, and how it defers writes.

use std::time::Duration;

use forebay_core::{RamStrategy, ReplacementKind, WriteDown};

use crate::block::{REGION_BYTES, RamBlock};
use crate::index::MOST_FRAMES;
use crate::offer;

/// Upper limit of RAM per block in addition to its data, in bytes: the index at its emptiest,
/// masks, and the policy with its ghosts.
const BLOCK_OVERHEAD: u64 = 56;
/// Upper limit of RAM per sector in addition to its data, in bytes: its bits in the masks.
const SECTOR_OVERHEAD: f64 = 3.0 / 8.0;
/// Upper limit of RAM per shard in addition to its blocks and the shadow caches of its policy, in
/// bytes.
const SHARD_OVERHEAD: u64 = 104 << 10;
/// Maximum number of shards of a tier, unless it has more blocks than they can hold. With this
/// number, lanes rarely need the same shard at the same time.
const MOST_SHARDS: u64 = 64;
/// Fewest blocks in a shard, if there is more than one. Each has a policy with memory of its own,
/// and with fewer blocks that would evict much sooner than one policy for all of them.
const SHARD_BLOCKS: u64 = 4096;
/// Fewest regions in a shard, if there is more than one: neighbouring regions are in different
/// shards, and with few regions in each a small range of the volume would leave most shards empty.
const SHARD_REGIONS: u64 = 8;

/// Parameters of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierOptions {
    /// Bytes of cached data.
    pub bytes: u64,
    /// The unit of caching.
    pub block: RamBlock,
    /// The replacement policy.
    pub policy: ReplacementKind,
    /// Strategy: which requests are cached.
    pub strategy: RamStrategy,
    /// Whether the data is locked in RAM, so that it is never swapped out.
    pub locked: bool,
    /// Seed of policies that draw random numbers.
    pub seed: u64,
}

impl TierOptions {
    /// Returns the most RAM that a tier made with these options takes, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_in(self.shards())
    }

    /// Like [`TierOptions::memory`], for a tier with this number of shards.
    pub(crate) fn memory_in(&self, shards: u64) -> u64 {
        let blocks = self.bytes / self.block.bytes();
        let masks = (blocks * u64::from(self.block.sectors())) as f64 * SECTOR_OVERHEAD;
        let overhead =
            blocks.saturating_mul(BLOCK_OVERHEAD) + masks as u64 + shards * SHARD_OVERHEAD;
        self.bytes.saturating_add(overhead + offer::memory(self.block.bytes()))
    }

    /// Returns the most RAM in bytes of a tier that is made with these options and with room for
    /// `room` bytes: see [`crate::Tier::with_room`].
    pub fn memory_with_room(&self, room: u64) -> u64 {
        self.memory_in(TierOptions { bytes: room, ..*self }.shards())
    }

    /// Returns the number of shards: a power of two.
    pub(crate) fn shards(&self) -> u64 {
        let blocks = self.bytes / self.block.bytes();
        let fewest = blocks.div_ceil(u64::from(MOST_FRAMES) - 1).max(1);
        let most = (blocks / SHARD_BLOCKS).min(self.bytes / (SHARD_REGIONS * REGION_BYTES));
        most.clamp(1, MOST_SHARDS).max(fewest).next_power_of_two()
    }
}

/// Parameters of deferred writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// The age limit of deferred data.
    pub within: Duration,
    /// When deferred data is written down.
    pub mode: WriteDown,
    /// Largest share of the tier that deferred data takes, in percent: 1 to 100.
    pub share: u8,
    /// Whether flushes and FUA are ignored, which is for data that may be lost.
    pub ignore_flush: bool,
}

impl Deferral {
    /// Returns the longest time that deferred data waits.
    pub(crate) fn limit(&self) -> Duration {
        if self.mode == WriteDown::Infinite { Duration::MAX } else { self.within }
    }
}

/// Whether a strategy caches a request.
pub(crate) trait Keeps {
    fn keeps_reads(self) -> bool;
    fn keeps_writes(self) -> bool;
}

impl Keeps for RamStrategy {
    fn keeps_reads(self) -> bool {
        self != RamStrategy::WriteOnly
    }

    fn keeps_writes(self) -> bool {
        self != RamStrategy::ReadOnly
    }
}
