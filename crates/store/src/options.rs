//! Options for opening a store.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::VolumeId;
use forebay_lane::MemoryBudget;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Lanes that will use it, at least 1.
    pub lanes: usize,
    /// Longest time before appended data is made durable.
    pub commit_interval: Duration,
    /// Bytes appended between checkpoints; `None`: half of the cache.
    pub checkpoint_bytes: Option<u64>,
    /// Blocks of volumes that are about to be created, for which the index gets room as well.
    pub room_for_blocks: u64,
    /// Volumes whose origins now have more blocks than the volume table says, with the number: the
    /// index gets room for them.
    pub grown: Vec<(VolumeId, u64)>,
    /// Shards of the index; `None`: chosen by the capacity, one for a cache of less than 2^15
    /// blocks.
    pub shards: Option<u32>,
    /// The budget from which the open cache takes its memory.
    pub memory: Arc<MemoryBudget>,
    /// Seed of all random decisions.
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
