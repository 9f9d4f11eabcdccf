//! Changes the volume table, also without the cache device.

use std::rc::Rc;

use forebay_format::VolumeRecord;
use forebay_store::StoreError;

use crate::error::EngineError;
use crate::lane::engine::EngineLane;
use crate::state::cache::hang::CacheWork;

/// The place where a change of the volume table is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TableChange {
    /// The cache device.
    OnDevice,
    /// Not on the cache device for certain, because it has failed or does not answer: the daemon
    /// must remember the change until the device is opened again.
    ByDaemon,
}

impl EngineLane {
    /// Changes the volume table. If the cache device has failed or hangs and there is a ledger, it
    /// is enough that the daemon remembers the change: its state is read first at the next start,
    /// and commands must work without the device.
    ///
    /// # Errors
    /// The change is refused, or the cache device fails and there is no ledger.
    pub(crate) async fn change_volumes(
        self: &Rc<Self>,
        change: impl FnOnce(&mut Vec<VolumeRecord>, &mut u16) -> Result<(), StoreError> + 'static,
    ) -> Result<TableChange, EngineError> {
        let store = self.store.clone();
        let mut work: CacheWork<Result<(), StoreError>> =
            Box::pin(async move { store.change_volumes(change).await });
        let changed = self.cache.unless_it_can_be_noted(&mut work).await;
        if changed.is_none() {
            self.lane.spawn(async move { drop(work.await) });
        }
        let failed = self.cache.store.health.failed() || changed.is_none();
        match changed {
            Some(Ok(())) => Ok(TableChange::OnDevice),
            Some(Err(error)) if !failed || self.cache.ledger().is_none() => Err(error.into()),
            _ => {
                let device = self.cache.store.device().name();
                tracing::warn!(
                    device,
                    "the volume table on the cache device cannot be changed; the daemon remembers the change"
                );
                Ok(TableChange::ByDaemon)
            }
        }
    }
}
