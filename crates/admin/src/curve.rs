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
    /// The hit ratio of the blocks read; `null` if none were read.
    pub reads: Option<Hits>,
    /// The hit ratio of the blocks read and written.
    pub all: Hits,
}

impl CurveRow {
    /// Returns the ratio to judge by: that of reads, if there are any.
    pub fn hits(&self) -> Hits {
        self.reads.unwrap_or(self.all)
    }
}

/// The predicted effect of a RAM tier of one size in front of a cache. Shares of the blocks read,
/// or, if none were read, of all blocks; the three add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RamRow {
    /// Size of the RAM tier.
    pub bytes: u64,
    /// The share that RAM would have served.
    pub ram: Hits,
    /// The share that the cache would have served.
    pub cache: f64,
    /// The share that the origin would have served.
    pub origin: Hits,
}

/// The prediction for a volume with other settings, or with the present ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIfRow {
    /// The change, as for `forebay set`, like `admission=second-hit`; `null`: the present settings.
    pub setting: Option<String>,
    /// Share of the blocks read, or of all blocks if none were read, that RAM or the cache would
    /// have had.
    pub hits: Hits,
    /// The share that RAM alone would have had.
    pub ram: f64,
    /// The difference of that share from the share with the present settings. Its error is smaller
    /// than the errors of the two shares.
    pub gain: Hits,
    /// Bytes that would have been written to the cache device, without the blocks that reclaim
    /// reinserts.
    pub written_bytes: u64,
    /// The change of these bytes from those with the present settings, as a share of the latter;
    /// `null` if those are none.
    pub written_change: Option<f64>,
}

/// Predictions for other settings, by shadow caches on a sample of the blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIf {
    /// Blocks read and written since the present settings are in force.
    pub accesses: u64,
    /// Blocks read since then.
    pub reads: u64,
    /// The present settings, then other rules of admission, policies, and sizes of RAM, each with
    /// all else unchanged.
    pub rows: Vec<WhatIfRow>,
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
    /// The requested sizes of a RAM tier in front of that cache, or else powers of four up to one
    /// that holds everything; ascending.
    #[serde(default)]
    pub ram_rows: Vec<RamRow>,
    /// Predictions for other settings; `null` if nothing is cached.
    #[serde(default)]
    pub what_if: Option<WhatIf>,
    /// The requested sizes, or else powers of two up to one that holds everything; ascending.
    pub rows: Vec<CurveRow>,
    /// Enough sizes to draw the curve.
    pub curve: Vec<CurveRow>,
}
