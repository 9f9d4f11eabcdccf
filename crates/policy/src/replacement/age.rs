//! How long ago a block was used: a 4-bit class per block, and the clock that classes refer to.
//!
//! Time is counted in epochs. An epoch ends when as many blocks as an eighth of the cache holds
//! have been used, each counted once per epoch however often it is hit: that is what LRU's order
//! means by age, while a count of requests would run ahead as the hit ratio rises. Coarse
//! generations in place of a list are those of the multi-generational LRU of Linux, and, with a few
//! bits per block, of CLOCK (Corbato, 1969).
//!
//! Of the 16 classes, class 0 is "old" for ever, and epoch `e` has class `1 + e % 15`. A class must
//! not be used again while blocks of its former epoch still have it, or they would turn from oldest
//! to newest. So the index is passed once every [`EpochClock::SHARES`] epochs, a share in each, and
//! what is [`Age::OLD_FROM`] epochs old becomes old for good ([`Age::refreshed`]). A block that was
//! a little younger than that is passed again four epochs later, when its class is still its own:
//! 10 + 4 < 15. The clock enforces it: it does not advance before the share of the present epoch is
//! reported done. A share is a quarter of the index, and an epoch at least an eighth of the cache's
//! blocks used: two index entries per block used.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Classes that stand for an epoch.
const EPOCH_CLASSES: u32 = 15;

/// Age class of a block: 4 bits in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Age(u8);

impl Age {
    /// Used longer ago than can be told.
    pub const OLD: Age = Age(0);

    /// Distance from which on a block is old.
    pub const OLD_FROM: u8 = 11;

    /// Distance that stands for "old".
    pub const FARTHEST: u8 = 15;

    /// The class that is stored as `bits`; only the lower 4 bits count.
    #[inline]
    pub fn from_bits(bits: u8) -> Self {
        Age(bits & 0x0f)
    }

    /// What is stored: 0 to 15.
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    fn of_epoch(epoch: u32) -> Self {
        Age(1 + (epoch % EPOCH_CLASSES) as u8)
    }

    /// Epochs since the block was used, 0 to 14, or [`Age::FARTHEST`] if it is old; `now` is the
    /// class of the present epoch.
    #[inline]
    pub fn distance(self, now: Age) -> u8 {
        if self == Age::OLD || now == Age::OLD {
            return Age::FARTHEST;
        }
        let classes = EPOCH_CLASSES as u8;
        let ahead = now.0 + classes - self.0;
        if ahead >= classes { ahead - classes } else { ahead }
    }

    /// The class that a block is to have after its share of the index was passed; mostly the same.
    #[inline]
    pub fn refreshed(self, now: Age) -> Age {
        if self.distance(now) >= Age::OLD_FROM { Age::OLD } else { self }
    }
}

/// Tells the present epoch to all lanes. Shared; needs no lock.
///
/// Policies that do not look at ages need no clock: nobody has to call [`EpochClock::tick`], and
/// the epoch never changes.
#[derive(Debug)]
pub struct EpochClock {
    /// Blocks used in this epoch.
    used: AtomicU64,
    epoch_blocks: u64,
    epoch: AtomicU32,
    /// The epoch whose share of the index was passed last.
    shares_done: AtomicU32,
}

impl EpochClock {
    /// The index is passed once in as many epochs.
    pub const SHARES: u32 = 4;

    /// A clock at epoch 0 for a cache of `capacity_blocks` blocks: an epoch is an eighth of them,
    /// and one at least.
    ///
    /// After a restart ages are unknown: give recovered blocks [`Age::OLD`], or a class of this
    /// clock.
    pub fn new(capacity_blocks: u64) -> Self {
        EpochClock {
            used: AtomicU64::new(0),
            epoch_blocks: (capacity_blocks / 8).max(1),
            epoch: AtomicU32::new(0),
            shares_done: AtomicU32::new(0),
        }
    }

    /// The class of the present epoch: what a block gets that is inserted, and what hits are
    /// compared with.
    #[inline]
    pub fn now(&self) -> Age {
        Age::of_epoch(self.epoch())
    }

    /// The present epoch.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// `blocks` blocks were inserted by requests or got another class by a hit. Lanes may save up
    /// and tell many at once.
    ///
    /// Returns the new epoch to the one caller who advanced it. It must see to it that
    /// [`EpochClock::share`] of the index is passed in the course of that epoch, that
    /// [`EpochClock::share_done`] is called then, and that the count of touches of each segment
    /// becomes [`super::SegmentInfo::cooled`]. Nothing needs passing in epoch 0, as no class has
    /// been used before.
    pub fn tick(&self, blocks: u64) -> Option<u32> {
        let used = self.used.fetch_add(blocks, Ordering::Relaxed).saturating_add(blocks);
        if used < self.epoch_blocks {
            return None;
        }
        let epoch = self.epoch();
        if self.shares_done.load(Ordering::Acquire) != epoch {
            return None;
        }
        let next = epoch.wrapping_add(1);
        let advanced =
            self.epoch.compare_exchange(epoch, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if advanced {
            self.used.store(0, Ordering::Relaxed);
        }
        advanced.then_some(next)
    }

    /// The buckets, out of `buckets`, that are to be passed in `epoch`: each entry's class becomes
    /// [`Age::refreshed`].
    pub fn share(epoch: u32, buckets: usize) -> Range<usize> {
        let bound =
            |share: u32| (buckets as u128 * u128::from(share) / u128::from(Self::SHARES)) as usize;
        let share = epoch % Self::SHARES;
        bound(share)..bound(share + 1)
    }

    /// The share of `epoch` was passed; the clock may advance.
    pub fn share_done(&self, epoch: u32) {
        self.shares_done.store(epoch, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_for_every_pair_of_epochs() {
        for now in 0..100u32 {
            for back in 0..15u32.min(now + 1) {
                let age = Age::of_epoch(now - back);
                assert_eq!(u32::from(age.distance(Age::of_epoch(now))), back);
                let refreshed = age.refreshed(Age::of_epoch(now));
                assert_eq!(refreshed, if back >= 11 { Age::OLD } else { age });
            }
            assert_eq!(Age::OLD.distance(Age::of_epoch(now)), Age::FARTHEST);
            assert_eq!(Age::OLD.refreshed(Age::of_epoch(now)), Age::OLD);
        }
    }

    #[test]
    fn shares_cover_the_index_once() {
        for buckets in [0, 1, 3, 4, 7, 1000, usize::MAX] {
            let mut end = 0;
            for epoch in 8..12 {
                let share = EpochClock::share(epoch, buckets);
                assert_eq!(share.start, end);
                end = share.end;
            }
            assert_eq!(end, buckets);
        }
    }

    #[test]
    fn the_clock_waits_for_the_share() {
        let clock = EpochClock::new(80);
        assert_eq!(clock.tick(9), None);
        assert_eq!(clock.tick(1), Some(1));
        assert_eq!(clock.tick(1000), None);
        clock.share_done(1);
        assert_eq!(clock.tick(0), Some(2));
        assert_eq!((clock.epoch(), clock.tick(9)), (2, None));
    }

    /// Shares are passed as early or late as allowed: no class ever lies about its epoch.
    #[test]
    fn no_block_ever_looks_younger_than_it_is() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let clock = EpochClock::new(8);
            let mut blocks = vec![(clock.now(), 0u32); 64];
            for _ in 0..5000 {
                let epoch = clock.epoch();
                let now = clock.now();
                for (age, used) in &blocks {
                    let truth = epoch - used;
                    let told = u32::from(age.distance(now));
                    assert!(told == truth || (told == 15 && truth >= 11), "{told} for {truth}");
                }
                match rng.u8(..3) {
                    0 => blocks[rng.usize(..64)] = (now, epoch),
                    1 => {
                        for (age, _) in &mut blocks[EpochClock::share(epoch, 64)] {
                            *age = age.refreshed(now);
                        }
                        clock.share_done(epoch);
                    }
                    _ => drop(clock.tick(1)),
                }
            }
            assert!(clock.epoch() > 100);
        }
    }
}
