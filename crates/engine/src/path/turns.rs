//! Turns of writes when nearly all of the cache is dirty.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_policy::throttle;

use crate::lane::LaneVolume;
use crate::state::cache::Cache;
use crate::state::throttle::Pauses;
use crate::state::volume::VolumeState;

/// Waits that are shorter than this are not worth a timer.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// Who waits looks this often whether the volume is being stopped.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

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
            others: throttle::pause(
                unwritten.saturating_sub(bound),
                usable.saturating_sub(bound),
                limit,
            ),
            bound: throttle::pause(unwritten, usable, limit),
        };
        let some_are_bound =
            || bound > 0 || self.sum_volumes(|volume| u64::from(volume.may_be_bound())) > 0;
        let crowded = pauses.bound.is_some() && some_are_bound();
        self.throttle.crowded.store(crowded, Ordering::Relaxed);
        self.throttle.engaged.store(pauses.others.is_some() || crowded, Ordering::Relaxed);
        pauses
    }

    /// A lane looks whether writes have to ask for a turn after so many blocks: before much has
    /// changed, and not more often than is cheap.
    pub(crate) fn look_after(&self) -> u64 {
        (self.usable_blocks() / 256).clamp(16, 256)
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Turns<'a>(pub(crate) &'a LaneVolume);

impl Turns<'_> {
    /// Counts a block that has become dirty. Once in a while the lane looks how many there are.
    #[inline]
    pub(crate) fn count_dirtied(self) {
        let count = self.0.dirtied.get() + 1;
        if count < self.0.look_after {
            self.0.dirtied.set(count);
            return;
        }
        self.0.dirtied.set(0);
        if self.0.cache.pauses().of(self.0.volume.is_bound()).is_some() {
            // Writeback is to be as fast as it can from now on.
            for volume in self.0.cache.volumes() {
                volume.writeback_wanted.notify_all();
            }
        }
    }

    /// Waits for the turn of a write to the log, if there are turns. Blocks that are dirty already need
    /// none, unless their older versions stay: they make nothing worse.
    pub(crate) async fn wait_for_turn(self, offset: u64, len: u64) {
        if !self.0.cache.throttle.is_engaged() {
            return;
        }
        let store = &self.0.cache.store;
        let (volume, space) = (&self.0.volume, &self.0.volume.space);
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
        let mut pause = self.0.cache.pauses().of(volume.is_bound());
        // Before an origin that does not take them, dirty blocks become more and never fewer: these
        // writers wait for the origin while there is room for others.
        while self.0.cache.throttle.crowded.load(Ordering::Relaxed)
            && volume.may_be_bound()
            && waits()
            && store.volumes().len() > 1
        {
            self.0.lane().sleep(LONGEST_SLEEP).await;
            pause = self.0.cache.pauses().of(volume.is_bound());
        }
        let Some(pause) = pause else { return };
        let turn = self.0.cache.throttle.turn(self.0.now(), pause, blocks);
        while waits() {
            let left = turn.since(self.0.now());
            if left < SHORTEST_WAIT {
                return;
            }
            self.0.lane().sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}
