//! What an operator chooses about writeback.

use std::time::Duration;

use forebay_core::QuietHours;

/// When and how much is written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritebackSettings {
    /// Whether to write back at all unless it must be.
    pub running: bool,
    /// Share of the cache in percent, 0 to 100, that may be dirty before writeback starts.
    ///
    /// Default 50, as in dm-writecache: dirty blocks cannot be evicted, and half of the cache stays
    /// for reads. EnhanceIO starts at 30 and bcache keeps 10, which gives overwrites less time
    /// to be absorbed and neighbours less time to arrive.
    pub dirty_high: u8,
    /// Share in percent, at most `dirty_high`, at which writeback stops again.
    ///
    /// Default 40: a wider gap than dm-writecache's 45, so that one sweep has a tenth of the cache
    /// to sort and the origin gets long ascending passes with rests between them.
    pub dirty_low: u8,
    /// The same for all volumes of the cache together: above it each of them writes back. Shared by
    /// the volumes of one cache. Where `dirty_high` is higher, that counts: what one volume may have,
    /// all may.
    ///
    /// Default 60, so that a single volume never meets it. In a log that is written to evenly the
    /// oldest segments have nothing dirty left as long as at most half of it is dirty; some more costs
    /// reclaim little.
    pub cache_dirty_high: u8,
    /// Share in percent, at most `cache_dirty_high`, at which that stops again. Default 50.
    pub cache_dirty_low: u8,
    /// How long a block may be dirty; zero is for ever.
    ///
    /// Default 10 minutes: it bounds what is lost with the cache device, and is long enough for
    /// blocks that are written again and again to be written back once. (dm-writecache: off;
    /// bcache: from 30 s on.)
    pub max_age: Duration,
    /// How long no foreground request must have come for the origin to count as idle; zero is
    /// never.
    ///
    /// Default 10 seconds: what is written back in every short pause is soon written again. Of a virtual
    /// machine that often paused for 3 to 5 seconds, dm-writecache's 3 seconds made the disk write for 12 %
    /// longer, and 1 second, as dm-cache waits, for 2.7 times as long.
    pub idle: Duration,
    /// Writes to the origin that are in flight together, at least 1.
    ///
    /// Default 64, as in bcache: twice the 32 that a SATA disk sorts by itself, so that its queue
    /// is never short.
    pub depth: u32,
    /// Largest write to the origin, in bytes; a block if that is more.
    ///
    /// Default 1 MiB: seek and rotation cost a 7,200 rpm disk about as much as moving 2 MiB, and
    /// most kernels split requests at 1.25 MiB. (bcache: 2.4 MiB.)
    pub merge_bytes: u32,
    /// Clean cached blocks between two dirty ones are written along if they are at most so many
    /// bytes together; 0: never.
    ///
    /// Default 64 KiB: passing over that takes a 7,200 rpm disk 0.5 ms, writing it not much more, and
    /// a command of its own behind the gap 3 ms when few blocks are dirty, or a part of a revolution
    /// of 8 ms when many are.
    pub gap_bytes: u32,
    /// Bytes per second below which writeback that is not pressing is not slowed down; 0: it may be
    /// slowed down to next to nothing.
    ///
    /// Default 128 KiB: a tenth of the random writes of a 7,200 rpm disk. (bcache: 4 KiB.)
    pub rate_min: u64,
    /// Bytes per second above which no writeback goes unless an operator or a client waits for it; 0:
    /// no limit.
    pub rate_max: u64,
    /// Mean time that foreground requests may take on the origin before writeback yields to them;
    /// zero: it does not.
    ///
    /// Default 50 ms: some five times what a random read takes a 7,200 rpm disk that has nothing else
    /// to do. It is a mean over some seconds, and the more is dirty, the more is tolerated.
    pub latency: Duration,
    /// The part of the day in which clients are quiet; see the table of the pacer.
    pub quiet_hours: Option<QuietHours>,
}

impl Default for WritebackSettings {
    fn default() -> Self {
        WritebackSettings {
            running: true,
            dirty_high: 50,
            dirty_low: 40,
            cache_dirty_high: 60,
            cache_dirty_low: 50,
            max_age: Duration::from_secs(600),
            idle: Duration::from_secs(10),
            depth: 64,
            merge_bytes: 1 << 20,
            gap_bytes: 64 << 10,
            rate_min: 128 << 10,
            rate_max: 0,
            latency: Duration::from_millis(50),
            quiet_hours: None,
        }
    }
}

/// Settings that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A share above 100 %.
    #[error("{field} is {given} %; choose 0 to 100")]
    Percent {
        /// The setting.
        field: &'static str,
        /// Its value.
        given: u8,
    },
    /// The watermarks are the wrong way round.
    #[error("{name}_low ({low} %) is above {name}_high ({high} %); choose {high} or less")]
    Crossed {
        /// Which ones: `dirty` or `cache_dirty`.
        name: &'static str,
        /// The low one.
        low: u8,
        /// The high one.
        high: u8,
    },
    /// The floor is above the ceiling.
    #[error("rate_min ({min} bytes/s) is above rate_max ({max} bytes/s)")]
    Rates {
        /// The floor.
        min: u64,
        /// The ceiling.
        max: u64,
    },
    /// Nothing could be in flight.
    #[error("depth is 0; choose 1 or more, or switch writeback off with running")]
    NoDepth,
}

impl WritebackSettings {
    /// The watermarks of the cache as they are in force for this volume, the low one first.
    pub fn cache_watermarks(&self) -> (u8, u8) {
        let (low, high) = (self.cache_dirty_low, self.cache_dirty_high);
        if self.dirty_high > high {
            (low.max(self.dirty_low), self.dirty_high)
        } else {
            (low, high)
        }
    }

    /// Whether the settings make sense.
    ///
    /// # Errors
    /// A share above 100, watermarks or rates that are crossed, a depth of 0.
    pub fn validate(&self) -> Result<(), SettingsError> {
        for (name, low, high, low_name, high_name) in [
            ("dirty", self.dirty_low, self.dirty_high, "dirty_low", "dirty_high"),
            (
                "cache_dirty",
                self.cache_dirty_low,
                self.cache_dirty_high,
                "cache_dirty_low",
                "cache_dirty_high",
            ),
        ] {
            for (field, given) in [(high_name, high), (low_name, low)] {
                if given > 100 {
                    return Err(SettingsError::Percent { field, given });
                }
            }
            if low > high {
                return Err(SettingsError::Crossed { name, low, high });
            }
        }
        if self.rate_max > 0 && self.rate_min > self.rate_max {
            return Err(SettingsError::Rates { min: self.rate_min, max: self.rate_max });
        }
        if self.depth == 0 {
            return Err(SettingsError::NoDepth);
        }
        Ok(())
    }
}
