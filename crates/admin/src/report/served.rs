//! The share of RAM, cache and origin in serving the requests of clients.

use forebay_core::CounterTotals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests since the volume was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServedReport {
    /// Reads: answered from RAM alone, from the cache, or with something from the origin. The last
    /// ones are those that have a reason in [`forebay_core::why::Why::miss`].
    pub reads: ServedBy,
    /// Writes, by the first that had all of the data when they were acknowledged: RAM, from where
    /// they are written down later; the cache; or the origin. Zeroes that are written as data
    /// count.
    pub writes: ServedBy,
}

/// Requests of one kind. The last three add up to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServedBy {
    /// All requests.
    pub total: u64,
    /// Requests served by the RAM tier.
    pub ram: u64,
    /// Requests served by the cache: from its device, or from data on the way there.
    pub cache: u64,
    /// Requests served by the origin, alone or together with the cache.
    pub origin: u64,
}

/// The counters of a RAM tier, since the volume was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RamTraffic {
    /// Reads answered from RAM alone.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Writes taken into RAM, to be written down later.
    pub writes: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Writes passed on at once.
    pub passed_writes: u64,
    /// Bytes of these.
    pub passed_bytes: u64,
}

impl ServedBy {
    fn new(ram: u64, cache: u64, origin: u64) -> Self {
        ServedBy { total: ram + cache + origin, ram, cache, origin }
    }

    /// Returns the shares of RAM, cache and origin, 0 to 1; `None` if there were no requests.
    pub fn shares(&self) -> Option<[f64; 3]> {
        let share = |part: u64| part as f64 / self.total as f64;
        (self.total > 0).then(|| [self.ram, self.cache, self.origin].map(share))
    }
}

impl ServedReport {
    /// The report of a volume with these counters, which include what its RAM tier, if any, has
    /// read and written below.
    pub fn of(totals: &CounterTotals, ram: &RamTraffic) -> Self {
        let missed = totals.read_partial + totals.read_misses;
        let below = totals.write_hits + totals.write_misses;
        let through = totals.write_through.min(below);
        // Deferred data that was written down is counted below as well, and looks there like data
        // that was passed on at once. The mode sends both the same way.
        let passed = if ram.writes == 0 { below } else { ram.passed_writes };
        let to_origin = u128::from(passed) * u128::from(through) / u128::from(below.max(1));
        let to_origin = u64::try_from(to_origin).unwrap_or(passed);
        ServedReport {
            reads: ServedBy::new(ram.reads, totals.read_hits, missed),
            writes: ServedBy::new(ram.writes, passed - to_origin, to_origin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_what_is_written_down_is_not_counted_again() {
        let totals = CounterTotals {
            read_hits: 50,
            read_partial: 3,
            read_misses: 7,
            write_hits: 30,
            write_misses: 10,
            write_through: 8,
            ..CounterTotals::default()
        };
        let by = |total, ram, cache, origin| ServedBy { total, ram, cache, origin };
        let none = ServedReport::of(&totals, &RamTraffic::default());
        assert_eq!((none.reads, none.writes), (by(60, 0, 50, 10), by(40, 0, 32, 8)));
        let ram = RamTraffic { reads: 40, writes: 1000, passed_writes: 5, ..RamTraffic::default() };
        let served = ServedReport::of(&totals, &ram);
        assert_eq!(served.reads, by(100, 40, 50, 10));
        assert_eq!(served.writes, by(1005, 1000, 4, 1));
        assert_eq!(served.reads.shares(), Some([0.4, 0.5, 0.1]));
        assert_eq!(ServedBy::default().shares(), None);
    }
}
