//! Dirty blocks that the origin refuses although it accepts others: bad sectors of a disk. They
//! stay dirty, are reported, and are tried again more and more rarely, because a disk may replace a
//! bad sector when it is written. Other blocks do not wait for them (invariants 16 and 18).
//!
//! If the origin accepts nothing, splitting is useless: after [`IN_VAIN`] successive failed writes,
//! runs are no longer split to isolate the good blocks.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_device::DeviceError;
use parking_lot::Mutex;

use crate::state::bad::BadBlockSet;

/// Number of consecutive failed writes that count as the origin's failure, not that of some
/// sectors.
const IN_VAIN: u32 = 32;

/// Maximum number of blocks that are listed. Beyond this, whole runs fail.
const MOST_LISTED: usize = 1 << 16;

/// Refused blocks are tried again after this time, doubled each time up to `RARELY`.
const SOON: Duration = Duration::from_secs(1);
const RARELY: Duration = Duration::from_secs(60);

/// The dirty blocks that a volume's origin refuses.
#[derive(Default)]
pub(crate) struct Refused {
    any: AtomicBool,
    list: Mutex<RefusedBlocks>,
    /// Number of failed writes since the last successful one, or since the last pause.
    in_vain: AtomicU32,
    /// Whether [`IN_VAIN`] writes have failed and none has succeeded since.
    takes_nothing: AtomicBool,
}

/// The blocks and the time of the next attempt.
#[derive(Default)]
pub(crate) struct RefusedBlocks {
    pub(crate) bad: BadBlockSet,
    /// The error of the last failed write of a single listed block.
    pub(crate) error: Option<DeviceError>,
    pause: Duration,
    again: Nanos,
}

impl Refused {
    /// Returns whether any block is refused.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Gives access to the list.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut RefusedBlocks) -> T) -> T {
        let mut list = self.list.lock();
        let result = work(&mut list);
        self.any.store(!list.bad.blocks.is_empty(), Ordering::Relaxed);
        result
    }

    /// Records a successful write. Returns whether the origin accepted nothing before.
    pub(crate) fn succeeded(&self) -> bool {
        if self.in_vain.load(Ordering::Relaxed) > 0 {
            self.in_vain.store(0, Ordering::Relaxed);
        }
        self.takes_nothing.load(Ordering::Relaxed)
            && self.takes_nothing.swap(false, Ordering::Relaxed)
    }

    /// Records a failed write. Returns whether others may succeed, so that a run is worth
    /// splitting.
    pub(crate) fn failed(&self) -> bool {
        let worth = self.in_vain.fetch_add(1, Ordering::Relaxed).saturating_add(1) < IN_VAIN;
        if !worth {
            self.takes_nothing.store(true, Ordering::Relaxed);
        }
        worth
    }

    /// Returns whether the last writes have all failed, and are too many for bad sectors.
    pub(crate) fn takes_nothing(&self) -> bool {
        self.takes_nothing.load(Ordering::Relaxed)
    }

    /// Restarts the count: after a pause, an origin that accepts nothing gets a few more attempts.
    pub(crate) fn count_anew(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
    }
}

impl RefusedBlocks {
    /// Returns whether another block can be listed.
    pub(crate) fn has_room(&self) -> bool {
        self.bad.blocks.len() < MOST_LISTED
    }

    /// Sets the time of the next attempt, if none is set.
    pub(crate) fn plan(&mut self, now: Nanos) {
        if self.again <= now {
            self.pause = (self.pause * 2).clamp(SOON, RARELY);
            self.again = now + self.pause;
        }
    }

    /// Returns whether an attempt is due.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        !self.bad.blocks.is_empty() && now >= self.again
    }

    /// Begins a round: all blocks are tried once more.
    pub(crate) fn begin_round(&mut self) {
        self.bad.round += 1;
        self.bad.tried = 0;
    }

    /// Forgets the pauses of blocks that are no longer refused.
    pub(crate) fn rest(&mut self) {
        if self.bad.blocks.is_empty() {
            (self.pause, self.again, self.error) = (Duration::ZERO, Nanos(0), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_origin_is_told_from_one_with_bad_sectors() {
        let refused = Refused::default();
        for _ in 0..3 {
            assert!((1..IN_VAIN).all(|_| refused.failed()));
            assert!(!refused.succeeded(), "it has taken something");
        }
        assert!((1..IN_VAIN).all(|_| refused.failed()));
        assert!(!refused.failed());
        refused.count_anew();
        assert!(refused.failed());
        assert!(refused.succeeded(), "it took nothing before");
        assert!(!refused.succeeded());
    }

    #[test]
    fn attempts_become_rare_and_soon_again_once_all_is_well() {
        let (mut list, block) = (RefusedBlocks::default(), forebay_core::OriginBlock(7));
        let mut now = Nanos(1);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            list.bad.add(block);
            list.plan(now);
            list.plan(now);
            assert!(!list.is_due(now + Duration::from_millis(seconds * 1000 - 1)));
            now = now + Duration::from_secs(seconds);
            assert!(list.is_due(now));
            list.begin_round();
        }
        list.bad.remove(block);
        list.rest();
        list.bad.add(block);
        list.plan(now);
        assert!(list.is_due(now + Duration::from_secs(1)));
    }
}
