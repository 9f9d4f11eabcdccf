//! Writeback: writes dirty blocks to the origin in address order, with neighbours merged. [`sweep`]
//! chooses the blocks; [`io::writeback`](crate::io::writeback) writes them.

mod sweep;

use std::rc::Rc;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_core::why::{WakeReason, WritebackReason};
use forebay_lane::either;
use forebay_policy::{Decision, DirtyState, Pacer, RateControl, TokenBucket};
use forebay_settings::Settings;

use crate::background::ordered;
use crate::background::pace::{
    FIRST_RETRY, LONGEST_RETRY, LONGEST_WAIT, dirty_state, load, pause_for, reason,
};
use crate::error::WritebackError;
use crate::io::origin::OriginIo;
use crate::io::writeback::flow::Flow;
use crate::io::writeback::span::Spans;
use crate::lane::LaneVolume;
use crate::state::cache::BackgroundEnding;
use crate::state::volume::VolumeState;
use sweep::{Sweep, SweepStep};

/// Pause before writeback restarts after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Number of writes that are still started after one has failed, and time limit for them. A bad
/// place on the origin then delays other blocks less, and a dead origin is not retried for long.
const GO_ON_FOR: u32 = 256;
const GO_ON_UNTIL: Duration = Duration::from_secs(1);

/// The longest pause after a failure while a drain waits. A drain gives up after a few seconds
/// without progress, so a single long pause must not look like that.
const DRAIN_RETRY: Duration = Duration::from_millis(500);

/// Longest time for which writes through the cache wait for their origin sync. A sync empties the
/// disk's queue, so it should be rare; blocks not yet synced are written again after a crash.
const THROUGH_SYNC: Duration = Duration::from_secs(1);

/// The writeback of one volume.
struct Writeback {
    view: Rc<LaneVolume>,
    pacer: Pacer,
    control: RateControl,
    bucket: TokenBucket,
    sweep: Sweep,
    flow: Rc<Flow>,
    sweep_started: Nanos,
    sweep_failed: bool,
    /// Whether a write of the sweep in progress failed.
    failed_in_sweep: bool,
    retry: Duration,
    /// The time of the next attempt to put the volume in order, and the pause after another
    /// failure.
    order_at: Nanos,
    order_retry: Duration,
    /// Number of writes started since a failure was noticed, and the time of that.
    since_failure: u32,
    failed: Nanos,
}

/// Restarts writeback after a panic, because nothing else moves dirty blocks off a cache device
/// that has failed.
struct Again(Rc<LaneVolume>);

impl Drop for Again {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let view = self.0.clone();
            view.volume.set_writeback_error(Some(WritebackError::Panicked));
            view.cache.background_started();
            self.0.lane().spawn(run(view, AFTER_PANIC));
        }
    }
}

/// Waits for `after`, then runs until the cache stops or the volume is removed.
pub(crate) async fn run(view: Rc<LaneVolume>, after: Duration) {
    let _ending = BackgroundEnding { cache: view.cache.clone(), task: "writeback" };
    let _again = Again(view.clone());
    pause_for(&view, after).await;
    // Blocks that are not loaded would seem to be absent, and their region clean.
    while !view.cache.store.is_loaded() {
        let (store, lane) = (&view.cache.store, view.lane());
        if view.cache.is_stopping() || view.volume.state() == VolumeState::Removed {
            return;
        }
        if store.cannot_be_loaded() {
            view.volume.set_writeback_error(Some(WritebackError::NotLoaded));
            return;
        }
        either(async { _ = store.loaded().await }, lane.sleep(LONGEST_WAIT)).await;
    }
    let settings = view.volume.settings();
    let mut this = Writeback {
        pacer: Pacer::new(settings),
        control: RateControl::default(),
        bucket: TokenBucket::default(),
        sweep: Sweep::new(),
        flow: Flow::new(view.clone()),
        sweep_started: view.now(),
        sweep_failed: true,
        failed_in_sweep: false,
        retry: FIRST_RETRY,
        order_at: Nanos(0),
        order_retry: FIRST_RETRY,
        since_failure: 0,
        failed: Nanos(0),
        view,
    };
    while !this.view.cache.is_stopping() && this.view.volume.state() != VolumeState::Removed {
        this.step().await;
    }
}

impl Writeback {
    /// Makes one decision and carries it out.
    async fn step(&mut self) {
        let view = self.view.clone();
        let volume = &view.volume;
        if volume.is_read_only() {
            // The dirty blocks were written before the volume became read-only, and stay until
            // writes are allowed again.
            let wanted = volume.writeback.wanted.listen();
            either(wanted, view.lane().sleep(LONGEST_WAIT)).await;
            return;
        }
        if volume.is_ordered() {
            self.settle().await;
            self.sweep_failed = true;
            match ordered::run(&view).await {
                ordered::OrderedOutcome::Over => self.order_retry = FIRST_RETRY,
                ordered::OrderedOutcome::NotEntered => {
                    self.order_at = view.now() + self.order_retry;
                    self.order_retry = (self.order_retry * 2).min(LONGEST_RETRY);
                }
            }
            return;
        }
        let wanted = volume.writeback.wanted.listen();
        let settings = volume.settings();
        let wants_order = settings.wants_order();
        if wants_order && view.now() >= self.order_at {
            volume.set_ordered(true);
            return;
        }
        let asked = volume.writeback.drains.any();
        // A device that accepts no writes may soon serve no reads. And writes that bypass a full
        // log must not meet dirty copies.
        let failed = view.cache.store.health.failed() || view.cache.is_starved();
        let draining = asked || failed || !settings.keeps_dirty();
        if draining && volume.through.unsynced() > 0 {
            // Invariant 9: blocks written through become clean only when the origin has been
            // synced.
            let many = volume.through.many.listen();
            if !asked && volume.through.unsynced() < OriginIo(&view).most_through() {
                either(many, view.lane().sleep(THROUGH_SYNC)).await;
            }
            // On failure the list is cleared, and its blocks are written back like others.
            let _ = OriginIo(&view).sync(WakeReason::Other).await;
        }
        let now = view.now();
        let state = self.state(now, draining, asked, &settings);
        self.pacer.set_settings(settings.clone());
        let decision = self.pacer.decide(now, &state);
        if self.control.is_due(now) {
            let load = load(&self.view, now, &state, self.flow.progress.replace(0));
            self.control.look(now, &settings, &load);
        }
        match decision {
            Decision::Idle { .. } if self.flow.is_busy() => self.settle().await,
            Decision::Idle { look_again } => {
                if volume.dirty_blocks() == 0 && volume.shows_writeback_error() {
                    // The blocks that could not be written have been overwritten or discarded.
                    volume.set_writeback_error(None);
                }
                let until = if wants_order { look_again.min(self.order_at) } else { look_again };
                either(wanted, view.lane().sleep_until(until)).await;
            }
            Decision::Write { urgency } => {
                let rate = self.control.rate(urgency, &settings);
                if let Some(at) = self.bucket.wait(now, rate) {
                    self.flow.sync_if_due();
                    let at = at.min(now + LONGEST_WAIT);
                    either(wanted, view.lane().sleep_until(at)).await;
                    return;
                }
                let why = reason(self.pacer.trigger(), asked);
                self.write(&settings, why).await;
            }
        }
    }

    fn state(&self, now: Nanos, draining: bool, asked: bool, settings: &Settings) -> DirtyState {
        let volume = &self.view.volume;
        // A drain ends with sweeps that have passed all blocks, in case writes through the cache
        // never end. So it counts and passes the blocks of such writes as well.
        let through = if asked { 0 } else { volume.through.count() };
        let pending = through + self.flow.unmarked();
        let dirty = volume.dirty_blocks().saturating_sub(volume.bad_count() + pending);
        DirtyState { draining, ..dirty_state(&self.view, now, settings, dirty, pending) }
    }

    /// Starts the next write once the depth allows it.
    async fn write(&mut self, settings: &Settings, why: WritebackReason) {
        let view = self.view.clone();
        self.flow.room(settings.writeback_depth).await;
        match self.sweep.next(&view, Spans(&view).merging()).await {
            SweepStep::Run(span) => {
                self.bucket.take((span.dirty.len() as u64) << view.volume.block.shift());
                self.flow.start(span, why);
                if self.flow.has_failed() {
                    if self.since_failure == 0 {
                        self.failed = view.now();
                    }
                    self.since_failure += 1;
                    let long = view.now().since(self.failed) > GO_ON_UNTIL;
                    if long || self.since_failure > GO_ON_FOR {
                        self.settle().await;
                    }
                }
            }
            SweepStep::Wrapped => {
                self.settle().await;
                if !self.sweep_failed {
                    view.volume.swept(self.sweep_started);
                } else if self.failed_in_sweep {
                    view.volume.sweep_failed();
                }
                self.failed_in_sweep = false;
                self.sweep_started = view.now();
                self.sweep_failed = false;
            }
            // All blocks that the map counts here are bad or already being written.
            SweepStep::Nothing => view.lane().sleep(Duration::from_millis(1)).await,
            SweepStep::Clean => {
                let timer = view.lane().sleep(FIRST_RETRY);
                either(view.volume.writeback.wanted.listen(), timer).await;
            }
        }
    }

    /// Waits until all writes in progress are durable and marked clean. After a failure, also
    /// pauses before the next attempt.
    async fn settle(&mut self) {
        self.since_failure = 0;
        let volume = self.view.volume.clone();
        match self.flow.settle().await {
            Ok(()) => {
                self.retry = FIRST_RETRY;
                match self.failed_in_sweep {
                    true => volume.writeback_works(),
                    false => volume.set_writeback_error(None),
                }
            }
            Err(error) => {
                (self.sweep_failed, self.failed_in_sweep) = (true, true);
                volume.set_writeback_error(Some(error));
                let most = if volume.writeback.drains.any() { DRAIN_RETRY } else { LONGEST_RETRY };
                pause_for(&self.view, self.retry.min(most)).await;
                volume.refused.count_anew();
                self.retry = (self.retry * 2).min(LONGEST_RETRY);
            }
        }
    }
}
