//! RAM that the daemon uses, and the RAM tier of a volume.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// RAM of the volume's cache, and of the whole daemon, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReport {
    /// The index, including the state of the replacement policy.
    pub index_bytes: u64,
    /// Buffers of the log and of transfers.
    pub buffer_bytes: u64,
    /// The daemon's limit, for all of its caches and clients.
    #[serde(default)]
    pub limit_bytes: u64,
    /// The daemon's use of that limit.
    #[serde(default)]
    pub used_bytes: MemoryUsed,
    /// RAM that the daemon's process occupies as the kernel counts it (RSS); 0: unknown.
    #[serde(default)]
    pub resident_bytes: u64,
}

/// Memory of the daemon, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DaemonMemory {
    /// The limit, for all caches, RAM tiers and clients.
    pub limit_bytes: u64,
    /// The use of that limit.
    pub used_bytes: MemoryUsed,
    /// RAM that the daemon's process occupies as the kernel counts it (RSS), with pages of its
    /// program and of files; 0: unknown.
    #[serde(default)]
    pub resident_bytes: u64,
}

/// The daemon's use of its memory limit, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MemoryUsed {
    /// The program and its lanes.
    pub process: u64,
    /// Indexes and segment tables.
    pub index: u64,
    /// State of replacement and admission policies.
    pub policy: u64,
    /// Buffers of logs.
    pub log_buffers: u64,
    /// Buffers of writeback, reclaim and checkpoints.
    pub background: u64,
    /// Devices in RAM.
    pub ram_devices: u64,
    /// Libraries that connect devices of other machines.
    pub remote_devices: u64,
    /// RAM tiers of volumes.
    pub ram_tiers: u64,
    /// Clients, with the kernel's buffers for them.
    pub connections: u64,
    /// Unanswered requests.
    pub requests: u64,
}

impl MemoryUsed {
    /// Returns each use with its name.
    pub fn parts(&self) -> [(&'static str, u64); 10] {
        [
            ("process", self.process),
            ("index", self.index),
            ("policy", self.policy),
            ("log buffers", self.log_buffers),
            ("background", self.background),
            ("RAM devices", self.ram_devices),
            ("remote devices", self.remote_devices),
            ("RAM tiers", self.ram_tiers),
            ("connections", self.connections),
            ("requests", self.requests),
        ]
    }

    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.parts().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The RAM tier of a volume. The counts are in the tier's blocks, since the volume was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RamReport {
    /// Bytes that it may hold.
    pub size: u64,
    /// Bytes that it may hold while memory is not short: less than its size if that was made much
    /// smaller, as the shards of the tier, whose number is fixed, have whole blocks.
    pub usable: u64,
    /// Bytes that it may hold at the moment: less while memory is short.
    pub room: u64,
    /// Bytes of the blocks that it holds.
    pub used: u64,
    /// Size of a block in bytes.
    pub block_size: u64,
    /// Bytes of RAM beside the data: index, masks, policy.
    pub overhead_bytes: u64,
    /// Blocks read from RAM.
    pub hits: u64,
    /// Blocks read from the cache or the origin.
    pub misses: u64,
    /// Blocks that entered after they were read.
    pub fills: u64,
    /// Blocks that left to make room.
    pub evictions: u64,
    /// Evicted blocks that had been read again in RAM and were offered to the cache.
    pub offers: u64,
    /// Bytes that only RAM has now.
    pub deferred: u64,
    /// Bytes written to RAM, to be written down later.
    pub deferred_written: u64,
    /// Deferred bytes that were overwritten in RAM before they were written down.
    pub coalesced: u64,
    /// Deferred bytes that a discard, zeroes or another write replaced below before they were
    /// written down.
    pub superseded: u64,
    /// Deferred bytes that were written down.
    pub written_down: u64,
    /// Bytes that were written down early because space ran short.
    pub urgent: u64,
    /// Requests in which they were written down.
    pub write_downs: u64,
    /// Requests with data that had waited for longer than `defer`.
    pub late_write_downs: u64,
    /// Requests that failed; their data still waits.
    pub failed_write_downs: u64,
    /// Writes that waited for space in RAM.
    pub waits: u64,
}
