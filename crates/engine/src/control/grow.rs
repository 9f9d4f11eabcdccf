//! An origin that has become larger while its volume was down: the volume takes the new size
//! (invariant 22).
//!
//! The last block may have reached beyond the old end. What the cache has of it there is nothing, and
//! counts as valid only as long as it is outside: now the origin has something there.

use forebay_core::SectorMask;
use forebay_format::{MAX_BLOCKS, VolumeRecord};
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Class, Condition, Version};

use crate::error::EngineError;
use crate::lane::engine::EngineLane;

impl EngineLane {
    /// Prepares a volume that is not up for an origin of `size` bytes, more than it had. `false`: it
    /// has to keep its size this time.
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
        let Some(space) = store.space_of(record.id) else { return keeps("it has no blocks") };
        let alignment = u64::from(record.alignment);
        let wanted = size.saturating_add(alignment).div_ceil(block.bytes());
        if wanted > space.blocks {
            return keeps("the index was made for fewer blocks");
        }
        if wanted > MAX_BLOCKS {
            return keeps("a volume cannot have so many blocks");
        }
        let end = record.origin_bytes + alignment;
        let inside = (end % block.bytes() / forebay_core::SECTOR_SIZE) as u32;
        if inside == 0 || planted::has(PlantedBug::OldEndStays) {
            return Ok(true);
        }
        let last = block.block_of(end - 1);
        if store.is_held(space.id, last) {
            // What is held goes to the origin as its record describes it, the outside included.
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
        // Barrier for invariant 22: nothing that counts the old outside as valid comes back after a
        // crash, once the new size is durable.
        self.store.commit().await?;
        self.store.settle_marks().await?;
        tracing::info!(
            volume = record.name,
            from = record.origin_bytes,
            size,
            "the origin has grown"
        );
        Ok(true)
    }
}
