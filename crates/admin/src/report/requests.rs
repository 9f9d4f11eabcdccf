//! Requests to a cache, as counted for one volume.

use forebay_core::CounterTotals;
use forebay_core::why::BypassCounts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests to the cache since the volume was started, including those of its RAM tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestReport {
    /// Reads served from the cache alone.
    pub read_hits: u64,
    /// Reads that needed both the cache and the origin.
    pub read_partial: u64,
    /// Reads served from the origin alone.
    pub read_misses: u64,
    /// Writes to blocks that were cached.
    pub write_hits: u64,
    /// Writes to blocks that were not cached.
    pub write_misses: u64,
    /// Requests that bypassed the cache; [`VolumeReport::why`] has all reasons.
    pub bypassed: u64,
    /// Requests that bypassed the cache as part of a sequential stream.
    #[serde(default)]
    pub bypassed_sequential: u64,
    /// Requests that bypassed the cache because of the mode.
    #[serde(default)]
    pub bypassed_mode: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    #[serde(default)]
    pub discards: u64,
    /// Requests that waited because of `limit_iops` or `limit_bandwidth`.
    #[serde(default)]
    pub limited: u64,
    /// Milliseconds that they waited in all.
    #[serde(default)]
    pub limited_ms: u64,
    /// Requests that failed.
    #[serde(default)]
    pub failed: u64,
}

impl RequestReport {
    /// The report of a volume with these counters, `bypass` of whose requests bypassed the cache.
    pub fn of(totals: &CounterTotals, bypass: &BypassCounts) -> Self {
        RequestReport {
            read_hits: totals.read_hits,
            read_partial: totals.read_partial,
            read_misses: totals.read_misses,
            write_hits: totals.write_hits,
            write_misses: totals.write_misses,
            bypassed: bypass.total(),
            bypassed_sequential: bypass.sequential,
            bypassed_mode: bypass.mode,
            flushes: totals.flushes,
            discards: totals.discards,
            limited: totals.limited_requests,
            limited_ms: totals.limited_wait_ns / 1_000_000,
            failed: totals.errors,
        }
    }

    /// Returns the share of reads that were hits, from 0 to 1; `None` before the first read.
    pub fn read_hit_ratio(&self) -> Option<f64> {
        ratio(self.read_hits, self.read_partial.saturating_add(self.read_misses))
    }

    /// Returns the share of writes that were hits, from 0 to 1; `None` before the first write.
    pub fn write_hit_ratio(&self) -> Option<f64> {
        ratio(self.write_hits, self.write_misses)
    }
}

fn ratio(hits: u64, others: u64) -> Option<f64> {
    let all = hits.saturating_add(others);
    (all > 0).then(|| hits as f64 / all as f64)
}
