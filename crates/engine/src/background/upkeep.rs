//! Upkeep: commits and checkpoints by the clock.

use std::rc::Rc;
use std::time::Duration;

use crate::background::writeback::either;
use crate::cache::BackgroundEnding;
use crate::engine::EngineLane;

/// Runs until the cache stops.
pub(crate) async fn run(engine: Rc<EngineLane>) {
    let cache = engine.cache.clone();
    let _ending = BackgroundEnding(cache.clone());
    let store = cache.store.clone();
    while !cache.is_stopping() {
        let stop = cache.stop_changed.listen();
        either(stop, engine.lane.sleep(engine.commit_interval())).await;
        if cache.is_stopping() || store.health.failed() {
            // A failed device gets nothing more; writeback goes on by itself.
            if cache.is_stopping() {
                break;
            }
            continue;
        }
        for volume in cache.volumes() {
            // What went round the cache may be cached again once the origin cannot lose it.
            if volume.origin_unsynced().is_some()
                && let Some(view) = engine.lane_volume(volume.id)
            {
                let _ = view.sync_origin().await;
            }
        }
        if !store.all_durable()
            && let Err(error) = engine.store.commit().await
        {
            tracing::warn!(%error, "a commit failed");
            continue;
        }
        if store.appended_since_checkpoint() >= store.checkpoint_due()
            && let Err(error) = engine.store.checkpoint(false).await
        {
            tracing::warn!(%error, "a checkpoint failed");
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
