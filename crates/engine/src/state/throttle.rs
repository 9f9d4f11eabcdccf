//! Turns of clients when nearly all of the cache is dirty: see [`forebay_policy::throttle`].
//!
//! What is dirty counts for the whole cache, because room does. Looking costs a sum over volumes and
//! lanes, so a lane does it once in a while; while clients have to wait, every write looks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;

/// See the module.
#[derive(Default)]
pub(crate) struct Throttle {
    /// Whether writes have to ask for a turn.
    pub(crate) engaged: AtomicBool,
    /// Whether those have to wait that would leave others less room, and for who knows how long.
    pub(crate) crowded: AtomicBool,
    /// When the next turn is.
    next: AtomicU64,
}

impl Throttle {
    /// Whether writes have to ask for a turn.
    #[inline]
    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::Relaxed)
    }

    /// Gives out the turn for so many blocks: in the order of asking, each `pause` after the one
    /// before.
    pub(crate) fn turn(&self, now: Nanos, pause: Duration, blocks: u64) -> Nanos {
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX).saturating_mul(blocks);
        let next = |before: u64| Some(before.max(now.0).saturating_add(pause));
        let before = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Nanos(before.unwrap_or_else(|before| before).max(now.0))
    }
}

/// How far turns are apart; `None`: nobody has to wait.
pub(crate) struct Pauses {
    /// For volumes whose dirty blocks leave the cache. Blocks that nothing gets out of it leave these
    /// so much less to use.
    pub(crate) others: Option<Duration>,
    /// For the volumes of those blocks, which get no more of them for that.
    pub(crate) bound: Option<Duration>,
}

impl Pauses {
    /// For a volume of the one kind or the other.
    pub(crate) fn of(&self, is_bound: bool) -> Option<Duration> {
        if is_bound { self.bound } else { self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_given_out_in_order_and_none_is_saved_up() {
        let throttle = Throttle::default();
        let pause = Duration::from_nanos(10);
        let turn = |now, blocks| throttle.turn(Nanos(now), pause, blocks).0;
        assert_eq!([turn(100, 1), turn(100, 2), turn(105, 1)], [100, 110, 130]);
        assert_eq!([turn(140, 1), turn(500, 1), turn(500, 1)], [140, 500, 510]);
        assert_eq!(throttle.turn(Nanos(600), Duration::MAX, u64::MAX).0, 600);
        assert_eq!(turn(700, 1), u64::MAX);
    }
}
