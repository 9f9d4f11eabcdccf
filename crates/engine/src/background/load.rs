//! Loads the index of a cache while requests are served: see
//! [`forebay_store::loader`]. Every lane takes part.

use std::rc::Rc;
use std::time::Duration;

use forebay_store::Entry;

use crate::lane::engine::EngineLane;
use crate::state::cache::BackgroundEnding;

/// Time for volumes to start before loading in the background begins.
const VOLUMES_FIRST: Duration = Duration::from_millis(250);

/// Runs until the index is loaded, or cannot be.
pub(crate) async fn run(engine: Rc<EngineLane>) {
    let (cache, began) = (engine.cache.clone(), engine.lane.now());
    let _ending = BackgroundEnding { cache: cache.clone(), task: "the task that loads the index" };
    // Without this delay, each step of the start of a volume would wait for a shard.
    engine.lane.sleep(VOLUMES_FIRST).await;
    let on_load = |address, entry: &Entry| cache.on_load(&engine.lane, address, entry);
    if let Err(error) = engine.store.load_rest(&on_load).await {
        tracing::error!(device = cache.store.device().name(), %error, "the index cannot be loaded");
        return;
    }
    // Wait for the shards that other lanes load, then let one lane report the end.
    if cache.store.loaded().await && engine.lane.id().0 == 0 {
        let took = engine.lane.now().since(began);
        tracing::info!(device = cache.store.device().name(), ?took, "the index is loaded");
        if cache.store.checkpoint_is_outdated()
            && let Err(error) = engine.store.checkpoint(false).await
        {
            tracing::warn!(%error, "a checkpoint failed");
        }
    }
}
