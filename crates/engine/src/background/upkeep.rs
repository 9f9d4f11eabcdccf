//! Upkeep by the clock: commits, checkpoints, and syncs of origins. Each is a task of its own, so that
//! neither a long checkpoint nor an origin that does not answer delays a commit.

use std::rc::Rc;
use std::time::Duration;

use forebay_lane::either;
use forebay_store::planted::{self, PlantedBug};

use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::cache::BackgroundEnding;
use crate::state::volume::VolumeState;

/// How often it is asked whether a checkpoint is due.
const CHECKPOINT_ASKED: Duration = Duration::from_secs(1);

/// Commits until the cache stops: what was acknowledged is on its way to the device after the shortest
/// interval that a volume asks for, at the latest.
pub(crate) async fn commits(engine: Rc<EngineLane>) {
    let cache = engine.cache.clone();
    let _ending = BackgroundEnding { cache: cache.clone(), task: "the task that commits" };
    let mut last = engine.lane.now();
    while !cache.is_stopping() {
        let changed = cache.background_changed.listen();
        let due = last + engine.commit_interval();
        let now = engine.lane.now();
        if now < due {
            // A lower interval acts at once.
            either(changed, engine.lane.sleep_until(due)).await;
            continue;
        }
        last = now;
        // A failed device gets nothing more; writeback goes on by itself.
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
            && store.appended_since_checkpoint() >= store.checkpoint_due()
            && let Err(error) = engine.store.checkpoint(false).await
        {
            tracing::warn!(%error, "a checkpoint failed");
        }
    }
}

/// Syncs a volume's origin from time to time until the volume leaves: what went round the cache may be
/// cached again once the origin cannot lose it. The cache does not wait for this when it stops: the
/// origin may never answer, and a stop syncs it itself.
pub(crate) async fn origin_syncs(view: Rc<LaneVolume>) {
    let volume = view.volume.clone();
    while !view.cache.is_stopping() && volume.state() != VolumeState::Removed {
        let interval = volume.settings().commit_interval;
        let stop = view.cache.background_changed.listen();
        either(stop, view.lane().sleep(interval)).await;
        if volume.origin_unsynced().is_some() && volume.state() != VolumeState::Removed {
            let _ = OriginIo(&view).sync().await;
        }
    }
}

impl EngineLane {
    /// The shortest interval that a volume asks for.
    fn commit_interval(&self) -> Duration {
        let volumes = self.cache.volumes();
        let shortest = volumes.iter().map(|volume| volume.settings().commit_interval).min();
        shortest.unwrap_or(self.cache.store.options().commit_interval)
    }
}
