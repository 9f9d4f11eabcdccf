//! Deleting volumes.

use std::rc::Rc;

use forebay_core::Cancelled;
use forebay_store::Entry;
use forebay_store::planted::{self, PlantedBug};

use super::table::TableChange;
use crate::error::{EngineError, EngineErrorKind, Obstacle};
use crate::lane::engine::EngineLane;
use crate::state::volume::VolumeState;

impl EngineLane {
    /// Deletes a volume and all its cached blocks. Its dirty data is written to the origin first,
    /// so that the origin is complete, unless the data is to be discarded. `commit` is called right
    /// before the volume is removed from the volume table.
    ///
    /// # Errors
    /// The command is cancelled before that, dirty data cannot be written back, or the volume table
    /// cannot be changed. The volume then stays unchanged.
    pub async fn delete(
        self: &Rc<Self>,
        name: &str,
        discard_dirty: bool,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
        commit: impl FnOnce() -> Result<(), Cancelled>,
    ) -> Result<TableChange, EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let discard_dirty = discard_dirty || planted::has(PlantedBug::DeletesUndrained);
        self.loaded_to_delete(discard_dirty).await?;
        if !discard_dirty {
            // Clients continue to write; the second drain, without clients, leaves no dirty block.
            self.drain_volume(&volume, volume.sweeps() + 2, &progress).await?;
        }
        if let Err(unanswered) = self.patiently(&volume, self.quiesce(&volume)).await
            && !discard_dirty
        {
            volume.set_state(VolumeState::Running);
            return Err(unanswered);
        }
        if !discard_dirty && let Err(error) = self.drain_volume(&volume, u64::MAX, &progress).await
        {
            volume.set_state(VolumeState::Running);
            return Err(error);
        }
        if let Err(cancelled) = commit() {
            volume.set_state(VolumeState::Running);
            return Err(cancelled.into());
        }
        // Change the volume table first, while the volume can still be kept unchanged.
        let recorded = match self.strike(name).await {
            Ok(recorded) => recorded,
            Err(error) => {
                volume.set_state(VolumeState::Running);
                return Err(error);
            }
        };
        volume.set_state(VolumeState::Removed);
        if let Err(unanswered) = self.patiently(&volume, self.wait_for_writeback(&volume)).await {
            tracing::warn!(%unanswered, "writes to the origin of the deleted volume may still be under way");
        }
        volume.waits.close();
        self.cache.remove_volume(name);
        self.drop_view(volume.id);
        let space = volume.space;
        // The addresses become free when the last task of the volume has ended.
        drop(volume);
        self.store.remove_space(&space).await;
        self.cache.detached.remove(space.id);
        Ok(recorded)
    }

    /// Deletes a volume that is not started. Its dirty data is lost: `discard_dirty` confirms that
    /// this is intended.
    ///
    /// # Errors
    /// The volume has dirty or damaged data that is not to be discarded, or does not exist; or the
    /// cache device fails.
    pub async fn delete_stopped(
        self: &Rc<Self>,
        name: &str,
        discard_dirty: bool,
    ) -> Result<TableChange, EngineError> {
        let records = self.cache.store.volumes();
        let record = records
            .iter()
            .find(|record| record.name == name)
            .ok_or_else(|| EngineError::no_volume(name))?;
        self.loaded_to_delete(discard_dirty).await?;
        let space = self.cache.store.space_of(record.id);
        let mut dirty = 0u64;
        if let Some(space) = &space {
            let found = |address, _: &Entry| dirty += u64::from(space.block(address).is_some());
            self.store.visit(|entry| entry.dirty, found).await;
        }
        let at_risk = |message, obstacle: Obstacle| {
            Err(EngineError::caused(EngineErrorKind::DataAtRisk, message, obstacle))
        };
        if let Some(damage) = self.cache.store.damage_of(record.id).filter(|_| !discard_dirty) {
            let message = format!(
                "the volume '{name}' may have lost data: {damage}; 'forebay start --force {name}' goes on with what is left, --discard-dirty gives up what is not on the origin"
            );
            return at_risk(message, Obstacle::Damaged(damage));
        }
        if dirty > 0 && !discard_dirty {
            let message = format!(
                "the volume '{name}' is stopped and has {dirty} blocks that are not on its origin: start it to have them written back, or use --discard-dirty"
            );
            return at_risk(message, Obstacle::Dirty(dirty));
        }
        let recorded = self.strike(name).await?;
        if let Some(space) = space {
            self.store.remove_space(&space).await;
        }
        self.cache.detached.remove(record.id);
        Ok(recorded)
    }

    /// Waits until the index is loaded, because blocks that are loaded later would stay in it. If
    /// the index cannot be read, no blocks are loaded, and dirty blocks can only be discarded.
    async fn loaded_to_delete(&self, discard_dirty: bool) -> Result<(), EngineError> {
        match self.index_loaded().await {
            Err(_) if discard_dirty && self.cache.store.cannot_be_loaded() => Ok(()),
            loaded => loaded,
        }
    }

    /// Removes a volume from the volume table.
    async fn strike(self: &Rc<Self>, name: &str) -> Result<TableChange, EngineError> {
        let name = name.to_owned();
        let change = self.change_volumes(move |volumes, _| {
            volumes.retain(|volume| volume.name != name);
            Ok(())
        });
        change.await
    }
}
