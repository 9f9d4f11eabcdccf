//! The faults and the latency of a disk.

use std::time::Duration;

use crate::features::Feature;
use crate::profile::{FaultProfile, Profile};

/// Faults of a disk. Probabilities are per operation, in parts per million.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// A read fails once.
    pub read_error: u32,
    /// A write fails after any part of it was stored.
    pub write_error: u32,
    /// A sync fails, and the disk may lose changes that were not durable.
    pub sync_error: u32,
    /// A failed read leaves its sectors unreadable until they are written.
    pub bad_sectors: bool,
    /// A write is acknowledged and never stored. Only writes with stamped data are chosen.
    pub lost_write: u32,
    /// A write is acknowledged and stored at another place that holds stamped data.
    pub misdirected_write: u32,
    /// The whole disk fails all operations for a while.
    pub outage: u32,
    /// The connection is lost, see [`crate::remote`].
    pub disconnect: u32,
    /// Whether a server that was restarted has lost some changes that were not synced.
    pub forgets: bool,
    /// Operations in flight time out, see [`crate::remote`].
    pub timeout: u32,
    /// The disk is slow for a while.
    pub slow_episode: u32,
    /// Whether a discarded range reads as zeroes. Otherwise a discard may have no effect at all.
    pub discards_zero: bool,
    /// Whether a write that overlaps another write in flight is reported as a bug of the caller.
    pub overlap_is_fault: bool,
}

impl Profile {
    /// Returns the faults of the cache device while clients are active.
    pub fn cache_faults(&self) -> FaultPlan {
        let slow_episode = if self.features.has(Feature::Hang) { 0 } else { 200 };
        let calm = FaultPlan { slow_episode, overlap_is_fault: true, ..FaultPlan::default() };
        match self.fault_profile {
            FaultProfile::Crashes | FaultProfile::OriginErrors => calm,
            FaultProfile::CacheErrors if self.is_only_protected() => calm,
            FaultProfile::CacheErrors => FaultPlan {
                read_error: 2_000,
                write_error: 2_000,
                sync_error: 5_000,
                bad_sectors: true,
                ..calm
            },
            FaultProfile::Damage => FaultPlan { lost_write: 500, misdirected_write: 500, ..calm },
        }
    }

    /// Returns whether the only fault of the cache device is that it refuses writes, so that its
    /// data is not lost.
    pub fn is_only_protected(&self) -> bool {
        let protected = self.features.has(Feature::Protected) && !self.features.has(Feature::Rot);
        self.fault_profile == FaultProfile::CacheErrors && protected && self.setup.seed & 1 == 0
    }

    /// Returns the faults of the origins while clients are active.
    pub fn origin_faults(&self) -> FaultPlan {
        let slow_episode = if self.features.has(Feature::Hang) { 0 } else { 200 };
        // A RAM tier learns of the loss from the failed sync. Until then it answers reads with data
        // that the origin has lost, unless the tier has evicted that data; the oracle does not
        // model this.
        let forgets = !self.setup.ram && !self.setup.deferred;
        let calm = FaultPlan { slow_episode, forgets, ..FaultPlan::default() };
        match self.fault_profile {
            FaultProfile::Crashes | FaultProfile::CacheErrors | FaultProfile::Damage => calm,
            // Half of these worlds have no other faults.
            FaultProfile::OriginErrors
                if self.features.has(Feature::Remote) && self.setup.seed & 1 == 0 =>
            {
                FaultPlan { disconnect: 3_000, timeout: 2_000, ..calm }
            }
            FaultProfile::OriginErrors => FaultPlan {
                disconnect: if self.features.has(Feature::Remote) { 2_000 } else { 0 },
                timeout: if self.features.has(Feature::Remote) { 1_000 } else { 0 },
                read_error: 2_000,
                write_error: 5_000,
                sync_error: 10_000,
                outage: 1_000,
                ..calm
            },
        }
    }
}

/// Latency of operations.
#[derive(Clone, Debug)]
pub struct LatencyModel {
    /// The shortest latency.
    pub least: Duration,
    /// The largest addition in the normal case.
    pub spread: Duration,
    /// One in this many operations takes 30 times as long as usual.
    pub tail_every: u32,
}

impl LatencyModel {
    /// A fast disk: 20 to 200 microseconds.
    pub fn fast() -> Self {
        LatencyModel {
            least: Duration::from_micros(20),
            spread: Duration::from_micros(180),
            tail_every: 100,
        }
    }

    /// A slow disk: 0.3 to 8 milliseconds.
    pub fn slow() -> Self {
        LatencyModel {
            least: Duration::from_micros(300),
            spread: Duration::from_micros(7_700),
            tail_every: 50,
        }
    }

    /// Returns the latency of one operation. `factor` exceeds 1 in a slow episode.
    pub fn sample(&self, factor: u32, rng: &mut fastrand::Rng) -> Duration {
        let spread = u64::try_from(self.spread.as_nanos()).unwrap_or(u64::MAX).max(1);
        let time = self.least + Duration::from_nanos(rng.u64(0..spread));
        let tail = if rng.u32(0..self.tail_every.max(1)) == 0 { 30 } else { 1 };
        time * factor * tail
    }
}

/// Draws an event with a probability of `per_million` parts per million.
pub fn happens(per_million: u32, rng: &mut fastrand::Rng) -> bool {
    per_million > 0 && rng.u32(0..1_000_000) < per_million
}
