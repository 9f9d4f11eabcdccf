//! Opens a cache for the lanes of an engine, and starts its background work.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::{Device, Meter};
use forebay_lane::{either, yield_now};
use forebay_store::{Entry, RecoveryReport, Store, StoreLane, StoreOptions};

use crate::background;
use crate::error::{EngineError, EngineErrorKind};
use crate::lane::engine::{EngineLane, LaneContext};
use crate::serve::requests;
use crate::settings::tell_withdrawn;
use crate::state::cache::Cache;

/// Interval of checks whether the cache device still answers.
const ASKED_EVERY: Duration = Duration::from_millis(100);

impl EngineLane {
    /// Opens a cache device. The calling lane also does the background work.
    ///
    /// The volumes are not attached yet: see [`EngineLane::attach`].
    ///
    /// # Errors
    /// The device is not a cache device, has lost durable data, or cannot be read; or the memory
    /// limit would be exceeded.
    pub async fn open(
        context: LaneContext,
        device: Arc<dyn Device>,
        options: StoreOptions,
    ) -> Result<(Rc<Self>, RecoveryReport), EngineError> {
        let meter = Meter::new(options.lanes);
        let queue = context.open_metered(&device, &meter)?;
        let (store, report) = Store::open(&context.lane, device, queue, options).await?;
        store.store().volumes().iter().for_each(tell_withdrawn);
        let policy =
            store.store().volumes().first().map(|volume| volume.policy).unwrap_or_default();
        let clock = context.lane.clock().clone();
        let cache = Cache::new(store.store().clone(), policy, clock, meter);
        let held = cache.hold_needed();
        // Nothing changes in the index while these pass over it: no volume is attached, and no
        // other lane has joined.
        cache.detached.count(&store).await;
        for shard in 0..cache.store.index.shard_count() {
            cache.show_cached(shard);
            yield_now().await;
        }
        if let Err(over) = held {
            // Changes from the log that recovery keeps in memory may use up the budget. They are
            // dropped once the index is loaded.
            if store.store().is_loaded() || !store.store().checkpoint_is_outdated() {
                return Err(over.into());
            }
            let on_load = |address, entry: &Entry| cache.on_load(&context.lane, address, entry);
            store.load_rest(&on_load).await?;
            cache.hold_needed()?;
        }
        let engine = Self::with_store(cache, context, store, requests());
        engine.lane.spawn(background::watch::run(Rc::downgrade(&engine), true));
        engine.start_loading();
        engine.cache.background_started();
        engine.lane.spawn(background::reclaim::run(engine.clone()));
        engine.cache.background_started();
        engine.lane.spawn(background::shares::run(engine.clone()));
        engine.cache.background_started();
        engine.lane.spawn(background::upkeep::commits(engine.clone()));
        engine.cache.background_started();
        engine.lane.spawn(background::upkeep::checkpoints(engine.clone()));
        Ok((engine, report))
    }

    /// Opens another lane's view of an open cache.
    ///
    /// # Errors
    /// The cache device cannot be opened for this lane, or the cache was opened for fewer lanes, so
    /// that there are no counters for this one.
    pub fn join(cache: &Arc<Cache>, context: LaneContext) -> Result<Rc<Self>, EngineError> {
        let (lane, lanes) = (context.lane.id().0, cache.store.options().lanes.max(1));
        if usize::from(lane) >= lanes {
            return Err(EngineError::new(
                EngineErrorKind::Refused,
                format!("lane {lane} cannot use a cache that was opened for {lanes} lanes"),
            ));
        }
        let queue = context.open_metered(cache.store.device(), &cache.meter)?;
        let store = StoreLane::new(cache.store.clone(), context.lane.clone(), queue);
        let engine = Self::with_store(cache.clone(), context, store, requests());
        engine.lane.spawn(background::watch::run(Rc::downgrade(&engine), false));
        engine.start_loading();
        Ok(engine)
    }

    /// Takes part in loading the index, if it is not loaded, and in the steps that follow the
    /// loading.
    fn start_loading(self: &Rc<Self>) {
        let store = &self.cache.store;
        if !store.is_loaded() || store.checkpoint_is_outdated() {
            self.cache.background_started();
            self.lane.spawn(background::load::run(self.clone()));
        }
    }

    /// Waits until the index is loaded: for work that needs all of it.
    ///
    /// # Errors
    /// The index cannot be read, or the cache device hangs.
    pub(crate) async fn index_loaded(&self) -> Result<(), EngineError> {
        let store = &self.cache.store;
        loop {
            if store.is_loaded() {
                return Ok(());
            }
            if store.cannot_be_loaded() {
                let message = format!(
                    "the index on the cache device {} cannot be read",
                    store.device().name()
                );
                return Err(EngineError::new(EngineErrorKind::Failed, message));
            }
            if let Some(hung) = self.cache.hung() {
                return Err(hung);
            }
            let loaded = async { _ = store.loaded().await };
            either(loaded, self.lane.sleep(ASKED_EVERY)).await;
        }
    }
}
