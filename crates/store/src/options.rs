//! How a store is opened.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::VolumeId;
use forebay_lane::MemoryBudget;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Lanes that will use it, at least 1.
    pub lanes: usize,
    /// At the latest after this time, what was written is made durable.
    pub commit_interval: Duration,
    /// A checkpoint is written when this many bytes have been appended since the last one;
    /// `None`: half of the cache.
    pub checkpoint_bytes: Option<u64>,
    /// Blocks of volumes that are about to be created: the index gets room for them as well.
    pub room_for_blocks: u64,
    /// Volumes whose origins have more blocks by now than the volume table says: the index gets
    /// room for that many.
    pub grown: Vec<(VolumeId, u64)>,
    /// Shards of the index; `None`: by the capacity, one for a cache of less than 2^15 blocks.
    pub shards: Option<u32>,
    /// What the cache takes of memory for as long as it is open is held of this.
    pub memory: Arc<MemoryBudget>,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            lanes: 1,
            commit_interval: Duration::from_secs(1),
            checkpoint_bytes: None,
            room_for_blocks: 0,
            grown: Vec::new(),
            shards: None,
            memory: Arc::default(),
            seed: 0,
        }
    }
}
