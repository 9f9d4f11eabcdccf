//! Periodic upkeep: commits, checkpoints, and syncs of origins. Each is a task of its own, so that
//! neither a long checkpoint nor an origin that does not answer delays a commit.

use std::rc::Rc;
use std::time::Duration;

use forebay_core::Laziness;
use forebay_core::why::WakeReason;
use forebay_lane::either;
use forebay_policy::AWAKE_FOR;
use forebay_store::planted::{self, PlantedBug};

use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::cache::BackgroundEnding;
use crate::state::volume::VolumeState;

/// Interval of checks whether a checkpoint is due.
const CHECKPOINT_ASKED: Duration = Duration::from_secs(1);

/// Commits periodically until the cache stops. Acknowledged writes are passed to the device within
/// the shortest `commit_interval` of the volumes.
pub(crate) async fn commits(engine: Rc<EngineLane>) {
    let cache = engine.cache.clone();
    let _ending = BackgroundEnding { cache: cache.clone(), task: "the task that commits" };
    let mut last = engine.lane.now();
    while !cache.is_stopping() {
        let changed = cache.background_changed.listen();
        let due = last + engine.commit_interval();
        let now = engine.lane.now();
        if now < due {
            // Wakes early if the interval is lowered.
            either(changed, engine.lane.sleep_until(due)).await;
            continue;
        }
        last = now;
        // Nothing more is written to a failed device; writeback does not depend on commits then.
        if !cache.store.health.failed()
            && !cache.store.all_durable()
            && !planted::has(PlantedBug::NoTimedCommit)
            && let Err(error) = engine.store.commit().await
        {
            tracing::warn!(%error, "a commit failed");
        }
    }
}

/// Writes checkpoints until the cache stops.
pub(crate) async fn checkpoints(engine: Rc<EngineLane>) {
    let cache = engine.cache.clone();
    let _ending =
        BackgroundEnding { cache: cache.clone(), task: "the task that writes checkpoints" };
    let store = cache.store.clone();
    while !cache.is_stopping() {
        let stop = cache.background_changed.listen();
        either(stop, engine.lane.sleep(CHECKPOINT_ASKED)).await;
        if !cache.is_stopping()
            && !store.health.failed()
            && store.is_loaded()
            && store.checkpoint_is_due()
            && let Err(error) = engine.store.checkpoint(false).await
        {
            tracing::warn!(%error, "a checkpoint failed");
        }
    }
}

/// Syncs a volume's origin periodically until the volume leaves: writes that bypassed the cache may
/// be cached once the origin cannot lose them. Closing the cache does not wait for this task: the
/// origin may never answer, and a stop syncs it anyway.
pub(crate) async fn origin_syncs(view: Rc<LaneVolume>) {
    let volume = view.volume.clone();
    while !view.cache.is_stopping() && volume.state() != VolumeState::Removed {
        let settings = volume.settings();
        let interval = match settings.writeback {
            Laziness::Eager => settings.commit_interval,
            // The sync should come while the disk is still awake.
            Laziness::Lazy => settings.commit_interval.min(AWAKE_FOR),
        };
        let stop = view.cache.background_changed.listen();
        either(stop, view.lane().sleep(interval)).await;
        if volume.syncs.last_unsynced().is_some() && volume.state() != VolumeState::Removed {
            let _ = OriginIo(&view).sync(WakeReason::Other).await;
        }
    }
}

impl EngineLane {
    /// Returns the shortest commit interval of the volumes.
    fn commit_interval(&self) -> Duration {
        let volumes = self.cache.volumes();
        let shortest = volumes.iter().map(|volume| volume.settings().commit_interval).min();
        shortest.unwrap_or(self.cache.store.options().commit_interval)
    }
}
