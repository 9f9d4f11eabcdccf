//! Constraints between settings, and values derived from several of them.

use forebay_core::units::format_size;
use forebay_core::{Caching, Durability, Mode, RamStrategy};

use crate::error::SettingError;
use crate::table::Settings;

/// The least limit of the bandwidth, in bytes per second: with it a request of 1 MiB takes 16 s.
const LEAST_BANDWIDTH: u64 = 64 << 10;

impl Settings {
    /// Returns the mode in force: that of a paused volume is passthrough.
    pub fn effective_mode(&self) -> Mode {
        if self.caching == Caching::Paused { Mode::Passthrough } else { self.mode }
    }

    /// Returns whether the volume may have dirty blocks for long: its mode makes some, and it is
    /// not paused.
    pub fn keeps_dirty(&self) -> bool {
        matches!(self.effective_mode(), Mode::Writeback | Mode::Writeonly)
    }

    /// Returns whether writes are to reach the origin in the order of flushes.
    pub fn wants_order(&self) -> bool {
        self.ordered && self.keeps_dirty()
    }

    /// Returns whether no block may enter.
    pub fn is_frozen(&self) -> bool {
        self.caching == Caching::Frozen
    }

    /// Returns whether writes are deferred in RAM: only while blocks may enter.
    pub fn defers_writes(&self) -> bool {
        self.durability == Durability::Deferred && self.caching == Caching::On
    }

    /// Returns the watermarks of the cache in force for this volume, in percent, the low one first.
    /// They are raised to the volume's own if those are higher: what one volume may have dirty, all
    /// may.
    pub fn cache_watermarks(&self) -> (u8, u8) {
        let (low, high) = (self.cache_dirty_low, self.cache_dirty_high);
        if self.dirty_high > high {
            (low.max(self.dirty_low), self.dirty_high)
        } else {
            (low, high)
        }
    }

    /// Checks the constraints between settings.
    ///
    /// # Errors
    /// [`SettingError::Value`] with the first setting that violates one.
    pub fn validate(&self) -> Result<(), SettingError> {
        if self.dirty_low > self.dirty_high {
            let reason = format!(
                "{} % is above dirty_high, which is {} %; set both, the low one not above the high",
                self.dirty_low, self.dirty_high
            );
            return Err(SettingError::Value { name: "dirty_low", reason });
        }
        if self.ordered && !matches!(self.mode, Mode::Writeback | Mode::Writeonly) {
            let reason = format!(
                "with mode={} every write goes to the origin at once; choose mode=writeback or mode=writeonly, or set ordered=off",
                self.mode
            );
            return Err(SettingError::Value { name: "ordered", reason });
        }
        self.validate_deferral()?;
        if self.cache_dirty_low > self.cache_dirty_high {
            let reason = format!(
                "{} % is above cache_dirty_high, which is {} %; set both, the low one not above the high",
                self.cache_dirty_low, self.cache_dirty_high
            );
            return Err(SettingError::Value { name: "cache_dirty_low", reason });
        }
        if self.writeback_rate_max > 0 && self.writeback_rate_min > self.writeback_rate_max {
            let reason = format!(
                "{} is above writeback_rate_max, which is {}; set both, the min not above the max",
                format_size(self.writeback_rate_min),
                format_size(self.writeback_rate_max)
            );
            return Err(SettingError::Value { name: "writeback_rate_min", reason });
        }
        if self.share_min > self.share_max {
            let reason = format!(
                "{} % is above share_max, which is {} %; set both, the min not above the max",
                self.share_min, self.share_max
            );
            return Err(SettingError::Value { name: "share_min", reason });
        }
        if (1..LEAST_BANDWIDTH).contains(&self.limit_bandwidth) {
            let reason = format!(
                "{} is too little: clients would give requests up; use {} or more, or 0 for no limit",
                format_size(self.limit_bandwidth),
                format_size(LEAST_BANDWIDTH)
            );
            return Err(SettingError::Value { name: "limit_bandwidth", reason });
        }
        Ok(())
    }

    fn validate_deferral(&self) -> Result<(), SettingError> {
        let refuse =
            |name, reason: &str| Err(SettingError::Value { name, reason: reason.to_owned() });
        let deferred = self.durability == Durability::Deferred;
        if deferred && self.ram == 0 {
            return refuse(
                "durability",
                "deferred writes wait in a RAM tier: choose another durability, or create the volume with --ram; one that exists gets a tier by ram=SIZE, a stop and a start",
            );
        }
        if deferred && self.ram_strategy == RamStrategy::ReadOnly {
            return refuse(
                "ram_strategy",
                "with read-only nothing can be deferred; choose read-write or write-only, or another durability",
            );
        }
        if self.ignore_flush && !deferred {
            return refuse(
                "ignore_flush",
                "it needs durability=deferred, and a RAM tier for that; or set ignore_flush=off",
            );
        }
        if self.ignore_flush && self.ordered {
            return refuse(
                "ignore_flush",
                "ordered=on keeps the origin in the order of flushes, which would be ignored; choose one",
            );
        }
        Ok(())
    }
}
