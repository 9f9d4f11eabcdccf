//! The number of blocks that the policy keeps: its share of the usable blocks, or fewer.
//!
//! The share assumes a log in which only kept blocks stay. But demoted dirty blocks stay too, and
//! overwritten blocks leave holes. If reclaim finds even the cheapest segment too full, it evicts
//! all clean blocks in it, whatever their value. The policy then keeps fewer blocks, until that is
//! rare.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_policy::Shares;

/// The policy gives up `1 / YIELDED_AT_ONCE` of the usable blocks for a segment that is too full,
/// and regains less for each that is not: in the long run one segment of seventeen is too full.
const YIELDED_AT_ONCE: u64 = 128;
const REGAINED_AT_ONCE: u64 = 2048;

/// See the module.
pub(crate) struct Kept {
    shares: Shares,
    yielded: AtomicU64,
}

impl Kept {
    pub(super) fn new(shares: Shares) -> Self {
        Kept { shares, yielded: AtomicU64::new(0) }
    }

    /// Returns how many blocks are kept at most; at least 1.
    pub(crate) fn most(&self) -> u64 {
        self.shares.kept.saturating_sub(self.yielded.load(Ordering::Relaxed)).max(1)
    }

    /// Adapts to a segment that reclaim took as the cheapest. Only one task reclaims.
    pub(crate) fn found(&self, too_full: bool) {
        let part = |parts: u64| (self.shares.room / parts).max(1);
        let yielded = self.yielded.load(Ordering::Relaxed);
        let next = match too_full {
            true => (yielded + part(YIELDED_AT_ONCE)).min(self.shares.kept / 2),
            false => yielded.saturating_sub(part(REGAINED_AT_ONCE)),
        };
        self.yielded.store(next, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use forebay_core::ReplacementKind;

    use super::*;

    #[test]
    fn full_segments_lower_the_kept_share_and_others_raise_it() {
        let kept = Kept::new(Shares::of(20_480, ReplacementKind::Lru));
        assert_eq!(kept.most(), 18_432);
        kept.found(false);
        assert_eq!(kept.most(), 18_432);
        kept.found(true);
        assert_eq!(kept.most(), 18_432 - 160);
        (0..15).for_each(|_| kept.found(false));
        assert_eq!(kept.most(), 18_432 - 10);
        (0..1000).for_each(|_| kept.found(true));
        assert_eq!(kept.most(), 18_432 / 2);
    }

    #[test]
    fn the_smallest_cache_keeps_a_block() {
        let kept = Kept::new(Shares::of(1, ReplacementKind::Lru));
        (0..3).for_each(|_| kept.found(true));
        assert_eq!(kept.most(), 1);
    }
}
