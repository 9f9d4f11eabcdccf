//! Miss-ratio curve of a volume: the hit ratios of caches of other sizes. Sizes are in bytes,
//! shares and their errors from 0 to 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::VolumeName;

/// A share of accesses, with its error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hits {
    /// The share.
    pub share: f64,
    /// The exact share is mostly within this distance, on both sides.
    pub error: f64,
}

/// The hit ratios of a cache of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurveRow {
    /// Size of the cache.
    pub bytes: u64,
    /// Of the blocks read; `null` if none were.
    pub reads: Option<Hits>,
    /// Of the blocks read and written.
    pub all: Hits,
}

impl CurveRow {
    /// Returns the ratio to judge by: that of reads, if there are any.
    pub fn hits(&self) -> Hits {
        self.reads.unwrap_or(self.all)
    }
}

/// What a RAM tier of one size would serve in front of a cache. Shares of the blocks read, or if none
/// were, of all blocks; the three add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RamRow {
    /// Size of the RAM tier.
    pub bytes: u64,
    /// Served by RAM.
    pub ram: Hits,
    /// Served by the cache.
    pub cache: f64,
    /// Left to the origin.
    pub origin: Hits,
}

/// The curve of a volume since its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurveReport {
    /// The volume.
    pub volume: VolumeName,
    /// Unit of caching.
    pub block_size: u64,
    /// Blocks read and written, counted on every access.
    pub accesses: u64,
    /// Blocks read, counted on every access.
    pub reads: u64,
    /// Estimated number of different blocks.
    pub footprint: u64,
    /// Sampling ratio: one block in this many is sampled.
    pub one_of: u64,
    /// Number of sampled blocks.
    pub sampled_blocks: u64,
    /// RAM used by the curve.
    pub state_bytes: u64,
    /// The current size of the cache, for all of its volumes; 0 bytes without a cache device.
    pub present: CurveRow,
    /// Whether distance costs time on the origin: then a miss costs a seek. `null`: unknown.
    #[serde(default)]
    pub rotational: Option<bool>,
    /// The present size of the RAM tier, in front of that cache; `null` without one.
    #[serde(default)]
    pub ram: Option<RamRow>,
    /// The requested sizes of a RAM tier in front of that cache, or else powers of four up to one that
    /// holds everything; ascending.
    #[serde(default)]
    pub ram_rows: Vec<RamRow>,
    /// The requested sizes, or else powers of two up to one that holds everything; ascending.
    pub rows: Vec<CurveRow>,
    /// Enough sizes to draw the curve.
    pub curve: Vec<CurveRow>,
}
