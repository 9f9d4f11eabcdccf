//! Ordered writeback: the origin gets the writes between two flushes, a group, as a whole before it
//! gets any later write (invariant 28). The store tracks which versions belong to a group; see
//! `store::ordered`.
//!
//! The blocks of a group are written in address order, many at a time; then the origin is synced;
//! then the next group may follow. The horizon is the durable record of the origin's progress. It
//! must be made durable in between if the log still has a version that must not overwrite the
//! origin's present one; otherwise it is updated for several groups together.
//!
//! Blocks that the origin refuses stop the order: a later write would give the origin a state that
//! never existed. The other blocks of their group are written, because a power cut between two
//! flushes could have left them too.
//!
//! When a volume becomes ordered, its dirty blocks are written first, in any order. Then the origin
//! is at a flush, and stays at one.

mod group;

use std::rc::Rc;
use std::time::Duration;

use forebay_core::why::{WakeReason, WritebackReason};
use forebay_core::{Nanos, OriginBlock};
use forebay_lane::either;
use forebay_policy::{Decision, Pacer, RateControl, TokenBucket};
use forebay_store::{Entry, Front};

use crate::background::pace::{
    FIRST_RETRY, LONGEST_RETRY, LONGEST_WAIT, dirty_state, load, pause_unless, reason,
};
use crate::error::WritebackError;
use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;
use crate::stats::bump;

/// Blocks to schedule before yielding to other tasks.
const BLOCKS_AT_ONCE: usize = 4096;

/// Maximum number of versions that the origin may have before the horizon is updated.
const MOST_UNSETTLED: u64 = 4096;

/// The longest time that the horizon lags behind the origin.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// Pause while blocks are dirty but none can be written.
const NOTHING_TO_WRITE: Duration = Duration::from_millis(20);

/// A drain in progress: everything up to `cut`, which was taken at `started`.
struct Sweep {
    cut: u64,
    started: Nanos,
}

/// State kept from one step to the next.
struct OrderedState {
    pacer: Pacer,
    control: RateControl,
    bucket: TokenBucket,
    /// Bytes written since the rate was last adjusted.
    written: u64,
    retry: Duration,
    sweep: Option<Sweep>,
    /// The time at which the first group was written that the durable horizon does not cover.
    unsettled_since: Option<Nanos>,
    /// The time at which the last such group was closed.
    closed_at: Nanos,
    why: WritebackReason,
}

/// The outcome of ordered writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderedOutcome {
    /// The volume is no longer ordered, is being stopped, or the cache stops.
    Over,
    /// The volume could not be put in order. None of its versions are held, and plain writeback
    /// goes on until the next attempt: an origin whose sync has failed may never be known to be at
    /// a flush again, and dirty blocks that are not written back would fill the cache for all
    /// volumes.
    NotEntered,
}

/// Runs until the volume is no longer ordered, cannot be put in order, or is stopped, or until the
/// cache stops.
pub(crate) async fn run(volume: &Rc<LaneVolume>) -> OrderedOutcome {
    let ordered = Ordered(volume.clone());
    let store = volume.cache.store.clone();
    let id = volume.volume.id;
    // The origin may have lost groups that were written earlier; writing them again does no harm.
    store.unwrite_groups(id);
    let mut progress = OrderedState {
        pacer: Pacer::new(volume.volume.settings()),
        control: RateControl::default(),
        bucket: TokenBucket::default(),
        written: 0,
        retry: FIRST_RETRY,
        sweep: None,
        unsettled_since: None,
        closed_at: Nanos(0),
        why: WritebackReason::Drain,
    };
    let mut all_grouped = false;
    while !volume.cache.is_stopping() && volume.volume.state() != VolumeState::Removed {
        let settings = volume.volume.settings();
        let result = if !settings.wants_order() {
            ordered.leave_order().await
        } else if !store.has_order(id) {
            let entered = ordered.enter_order().await;
            if let Err(error) = entered {
                volume.volume.set_writeback_error(Some(error));
                volume.volume.set_ordered(false);
                return OrderedOutcome::NotEntered;
            }
            all_grouped = true;
            Ok(())
        } else if !all_grouped {
            let grouped = ordered.group_all().await;
            all_grouped = grouped.is_ok();
            grouped
        } else {
            ordered.step(&mut progress).await
        };
        if !volume.volume.is_ordered() {
            return OrderedOutcome::Over;
        }
        match result {
            Ok(()) => {
                progress.retry = FIRST_RETRY;
                if volume.volume.shows_writeback_error() {
                    volume.volume.set_writeback_error(None);
                }
            }
            Err(error) => {
                volume.volume.set_writeback_error(Some(error));
                let over = || volume.volume.settings().wants_order() != settings.wants_order();
                pause_unless(volume, progress.retry, over).await;
                volume.volume.refused.count_anew();
                progress.retry = (progress.retry * 2).min(LONGEST_RETRY);
            }
        }
    }
    OrderedOutcome::Over
}

/// The ordered writeback of a volume.
#[derive(Clone)]
struct Ordered(Rc<LaneVolume>);

impl Ordered {
    /// Closes the open group, whether or not a client has flushed: at any commit the power could
    /// have failed. Returns the cut.
    async fn close_group(&self) -> Result<u64, WritebackError> {
        let store = self.0.store.store();
        let cut = store.cut(self.0.volume.id, self.0.now()).unwrap_or(0);
        self.0.store.commit().await.map_err(WritebackError::NotNoted)?;
        store.confirm_cut(self.0.volume.id, cut);
        Ok(cut)
    }

    /// Groups the dirty blocks that are in no group: blocks that could not be read when their group
    /// was written. If the volume was stopped since, nothing in memory remembers them.
    async fn group_all(&self) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let mut dirty = Vec::new();
        let found = |address, _: &Entry| dirty.extend(volume.space.block(address));
        self.0.store.visit(|entry| entry.dirty, found).await;
        self.group(&dirty).await
    }

    /// Adds those of `blocks` that are dirty and in no group to the first group that the origin
    /// receives.
    async fn group(&self, blocks: &[OriginBlock]) -> Result<(), WritebackError> {
        let (store, volume) = (self.0.store.store(), &self.0.volume);
        let stray = |block: &OriginBlock| {
            let found = store.peek(&volume.space, *block).filter(|found| found.entry.dirty)?;
            (!store.is_held(volume.id, *block)).then_some((*block, found.entry.slot))
        };
        let mut strays = Vec::new();
        for some in blocks.chunks(BLOCKS_AT_ONCE) {
            strays.extend(some.iter().filter_map(stray));
            forebay_lane::yield_now().await;
        }
        if strays.is_empty() {
            return Ok(());
        }
        // The commit puts versions in records that are not written yet into groups of their own.
        self.0.store.commit().await.map_err(WritebackError::NotNoted)?;
        for some in strays.chunks(BLOCKS_AT_ONCE) {
            for stays in some {
                if stray(&stays.0).as_ref() == Some(stays) {
                    store.add_base(&volume.space, stays.0);
                }
            }
            forebay_lane::yield_now().await;
        }
        Ok(())
    }

    /// Puts the volume in order: tracks all further writes, and schedules the present dirty blocks
    /// first.
    async fn enter_order(&self) -> Result<(), WritebackError> {
        let store = self.0.store.store();
        let volume = &self.0.volume;
        // From `begin_ordered` on, dirty and newly appended versions are held and keep their
        // segments from all volumes. So first make sure that the origin answers.
        drop(volume.ranges.exclusive(0..u64::MAX).await);
        OriginIo(&self.0).sync_device(WakeReason::Other).await?;
        store.begin_ordered(volume.id);
        {
            // Every task that gets a range after this sees that the volume is ordered.
            let _all = volume.ranges.exclusive(0..u64::MAX).await;
        }
        let result = self.enter_with_everything().await;
        if result.is_err() {
            store.end_ordered(volume.id);
        }
        result
    }

    async fn enter_with_everything(&self) -> Result<(), WritebackError> {
        let store = self.0.store.store();
        let volume = &self.0.volume;
        // Earlier writes around or through the cache belong to the initial state: make them durable
        // first.
        OriginIo(&self.0).sync(WakeReason::Other).await.map_err(|_| WritebackError::Unsynced)?;
        let room = store.make_room_in_order(volume.dirty_blocks());
        room?;
        let before = store.cut(volume.id, self.0.now()).unwrap_or(0);
        self.0.store.commit().await.map_err(WritebackError::NotNoted)?;
        // Records up to this cut may have been in progress already; their blocks are found in the
        // index below.
        store.drop_before(volume.id, before);
        let mut dirty = Vec::new();
        let found = |address, _: &Entry| dirty.extend(volume.space.block(address));
        self.0.store.visit(|entry| entry.dirty, found).await;
        for (count, block) in dirty.into_iter().enumerate() {
            store.add_base(&volume.space, block);
            if count % BLOCKS_AT_ONCE == BLOCKS_AT_ONCE - 1 {
                forebay_lane::yield_now().await;
            }
        }
        let first = store.first_cut(volume.id, self.0.now()).unwrap_or(0);
        self.0.store.commit().await.map_err(WritebackError::NotNoted)?;
        store.confirm_cut(volume.id, first);
        Ok(())
    }

    /// Hands the volume over to plain writeback.
    async fn leave_order(&self) -> Result<(), WritebackError> {
        if let Err(error) = self.0.store.leave_order(self.0.volume.id).await {
            let store = self.0.store.store();
            if !store.health.failed() {
                return Err(WritebackError::NotNoted(error));
            }
            // The operator has switched order off. Releasing the versions allows readable ones to
            // be written back without order.
            store.end_ordered(self.0.volume.id);
        }
        self.0.volume.set_ordered(false);
        if self.0.volume.settings().wants_order() {
            // The setting was switched on again meanwhile.
            self.0.volume.set_ordered(true);
        }
        // Writes that wait for free space may bypass the log now.
        self.0.cache.store.space.notify_all();
        Ok(())
    }

    /// Writes the next group, or waits until there is a reason to write it.
    async fn step(&self, progress: &mut OrderedState) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let wanted = volume.writeback.wanted.listen();
        let settings = volume.settings();
        progress.pacer.set_settings(settings.clone());
        let asked = volume.writeback.drains.any();
        let entering = !store.is_in_order(volume.id) && settings.writeback_running;
        let again = volume.bad_to_try();
        if let Err(error) = self.group(&again).await {
            // These blocks are tried again in the next round.
            again.into_iter().for_each(|block| volume.add_bad(block));
            return Err(error);
        }
        let unsettled = store.unsettled(volume.id);
        let held = store.held_versions(volume.id).saturating_sub(unsettled.unwrap_or(0));
        let dirty = volume.dirty_blocks().saturating_sub(volume.bad_count());
        let dirty = dirty.saturating_sub(unsettled.unwrap_or(0)).max(held);
        if asked && progress.sweep.is_none() && dirty + unsettled.unwrap_or(0) > 0 {
            let started = self.0.now();
            progress.sweep = Some(Sweep { cut: self.close_group().await?, started });
        }
        let now = self.0.now();
        // A group without blocks must be recorded all the same.
        let to_write = dirty.max(u64::from(entering));
        let pending = unsettled.unwrap_or(0);
        let mut state = dirty_state(&self.0, now, &settings, to_write, pending);
        state.draining = asked || entering;
        state.space_wanted |= self.0.cache.is_pressed();
        let late = progress.unsettled_since.is_some_and(|since| now.since(since) >= SETTLE_AFTER);
        if progress.control.is_due(now) {
            let load = load(&self.0, now, &state, std::mem::take(&mut progress.written));
            progress.control.look(now, &settings, &load);
        }
        let most = MOST_UNSETTLED.min(self.0.cache.store.capacity_blocks() / 16).max(1);
        let hurry = asked || entering || self.0.cache.is_pressed() || late;
        match progress.pacer.decide(now, &state) {
            Decision::Write { urgency } if unsettled.unwrap_or(0) < most && !late => {
                let rate = progress.control.rate(urgency, &settings);
                if let Some(at) = progress.bucket.wait(now, rate) {
                    let at = at.min(now + LONGEST_WAIT);
                    either(wanted, self.0.lane().sleep_until(at)).await;
                    return Ok(());
                }
                progress.why = reason(progress.pacer.trigger(), asked);
                if let Some(front) = store.front_group(volume.id) {
                    return self.write_front(front, progress).await;
                }
                if unsettled.is_some() && hurry {
                    return self.settle(progress).await;
                }
                if dirty > 0 {
                    self.close_group().await?;
                }
                if store.front_group(volume.id).is_none() {
                    either(wanted, self.0.lane().sleep(NOTHING_TO_WRITE)).await;
                }
            }
            _ if unsettled.is_some() && (hurry || unsettled >= Some(most)) => {
                return self.settle(progress).await;
            }
            Decision::Idle { look_again } => {
                let settle_at = progress.unsettled_since.map(|since| since + SETTLE_AFTER);
                let until = settle_at.map_or(look_again, |at| at.min(look_again));
                either(wanted, self.0.lane().sleep_until(until)).await;
            }
            Decision::Write { .. } => return self.settle(progress).await,
        }
        self.end_sweep(progress);
        Ok(())
    }

    /// Writes the first group, syncs the origin, and records that it has the group.
    async fn write_front(
        &self,
        front: Front,
        progress: &mut OrderedState,
    ) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        if front.settle_first {
            self.settle(progress).await?;
        }
        let bytes = (front.versions.len() as u64) << volume.block.shift();
        progress.bucket.take(bytes);
        progress.written += bytes;
        let mut unreadable = self.write_group(&front.versions, progress.why).await?;
        if !unreadable.is_empty() {
            // Barrier for invariant 28: a device that cannot be read at the moment is not written
            // past. Blocks that it still cannot read once it takes writes are given up alone.
            self.0.store.change_volumes(|_, _| Ok(())).await.map_err(WritebackError::NotNoted)?;
            let is_left = |version: &&(OriginBlock, _)| unreadable.contains(&version.0);
            let left: Vec<_> = front.versions.iter().filter(is_left).cloned().collect();
            unreadable = self.write_group(&left, progress.why).await?;
        }
        for (block, version) in &front.versions {
            if unreadable.contains(block) {
                let newest = store.peek(&volume.space, *block);
                if newest.is_some_and(|found| found.entry.slot == version.slot) {
                    volume.add_bad(*block);
                } else {
                    tracing::error!(
                        volume = volume.name,
                        block = block.0,
                        "a version of a block cannot be read back: until the origin gets the block's next version, it is not in the state of any flush"
                    );
                }
            }
        }
        store.group_written(volume.id, front.through, &unreadable);
        progress.closed_at = front.closed_at;
        progress.unsettled_since.get_or_insert(self.0.now());
        if !store.is_in_order(volume.id) {
            // The origin is at a flush with this group.
            return self.settle(progress).await;
        }
        Ok(())
    }

    /// Makes the horizon durable and marks the blocks that it covers as clean.
    async fn settle(&self, progress: &mut OrderedState) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let noted = self.0.store.note_written(volume.id).await;
        let noted = noted.map_err(WritebackError::NotNoted)?;
        progress.unsettled_since = None;
        let Some(horizon) = noted else { return Ok(()) };
        if volume.state() == VolumeState::Removed {
            // The volume's next attachment counts its dirty blocks.
            return Err(WritebackError::Stopped);
        }
        for block in self.0.store.store().settle_groups(&volume.space, horizon) {
            volume.cleaned(self.0.lane(), block);
            bump(&self.0.stats().counters.written_back_blocks, 1);
            self.0.stats().why.written_back.count(progress.why, 1);
        }
        if progress.closed_at > Nanos(0) {
            volume.clean_since(progress.closed_at);
        }
        self.end_sweep(progress);
        Ok(())
    }

    fn end_sweep(&self, progress: &mut OrderedState) {
        let store = self.0.store.store();
        if let Some(Sweep { cut, started }) = progress.sweep
            && store.has_settled(self.0.volume.id, cut)
        {
            progress.sweep = None;
            self.0.volume.swept(started);
            self.0.volume.writeback.progress.notify_all();
        }
    }
}
