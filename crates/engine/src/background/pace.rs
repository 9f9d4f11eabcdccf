//! Pacing shared by plain and ordered writeback: when to write, why, and how long to wait.

use std::time::Duration;

use forebay_core::Nanos;
use forebay_core::why::WritebackReason;
use forebay_lane::either;
use forebay_policy::{DirtyState, Load, Trigger};
use forebay_settings::Settings;

use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;

/// Pause after a failure, doubled after each further one up to [`LONGEST_RETRY`].
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// The longest single wait, so that a change of settings is noticed.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Returns the reason under which writes are counted. `asked`: a drain is waiting.
pub(crate) fn reason(trigger: Option<Trigger>, asked: bool) -> WritebackReason {
    match trigger {
        Some(Trigger::Draining) if asked => WritebackReason::Drain,
        Some(Trigger::Draining) | None => WritebackReason::Mode,
        Some(Trigger::Space) => WritebackReason::Full,
        Some(Trigger::Watermark) => WritebackReason::DirtyHigh,
        Some(Trigger::CacheWatermark) => WritebackReason::CacheDirtyHigh,
        Some(Trigger::Quiet) => WritebackReason::Quiet,
        Some(Trigger::Age) => WritebackReason::DirtyAge,
        Some(Trigger::Idle) => WritebackReason::Idle,
        Some(Trigger::Awake) => WritebackReason::Awake,
    }
}

/// Returns the state by which writeback decides: `dirty_blocks` of the volume have to be written;
/// `pending` blocks are on the origin already but not marked clean.
pub(crate) fn dirty_state(
    view: &LaneVolume,
    now: Nanos,
    settings: &Settings,
    dirty_blocks: u64,
    pending: u64,
) -> DirtyState {
    let (volume, cache) = (&view.volume, &view.cache);
    let bound = cache.bound_blocks();
    let capacity_blocks = cache.store.capacity_blocks().saturating_sub(bound);
    DirtyState {
        dirty_blocks,
        cache_dirty_blocks: cache.unwritten_blocks().saturating_sub(pending + bound),
        capacity_blocks,
        share_blocks: capacity_blocks.min(volume.share.most_blocks().unwrap_or(u64::MAX)),
        oldest_dirty: volume.oldest_dirty(),
        last_foreground: volume.stats.last_foreground().min(now),
        origin_used: volume.stats.rest.used(),
        draining: false,
        space_wanted: cache.makes_wait(volume),
        time_of_day: if settings.quiet_hours.is_some() {
            view.lane().clock().time_of_day()
        } else {
            Duration::ZERO
        },
    }
}

/// Returns the load for the rate control. `written`: bytes written since the last call.
pub(crate) fn load(view: &LaneVolume, now: Nanos, state: &DirtyState, written: u64) -> Load {
    let capacity = state.share_blocks.max(1) as f64;
    Load {
        dirty_percent: state.dirty_blocks as f64 / capacity * 100.0,
        latency: view.volume.origin_latency.take(now),
        written,
    }
}

/// Waits before a retry, at most until the volume is detached (a task that sleeps here keeps the
/// origin open), the origin becomes writable, or a drain begins: an operator who has repaired the
/// origin does not wait for the pause.
pub(crate) async fn pause_for(view: &LaneVolume, time: Duration) {
    pause_unless(view, time, || false).await;
}

/// Pauses like [`pause_for`], but ends early when the volume's settings make it `over`.
pub(crate) async fn pause_unless(view: &LaneVolume, time: Duration, over: impl Fn() -> bool) {
    let (until, healed, drains) =
        (view.now() + time, view.volume.healed(), view.volume.writeback.drains.begun());
    loop {
        let changed = view.volume.writeback.wanted.listen();
        let gone = view.cache.is_stopping() || view.volume.state() == VolumeState::Removed;
        let mended =
            view.volume.healed() != healed || view.volume.writeback.drains.begun() != drains;
        if gone || mended || over() || view.now() >= until {
            return;
        }
        either(changed, view.lane().sleep_until(until)).await;
    }
}
