//! Turns of writers when nearly all of the cache is dirty: see [`forebay_policy::throttle`].
//!
//! Dirty blocks are counted over the whole cache, because its space is shared. A check sums over
//! volumes and lanes, so a lane does it only now and then; while the throttle is engaged, every
//! write checks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;

/// The throttle of a cache.
#[derive(Default)]
pub(crate) struct Throttle {
    /// Whether writes must wait for a turn.
    pub(crate) engaged: AtomicBool,
    /// Whether writers of volumes that cannot, or may not, be written back must wait: they would
    /// take the free space of other volumes for an unknown time.
    pub(crate) crowded: AtomicBool,
    /// Turns of all volumes.
    pub(crate) turns: TurnOrder,
}

/// Gives out turns in the order of asking.
#[derive(Default)]
pub(crate) struct TurnOrder {
    /// The time of the next turn.
    next: AtomicU64,
}

impl Throttle {
    /// Returns whether writes have to wait for a turn.
    #[inline]
    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::Relaxed)
    }
}

impl TurnOrder {
    /// Returns the time of the turn for a write of `blocks` blocks. Turns are in the order of the
    /// calls; each block delays the next turn by `pause`.
    pub(crate) fn turn(&self, now: Nanos, pause: Duration, blocks: u64) -> Nanos {
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX).saturating_mul(blocks);
        let next = |before: u64| Some(before.max(now.0).saturating_add(pause));
        let before = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Nanos(before.unwrap_or_else(|before| before).max(now.0))
    }
}

/// The pauses between turns; `None` if no writer has to wait.
pub(crate) struct Pauses {
    /// Pause for volumes whose dirty blocks can be written back. Bound blocks are subtracted from
    /// the space that they may use.
    pub(crate) others: Option<Duration>,
    /// Pause for bound volumes, which cannot be written back. Their blocks count as dirty, so they
    /// get no more space.
    pub(crate) bound: Option<Duration>,
}

impl Pauses {
    /// Returns the pause for a volume that is bound, or not.
    pub(crate) fn of(&self, is_bound: bool) -> Option<Duration> {
        if is_bound { self.bound } else { self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_given_out_in_order_and_none_is_saved_up() {
        let turns = TurnOrder::default();
        let pause = Duration::from_nanos(10);
        let turn = |now, blocks| turns.turn(Nanos(now), pause, blocks).0;
        assert_eq!([turn(100, 1), turn(100, 2), turn(105, 1)], [100, 110, 130]);
        assert_eq!([turn(140, 1), turn(500, 1), turn(500, 1)], [140, 500, 510]);
        assert_eq!(turns.turn(Nanos(600), Duration::MAX, u64::MAX).0, 600);
        assert_eq!(turn(700, 1), u64::MAX);
    }
}
