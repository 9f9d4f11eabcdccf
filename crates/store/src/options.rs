//! Options for opening a store.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::VolumeId;
use forebay_format::Geometry;
use forebay_lane::MemoryBudget;

use crate::team::Helper;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Number of lanes that will use the store, at least 1.
    pub lanes: usize,
    /// Longest time before appended data is made durable.
    pub commit_interval: Duration,
    /// Bytes appended between checkpoints; `None` for half of the cache.
    pub checkpoint_bytes: Option<u64>,
    /// Number of blocks of volumes that are about to be created, for which the index reserves room.
    pub room_for_blocks: u64,
    /// Volumes whose origins now have more blocks than the volume table says, with the number: the
    /// index gets room for them.
    pub grown: Vec<(VolumeId, u64)>,
    /// Shards of the index; `None` to choose by the capacity, with one for a cache of less than
    /// 2^15 blocks.
    pub shards: Option<u32>,
    /// Number of blocks in the checkpoint from which on the index is loaded while requests are
    /// served. Loading fewer takes less than a tenth of a second.
    pub load_later_from: u64,
    /// Pause between two shards of the index that a lane loads in the background, for tests.
    pub load_pause: Duration,
    /// Limit of the blocks of the log that are replayed at a time if the index must be rebuilt
    /// without a checkpoint. They must fit into memory.
    pub rebuilt_at_once: u64,
    /// Other lanes that help to recover the cache. They are released when the cache is open.
    pub helpers: Vec<Helper>,
    /// The budget from which the open cache takes its memory.
    pub memory: Arc<MemoryBudget>,
    /// Seed of all random decisions.
    pub seed: u64,
}

impl StoreOptions {
    /// Returns the number of bytes after which a cache with this geometry should write a
    /// checkpoint.
    pub(crate) fn checkpoint_due(&self, geometry: &Geometry) -> u64 {
        // Recovery holds the headers written since the checkpoint in memory, which must then be
        // available. More are written until the checkpoint is complete, so this plans with about
        // half of it.
        const MOST: u64 = 64 << 30;
        const FOR_EACH_BLOCK: u64 = 400;
        let segment = geometry.segment_bytes;
        let half = u64::from(geometry.segment_count) * segment / 2;
        let blocks = self.memory.not_held() / FOR_EACH_BLOCK;
        // At least one segment. Otherwise, without any memory left, a checkpoint would be due even
        // without an append.
        let within_memory = blocks.saturating_mul(geometry.block.bytes()).max(segment);
        self.checkpoint_bytes.unwrap_or(half).min(half).min(MOST).min(within_memory)
    }
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
            load_later_from: 1 << 20,
            load_pause: Duration::ZERO,
            rebuilt_at_once: 1 << 27,
            helpers: Vec::new(),
            memory: Arc::default(),
            seed: 0,
        }
    }
}
