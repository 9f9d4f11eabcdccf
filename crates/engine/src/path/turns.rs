//! Throttling of writes when nearly all of the cache is dirty: they take turns.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_policy::throttle;

use crate::lane::LaneVolume;
use crate::state::cache::Cache;
use crate::state::throttle::{Pauses, TurnOrder};
use crate::state::volume::{Volume, VolumeState};

/// Shorter waits are not worth a timer.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// Waiting writes check at this interval whether the volume is being stopped.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

impl Cache {
    /// Returns the highest share of the cache, in percent, that may be dirty before a volume's
    /// writeback starts.
    fn dirty_limit(&self) -> u8 {
        self.volumes_max(|volume| u64::from(volume.dirty_limit())).min(100) as u8
    }

    /// Returns how many blocks may be dirty before reclaim has nothing left to free.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let segments = u64::from(self.store.segments.count());
        let free = u64::from(self.free_target());
        // A cache of a few segments keeps nearly all of them free.
        let blocks = segments.saturating_sub(free).max(segments / 4).max(1);
        let blocks = blocks * self.store.cells_per_segment();
        // Pinned and guarded blocks reduce the usable space like segments that are kept free.
        blocks.saturating_sub(self.sum_volumes(Volume::staying_blocks)).max(blocks / 4)
    }

    /// Returns the present pauses between turns, and engages or releases the throttle accordingly.
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
        let some_wait =
            || self.sum_volumes(|volume| u64::from(self.pause_of_share(volume).is_some())) > 0;
        let engaged = pauses.others.is_some() || crowded || some_wait();
        self.throttle.engaged.store(engaged, Ordering::Relaxed);
        pauses
    }

    /// Returns the pause of a volume whose share of the cache is nearly all dirty.
    fn pause_of_share(&self, volume: &Volume) -> Option<Duration> {
        let most = volume.share.most_blocks()?;
        throttle::pause(self.unwritten_of(volume), most, volume.dirty_limit())
    }

    /// Returns whether writers of a volume have to wait for turns at present, because of the whole
    /// cache or of the volume's share; engages or releases the throttle accordingly.
    pub(crate) fn makes_wait(&self, volume: &Volume) -> bool {
        self.pauses().of(volume.is_bound()).is_some() || self.pause_of_share(volume).is_some()
    }

    /// Returns the number of dirtied blocks after which a lane checks the throttle: small enough
    /// that little has changed, and large enough to be cheap.
    pub(crate) fn look_after(&self) -> u64 {
        (self.usable_blocks() / 256).clamp(16, 256)
    }
}

/// Throttles the writes of a volume on one lane.
#[derive(Clone, Copy)]
pub(crate) struct Turns<'a>(pub(crate) &'a LaneVolume);

impl Turns<'_> {
    /// Counts a block that has become dirty, and checks the throttle after every `look_after`
    /// blocks.
    #[inline]
    pub(crate) fn count_dirtied(self) {
        let count = self.0.dirtied.get() + 1;
        if count < self.0.look_after {
            self.0.dirtied.set(count);
            return;
        }
        self.0.dirtied.set(0);
        if self.0.cache.makes_wait(&self.0.volume) {
            // Wake writeback: it should now run as fast as it can.
            for volume in self.0.cache.volumes() {
                volume.writeback.wanted.notify_all();
            }
        }
    }

    /// Waits for a write's turn if the throttle is engaged. Blocks that are dirty already need no
    /// turn, because overwriting them takes no more space. On ordered volumes they do, because
    /// older versions stay.
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
        // Stop waiting if the volume stops: there is free space, so the stop need not wait for the
        // disk. Also stop if the cache device fails, because no space will become free.
        let waits = || volume.state() == VolumeState::Running && !store.health.failed();
        let mut pause = self.0.cache.pauses().of(volume.is_bound());
        // While an origin accepts no writes, its volume only gains dirty blocks. Its writers
        // therefore wait for the origin, so that other volumes keep their free space.
        while self.0.cache.throttle.crowded.load(Ordering::Relaxed)
            && volume.may_be_bound()
            && waits()
            && store.volumes().len() > 1
        {
            self.0.lane().sleep(LONGEST_SLEEP).await;
            pause = self.0.cache.pauses().of(volume.is_bound());
        }
        let of = |turns: &TurnOrder, pause| turns.turn(self.0.now(), pause, blocks);
        let by_cache = pause.map(|pause| of(&self.0.cache.throttle.turns, pause));
        let by_share = self.0.cache.pause_of_share(volume).map(|it| of(&volume.share.turns, it));
        let Some(turn) = by_cache.max(by_share) else { return };
        while waits() {
            let left = turn.since(self.0.now());
            if left < SHORTEST_WAIT {
                return;
            }
            self.0.lane().sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}
