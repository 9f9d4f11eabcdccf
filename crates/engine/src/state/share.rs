//! A volume's share of the cache: the largest part of the cache that it may occupy, and the part of
//! its data that other volumes cannot displace.
//!
//! The blocks of a volume are not counted on the data path, because every lane would write the
//! number. If the volume has a share, `background::shares` counts them in the index from time to
//! time; evictions in between are subtracted. So the number is never too high, apart from discarded
//! blocks.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::state::occupancy::Occupancy;
use crate::state::throttle::TurnOrder;

/// The percentage of the cache that all least shares and pinned blocks together can guard. Segments
/// that are three quarters guarded are not reclaimed (see `background::reclaim`), so some segments
/// must remain.
const GUARDED: u64 = 60;

/// A volume's share. A volume without a share costs a request one load.
pub(crate) struct Share {
    /// Guarded share, in percent of the cache; 0 if nothing is guarded.
    least: AtomicU8,
    /// Largest share, in percent of the cache; 100: everything.
    most: AtomicU8,
    /// The same in blocks, once they have been counted.
    least_blocks: AtomicU64,
    most_blocks: AtomicU64,
    /// Cached blocks, and those that the replacement policy keeps.
    cached: AtomicU64,
    kept: AtomicU64,
    /// Turns of writers while nearly all of the share is dirty.
    pub(crate) turns: TurnOrder,
}

impl Default for Share {
    fn default() -> Self {
        Share {
            least: AtomicU8::new(0),
            most: AtomicU8::new(100),
            least_blocks: AtomicU64::new(0),
            most_blocks: AtomicU64::new(u64::MAX),
            cached: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            turns: TurnOrder::default(),
        }
    }
}

impl Share {
    /// Sets the shares, in percent of the cache. A lower share takes effect at the next count.
    pub(crate) fn set(&self, least: u8, most: u8) {
        self.least.store(least, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
        if least == 0 {
            self.least_blocks.store(0, Ordering::Relaxed);
        }
        if most >= 100 {
            self.most_blocks.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Returns the shares, in percent of the cache.
    pub(crate) fn percents(&self) -> (u8, u8) {
        (self.least.load(Ordering::Relaxed), self.most.load(Ordering::Relaxed))
    }

    /// Returns whether the volume has a share.
    pub(crate) fn is_set(&self) -> bool {
        self.percents() != (0, 100)
    }

    /// Takes a count of the volume's blocks in a cache of `capacity` blocks, of which `pinned` are
    /// pinned. `all_least`: the sum of the least shares of all volumes, in percent.
    pub(crate) fn count(&self, own: Occupancy, capacity: u64, pinned: u64, all_least: u64) {
        let (least, most) = self.percents();
        let of_capacity = |percent: u64| capacity * percent / 100;
        let guarded = of_capacity(GUARDED).saturating_sub(pinned).min(of_capacity(all_least));
        let least = guarded * u64::from(least) / all_least.max(1);
        let most = if most < 100 { of_capacity(u64::from(most)).max(1) } else { u64::MAX };
        self.cached.store(own.cached, Ordering::Relaxed);
        self.kept.store(own.kept, Ordering::Relaxed);
        self.least_blocks.store(least, Ordering::Relaxed);
        self.most_blocks.store(most, Ordering::Relaxed);
    }

    /// Returns the most blocks that the volume may have; `None` without a limit.
    pub(crate) fn most_blocks(&self) -> Option<u64> {
        Some(self.most_blocks.load(Ordering::Relaxed)).filter(|most| *most < u64::MAX)
    }

    /// Returns the number of blocks by which the volume exceeds its share.
    pub(crate) fn excess(&self) -> u64 {
        let most = self.most_blocks.load(Ordering::Relaxed);
        self.cached.load(Ordering::Relaxed).saturating_sub(most)
    }

    /// Returns the number of present blocks that other volumes must not displace.
    pub(crate) fn guarded(&self) -> u64 {
        self.least_blocks.load(Ordering::Relaxed).min(self.cached.load(Ordering::Relaxed))
    }

    /// Returns how many blocks the replacement policy must not give up.
    pub(crate) fn kept_for_good(&self) -> u64 {
        self.least_blocks.load(Ordering::Relaxed).min(self.kept.load(Ordering::Relaxed))
    }

    /// Returns how many blocks may be evicted.
    pub(crate) fn spare(&self) -> u64 {
        match self.least_blocks.load(Ordering::Relaxed) {
            0 => u64::MAX,
            least => self.cached.load(Ordering::Relaxed).saturating_sub(least),
        }
    }

    /// Returns whether the replacement policy may give up a block.
    pub(crate) fn may_demote(&self) -> bool {
        let least = self.least_blocks.load(Ordering::Relaxed);
        least == 0 || self.kept.load(Ordering::Relaxed) > least
    }

    /// Records that the policy no longer keeps a block.
    pub(crate) fn demoted(&self) {
        decrease(&self.kept);
    }

    /// Records that a block has been evicted.
    pub(crate) fn evicted(&self) {
        decrease(&self.cached);
    }
}

/// Subtracts without an atomic read-modify-write: reclaim and `background::shares` run on one lane.
fn decrease(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(share: &Share, cached: u64, pinned: u64, all_least: u64) {
        share.count(
            Occupancy { cached, kept: cached / 2, ..Occupancy::default() },
            1000,
            pinned,
            all_least,
        );
    }

    #[test]
    fn a_volume_without_a_share_is_free() {
        let share = Share::default();
        counted(&share, 900, 0, 0);
        assert!(!share.is_set() && share.may_demote());
        assert_eq!((share.excess(), share.guarded(), share.spare()), (0, 0, u64::MAX));
        assert_eq!(share.most_blocks(), None);
    }

    #[test]
    fn least_and_most_hold_after_a_count() {
        let share = Share::default();
        share.set(20, 30);
        assert_eq!((share.excess(), share.guarded()), (0, 0), "nothing is counted yet");
        counted(&share, 350, 0, 20);
        assert_eq!((share.excess(), share.guarded()), (50, 200));
        assert_eq!(share.spare(), 150);
        assert!(!share.may_demote(), "175 are kept");
        assert_eq!(share.most_blocks(), Some(300));
        (0..200).for_each(|_| share.evicted());
        assert_eq!((share.excess(), share.guarded(), share.spare()), (0, 150, 0));
        share.set(0, 100);
        assert_eq!((share.excess(), share.guarded(), share.spare()), (0, 0, u64::MAX));
    }

    #[test]
    fn guarded_shares_shrink_to_blocks_that_can_be_guarded() {
        let share = Share::default();
        share.set(60, 100);
        counted(&share, 1000, 0, 100);
        assert_eq!(share.guarded(), 360, "of 600");
        counted(&share, 1000, 400, 60);
        assert_eq!(share.guarded(), 200, "400 are pinned");
        counted(&share, 1000, 700, 60);
        assert_eq!((share.guarded(), share.spare()), (0, u64::MAX));
    }
}
