//! What caches of other sizes would have hit of a volume's requests. Sizes are in bytes, shares and
//! their errors 0 to 1.

use serde::{Deserialize, Serialize};

use crate::name::VolumeName;

/// A share of accesses, and about how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hits {
    /// The share.
    pub share: f64,
    /// The exact share is within this on both sides, mostly.
    pub error: f64,
}

/// What a cache of one size would have hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveRow {
    /// Its size.
    pub bytes: u64,
    /// Of the blocks that were read; `null` if none were.
    pub reads: Option<Hits>,
    /// Of the blocks that were read and written.
    pub all: Hits,
}

impl CurveRow {
    /// What is judged by: reads, if there are any.
    pub fn hits(&self) -> Hits {
        self.reads.unwrap_or(self.all)
    }
}

/// The curve of a volume, since it was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveReport {
    /// The volume.
    pub volume: VolumeName,
    /// Unit of caching.
    pub block_size: u64,
    /// Blocks that were read and written, each as often as it was.
    pub accesses: u64,
    /// Of those: read.
    pub reads: u64,
    /// About what they are together.
    pub footprint: u64,
    /// One block of so many is looked at.
    pub one_of: u64,
    /// How many those are.
    pub sampled_blocks: u64,
    /// RAM that it takes.
    pub state_bytes: u64,
    /// The size that the cache has now, for all of its volumes.
    pub present: CurveRow,
    /// The sizes that were asked for, or else powers of two up to one for everything; from small to
    /// large.
    pub rows: Vec<CurveRow>,
    /// As many sizes as a picture needs.
    pub curve: Vec<CurveRow>,
}
