//! Turns of clients when nearly all of the cache is dirty: see [`forebay_policy::brake`].
//!
//! What is dirty counts for the whole cache, because room does. Looking costs a sum over volumes and
//! lanes, so a lane does it once in a while; while clients have to wait, every write looks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_policy::brake;

use crate::cache::Cache;
use crate::lane::LaneVolume;
use crate::volume::{Volume, VolumeState};

/// Waits that are shorter than this are not worth a timer.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// Who waits looks this often whether the volume is being stopped.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub(crate) struct Brake {
    /// Whether writes have to ask for a turn.
    engaged: AtomicBool,
    /// Whether those have to wait that would leave others less room, and for who knows how long.
    crowded: AtomicBool,
    /// When the next turn is.
    next: AtomicU64,
}

impl Brake {
    /// Whether writes have to ask for a turn.
    #[inline]
    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::Relaxed)
    }

    /// Gives out the turn for so many blocks: in the order of asking, each `pause` after the one
    /// before.
    fn turn(&self, now: Nanos, pause: Duration, blocks: u64) -> Nanos {
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
    others: Option<Duration>,
    /// For the volumes of those blocks, which get no more of them for that.
    bound: Option<Duration>,
}

impl Pauses {
    pub(crate) fn of(&self, volume: &Volume) -> Option<Duration> {
        if volume.is_bound() { self.bound } else { self.others }
    }
}

impl Cache {
    /// The highest share, in percent, that may be dirty before writeback starts.
    fn dirty_limit(&self) -> u8 {
        self.volumes_max(|volume| u64::from(volume.dirty_limit())).min(100) as u8
    }

    /// Blocks that may be dirty before reclaim has nothing left to work with.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let segments = u64::from(self.store.segments.count());
        let free = u64::from(self.free_target());
        // In a cache of a few segments nearly all are kept free.
        segments.saturating_sub(free).max(segments / 4).max(1) * self.store.cells_per_segment()
    }

    /// How far the turns of dirty blocks are apart at present.
    pub(crate) fn pauses(&self) -> Pauses {
        let (unwritten, usable, limit) =
            (self.unwritten_blocks(), self.usable_blocks(), self.dirty_limit());
        let bound = self.bound_blocks();
        let pauses = Pauses {
            others: brake::pause(
                unwritten.saturating_sub(bound),
                usable.saturating_sub(bound),
                limit,
            ),
            bound: brake::pause(unwritten, usable, limit),
        };
        let some_are_bound =
            || bound > 0 || self.sum_volumes(|volume| u64::from(volume.may_be_bound())) > 0;
        let crowded = pauses.bound.is_some() && some_are_bound();
        self.brake.crowded.store(crowded, Ordering::Relaxed);
        self.brake.engaged.store(pauses.others.is_some() || crowded, Ordering::Relaxed);
        pauses
    }

    /// A lane looks whether writes have to ask for a turn after so many blocks: before much has
    /// changed, and not more often than is cheap.
    pub(crate) fn look_after(&self) -> u64 {
        (self.usable_blocks() / 256).clamp(16, 256)
    }
}

impl LaneVolume {
    /// Counts a block that has become dirty. Once in a while the lane looks how many there are.
    #[inline]
    pub(crate) fn count_dirtied(&self) {
        let count = self.dirtied.get() + 1;
        if count < self.look_after {
            self.dirtied.set(count);
            return;
        }
        self.dirtied.set(0);
        if self.cache.pauses().of(&self.volume).is_some() {
            // Writeback is to be as fast as it can from now on.
            for volume in self.cache.volumes() {
                volume.writeback_wanted.notify_all();
            }
        }
    }

    /// Waits for the turn of a write to the log, if there are turns. Blocks that are dirty already need
    /// none, unless their older versions stay: they make nothing worse.
    pub(crate) async fn wait_for_turn(&self, offset: u64, len: u64) {
        if !self.cache.brake.is_engaged() {
            return;
        }
        let store = &self.cache.store;
        let (volume, space) = (&self.volume, &self.volume.space);
        let blocks = volume.pieces(offset, len).filter(|piece| {
            volume.is_ordered()
                || store.peek(space, piece.block).is_none_or(|found| !found.entry.dirty)
        });
        let blocks = blocks.count() as u64;
        if blocks == 0 {
            return;
        }
        // Whoever stops the volume need not wait for the disk: there is room. Where the cache device has
        // failed there will be none.
        let waits = || volume.state() == VolumeState::Running && !store.health.failed();
        let mut pause = self.cache.pauses().of(volume);
        // Before an origin that does not take them, dirty blocks become more and never fewer: these
        // writers wait for the origin while there is room for others.
        while self.cache.brake.crowded.load(Ordering::Relaxed)
            && volume.may_be_bound()
            && waits()
            && store.volumes().len() > 1
        {
            self.lane().sleep(LONGEST_SLEEP).await;
            pause = self.cache.pauses().of(volume);
        }
        let Some(pause) = pause else { return };
        let turn = self.cache.brake.turn(self.now(), pause, blocks);
        while waits() {
            let left = turn.since(self.now());
            if left < SHORTEST_WAIT {
                return;
            }
            self.lane().sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_given_out_in_order_and_none_is_saved_up() {
        let brake = Brake::default();
        let pause = Duration::from_nanos(10);
        let turn = |now, blocks| brake.turn(Nanos(now), pause, blocks).0;
        assert_eq!([turn(100, 1), turn(100, 2), turn(105, 1)], [100, 110, 130]);
        assert_eq!([turn(140, 1), turn(500, 1), turn(500, 1)], [140, 500, 510]);
        assert_eq!(brake.turn(Nanos(600), Duration::MAX, u64::MAX).0, 600);
        assert_eq!(turn(700, 1), u64::MAX);
    }
}
