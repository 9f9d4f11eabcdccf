//! Writing checkpoints: an image of the index from which recovery starts.
//!
//! A checkpoint is taken while requests continue. It contains everything in records up to its
//! *base*, and everything with a sequence up to its *sequence*; recovery replays the rest, and the
//! newest version of each block wins. Steps, in this order:
//! 1. base: the last closed record; wait until all records up to it are written, so that every cell
//!    in them is in the index. Only then the sequence: the highest assigned one; later versions
//!    get higher ones. So versions in records up to the base never have to be compared with
//!    replayed ones: a replayed version is either newer, or contained in the copy;
//! 2. copy the segment table, part by part, then the index, shard by shard;
//! 3. commit: every record that the copy may refer to is durable;
//! 4. make the copy durable, then the superblock that refers to it;
//! 5. only now may segments with records up to the base be reused.

mod image;
pub(crate) mod source;

use std::rc::Rc;
use std::sync::atomic::Ordering;

use forebay_format::Arrangement;

use crate::checkpoint::image::ImageWriter;
use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::meta::{CLEAN_DISTRUSTED, LOAD_AT_ONCE};
use crate::planted::{self, PlantedBug};
use crate::spaces::{self, VolumeSpace};
use crate::table::TableGeometry;

impl StoreLane {
    /// Writes a checkpoint, once the index is loaded. `clean`: nothing is appended any more,
    /// because the device is being closed.
    ///
    /// # Errors
    /// The device failed; the previous checkpoint then remains the current one.
    pub async fn checkpoint(self: &Rc<Self>, clean: bool) -> Result<(), StoreError> {
        let store = self.store();
        if !store.loaded().await {
            return Err(self.failed());
        }
        let _turn = store.checkpoint_gate.enter().await;
        let appended = store.counters.written_bytes.load(Ordering::Relaxed);
        let marks = store.log.marks_pushed();
        // The blocks of a volume that is deleted but not purged yet get into the copy, and may be
        // reinserted behind it: its number rests until the next one (invariant 3).
        let mut rested = store.resting.lock().clone();
        rested.retain(|id| store.space_of(*id).is_none());
        self.close_records(false);
        let base = store.log.last_closed();
        self.wait_written(base).await?;
        let sequence = store.index.highest_sequence();
        store.index.raise_sequence(sequence);
        let spaces = spaces::checksum(store.spaces().all());
        let mut image = ImageWriter::begin(self)?;
        // Before the first part of the table: a segment that is opened while it is copied has this
        // generation or a higher one.
        let next_generation = store.segments.next_generation();
        image.segments(base).await?;
        image.index().await?;
        let late = planted::has(PlantedBug::CheckpointBaseLate);
        let claimed = if late { store.log.last_closed() } else { base };
        let reference = image.finish(claimed, sequence, next_generation).await?;
        // Barrier for invariant 8: the records that the copy refers to must be durable before the
        // copy takes effect.
        if !planted::has(PlantedBug::CheckpointBeforeRecords) {
            self.commit().await?;
        }
        // Barrier for invariant 7: the copy must be durable before the superblock refers to it.
        if !planted::has(PlantedBug::CheckpointBeforeCopy) {
            self.sync().await?;
        }
        let clean = clean && store.log.last_closed() == base;
        // After this write the previous checkpoint cannot be recovered from: neither superblock
        // refers to it.
        self.write_superblock(|superblock| {
            superblock.checkpoint = Some(reference);
            superblock.accept(None);
            superblock.compat &= !LOAD_AT_ONCE;
            superblock.clean_shutdown = clean;
            if !store.is_distrusted() {
                // The opening has acted on a bit that was set before it. If it was set since, the
                // device failed while this checkpoint was being written, and the copies in it may
                // be outdated (invariant 6).
                superblock.compat &= !CLEAN_DISTRUSTED;
            }
        })
        .await?;
        store.resting.lock().retain(|id| !rested.contains(id));
        store.appended_at_checkpoint.store(appended, Ordering::Relaxed);
        store.spaces_at_checkpoint.store(spaces, Ordering::Relaxed);
        store.log.forget_marks(marks);
        store.segments.checkpoint_durable(base);
        self.free_drained();
        Ok(())
    }
}

/// Returns the order in which an index of this shape writes its entries into a checkpoint.
pub(crate) fn arrangement(
    table: &TableGeometry,
    shards: u32,
    spaces: &[VolumeSpace],
) -> Arrangement {
    let (key_bits, spaces) = (table.key_bits(), spaces::checksum(spaces));
    Arrangement { shards, key_bits, spaces, dirty: 0 }
}
