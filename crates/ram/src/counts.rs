//! Counts of a tier.

/// Counts since the tier was made, in blocks unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Read from RAM.
    pub hits: u64,
    /// Read from the lower tier, in part or whole.
    pub misses: u64,
    /// Copied to RAM after they were read from the lower tier.
    pub fills: u64,
    /// Removed to make room.
    pub evictions: u64,
    /// Cached now.
    pub cached: u64,
    /// Removed to make room, used before, and offered to the lower tier.
    pub offers: u64,
    /// RAM used beside the data, in bytes.
    pub overhead_bytes: u64,
    /// Bytes that are deferred now: only RAM has them.
    pub deferred_bytes: u64,
    /// Bytes written to RAM as deferred writes.
    pub deferred_written_bytes: u64,
    /// Bytes of these that were overwritten in RAM before they were written down.
    pub coalesced_bytes: u64,
    /// Bytes of these that a discard, zeroes or a write to the lower tier replaced before they were
    /// written down.
    pub superseded_bytes: u64,
    /// Bytes written down.
    pub written_down_bytes: u64,
    /// Bytes among these that were written down early because space ran short.
    pub urgent_bytes: u64,
    /// Requests by which data was written down.
    pub write_downs: u64,
    /// Requests among these with data older than the age limit.
    pub late_write_downs: u64,
    /// Requests that failed; their data is deferred again.
    pub failed_write_downs: u64,
    /// Writes that had to wait for space.
    pub waits: u64,
}
