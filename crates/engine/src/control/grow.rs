//! Growing an origin while its volume is stopped: the volume takes the new size (invariant 22).
//!
//! The last block may have reached beyond the old end. The tail past the old end was marked valid;
//! the origin has data there now.

use forebay_core::SectorMask;
use forebay_format::{MAX_BLOCKS, VolumeRecord};
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Class, Condition, StoreError, Version};

use crate::error::EngineError;
use crate::lane::engine::EngineLane;

impl EngineLane {
    /// Prepares a stopped volume for an origin that has grown to `size` bytes. Returns `false` if
    /// the volume keeps its size this time.
    ///
    /// # Errors
    /// The cache device fails.
    pub(crate) async fn ready_to_grow(
        &self,
        record: &VolumeRecord,
        size: u64,
    ) -> Result<bool, EngineError> {
        let store = &self.cache.store;
        let block = store.block_size();
        let keeps = |why: &str| {
            tracing::warn!(
                volume = record.name,
                size,
                "the origin has grown, and the volume keeps its size until its next start: {why}"
            );
            Ok(false)
        };
        let alignment = u64::from(record.alignment);
        let wanted = size.saturating_add(alignment).div_ceil(block.bytes());
        if wanted > MAX_BLOCKS {
            return keeps("a volume cannot have so many blocks");
        }
        let space = match self.store.grow_space(record.id, wanted).await {
            Ok(Some(space)) => space,
            Ok(None) => return keeps("it has no blocks"),
            Err(error @ StoreError::Refused(_)) => return keeps(&error.to_string()),
            Err(error) => return Err(error.into()),
        };
        let end = record.origin_bytes + alignment;
        let inside = (end % block.bytes() / forebay_core::SECTOR_SIZE) as u32;
        if inside == 0 || planted::has(PlantedBug::OldEndStays) {
            return Ok(true);
        }
        let last = block.block_of(end - 1);
        if store.is_held(space.id, last) {
            // A held version is written to the origin as its record says, including the tail beyond
            // the old end.
            return keeps("its origin still has to get versions of its last block, in order");
        }
        store.forget(&space, last, |entry| !entry.dirty);
        if let Some(pinned) = store.look_up(&space, last) {
            let entry = pinned.found.entry;
            let sectors = block.sectors();
            let mut valid = pinned.found.mask.clone().unwrap_or_else(|| SectorMask::all(sectors));
            valid.remove(inside..sectors);
            let Ok(payload) = self.store.read_block(&space, pinned).await else {
                return keeps("its last block cannot be read back");
            };
            let version = Version {
                space: &space,
                block: last,
                dirty: true,
                mask: Some(valid),
                rank: entry.rank,
                condition: Condition::Slot(entry.slot),
            };
            let appended = self
                .store
                .append(version, Class::Background, |cell| cell.copy_from_slice(&payload));
            if !matches!(appended, Appended::Done { .. }) {
                return keeps("there is no room for its last block");
            }
        }
        // Barrier for invariant 22: once the new size is durable, no version that marks the old
        // tail as valid may come back after a crash.
        self.store.commit().await?;
        self.store.sync_marks().await?;
        tracing::info!(
            volume = record.name,
            from = record.origin_bytes,
            size,
            "the origin has grown"
        );
        Ok(true)
    }
}
