//! The orders of volumes, and the keys that choose them.

use std::cmp::Ordering;

use forebay_admin::activity::Activity;

/// The order of the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of their creation.
    Creation,
    /// By name.
    Name,
    /// By hit ratio, the lowest first.
    Hits,
    /// By requests per second, the most first.
    Iops,
    /// By bytes per second, the most first.
    Bytes,
    /// By the 99th percentile, the slowest first.
    Latency,
    /// By data that is not on the origin, the most first.
    Dirty,
    /// By writeback, the fastest first.
    Writeback,
}

impl Order {
    /// Returns the order that a key chooses.
    pub(super) fn of(key: char) -> Option<Self> {
        Some(match key {
            'c' => Order::Creation,
            'n' => Order::Name,
            'h' => Order::Hits,
            'i' => Order::Iops,
            'b' => Order::Bytes,
            'l' => Order::Latency,
            'd' => Order::Dirty,
            'w' => Order::Writeback,
            _ => return None,
        })
    }

    /// Returns the order in words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Creation => "creation",
            Order::Name => "name",
            Order::Hits => "hit ratio",
            Order::Iops => "IOPS",
            Order::Bytes => "MB/s",
            Order::Latency => "P99",
            Order::Dirty => "dirty data",
            Order::Writeback => "writeback",
        }
    }

    /// Compares two volumes.
    pub(super) fn compare(self, one: &Activity, other: &Activity) -> Ordering {
        let most_first = |number: fn(&Activity) -> f64| number(other).total_cmp(&number(one));
        match self {
            Order::Creation => Ordering::Equal,
            Order::Name => one.name.as_str().cmp(other.name.as_str()),
            // Those without reads come last.
            Order::Hits => {
                let ratio = |of: &Activity| of.hit_ratio.unwrap_or(2.0);
                ratio(one).total_cmp(&ratio(other))
            }
            Order::Iops => most_first(|of| of.iops),
            Order::Bytes => most_first(Activity::bytes_per_second),
            Order::Latency => most_first(|of| of.times().p99_us.unwrap_or_default()),
            Order::Dirty => most_first(|of| of.unwritten_bytes().unwrap_or_default() as f64),
            Order::Writeback => most_first(|of| of.writeback.bytes_per_second),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::top::KEYS;

    use super::*;

    #[test]
    fn every_sort_key_in_the_help_has_an_order() {
        let keys = KEYS.iter().filter(|(_, effect)| effect.starts_with("sort by"));
        let keys: Vec<char> =
            keys.flat_map(|(keys, _)| keys.split(", ")).flat_map(str::chars).collect();
        assert_eq!(keys.len(), 8);
        for key in keys {
            assert!(Order::of(key).is_some(), "{key}");
        }
    }
}
