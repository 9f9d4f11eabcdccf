//! Writing checkpoints: an image of the index from which recovery starts.
//!
//! A checkpoint is taken while requests go on. It contains everything in records up to its *base*,
//! and everything with a sequence up to its *sequence*; recovery replays the rest, and the newest
//! version of each block wins. Steps, in this order:
//! 1. base: the last closed record; wait until all up to it are written, so that every cell in
//!    them is in the index. Only then the sequence: the highest that was given out; from then on
//!    only higher ones are. So versions in records up to the base never have to be compared with
//!    replayed ones: those are newer, or the copy has them already;
//! 2. copy the segment table, then the index, shard by shard;
//! 3. commit: every record that the copy may refer to is durable;
//! 4. make the copy durable, then the superblock that refers to it;
//! 5. only now may segments with records up to the base be used again.

pub(crate) mod source;

use std::rc::Rc;
use std::sync::atomic::Ordering;

use forebay_format::checkpoint::{CheckpointWriter, ParityPlace, PartialMask, SegmentUse};
use forebay_format::{CheckpointWriteError, IndexEntry, SegmentState as SegmentLine};

use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::meta::{CLEAN_DISTRUSTED, page_buffer};
use crate::planted::{self, PlantedBug};
use crate::segments::SegmentState;
use crate::store::Store;

/// Entries that are encoded between two chances for others to run.
const BATCH: usize = 4096;

impl Store {
    /// Bits of a payload check that a checkpoint keeps.
    pub(crate) fn kept_check_bits(&self) -> u32 {
        self.index
            .geometry()
            .check_bits()
            .min(u32::from(forebay_format::checkpoint::MAX_CHECK_BITS))
    }
}

fn fault(error: CheckpointWriteError) -> StoreError {
    StoreError::Refused(format!("a checkpoint could not be made: {error}"))
}

impl StoreLane {
    /// Writes a checkpoint. `clean`: nothing is appended any more, the device is being closed.
    ///
    /// # Errors
    /// The device failed; the previous checkpoint is then still the one that counts.
    pub async fn checkpoint(self: &Rc<Self>, clean: bool) -> Result<(), StoreError> {
        let store = self.store();
        let _turn = store.checkpoint_gate.enter().await;
        let appended = store.counters.written_bytes.load(Ordering::Relaxed);
        let marks = store.log.marks_pushed();
        let rested = store.resting.lock().clone();
        self.close_records(false);
        let base = store.log.last_closed();
        self.wait_written(base).await?;
        let sequence = store.index.highest_sequence();
        store.index.raise_sequence(sequence);
        let (area, number) = {
            let meta = store.meta.lock();
            meta.checkpoint.map_or((0, 1), |last| (1 - last.area, last.number + 1))
        };
        let bits = store.kept_check_bits();
        let mut writer =
            CheckpointWriter::new(&store.geometry, store.uuid, area, number, bits as u8)
                .map_err(fault)?;
        let offset = store.geometry.checkpoint_areas[usize::from(area)];
        let (lives, next_generation) = store.segments.snapshot(base);
        let lines: Vec<_> = lives
            .into_iter()
            .map(|life| SegmentLine {
                generation: life.generation,
                usage: match life.state {
                    SegmentState::Free => SegmentUse::NeverUsed,
                    SegmentState::Open => SegmentUse::Open,
                    _ => SegmentUse::Closed,
                },
                write_position: life.position,
            })
            .collect();
        let mut rest = &lines[..];
        loop {
            let taken = writer.push_segments(rest).map_err(fault)?;
            rest = &rest[taken..];
            if rest.is_empty() {
                break;
            }
            self.write_chunk(&mut writer, offset).await?;
        }
        let spaces = store.spaces();
        // For each shard, and no larger than it must be: memory for the copies is held.
        let mut masks: Vec<Vec<PartialMask>> = Vec::new();
        let (mut copy, mut partial) = (Vec::new(), Vec::new());
        let mut entries = Vec::with_capacity(BATCH);
        let mut shards = 0..store.index.shard_count();
        if planted::has(PlantedBug::CheckpointForgetsShard) && shards.len() > 1 {
            shards.end -= 1;
        }
        for shard in shards {
            copy.clear();
            store.index.snapshot_shard(shard, &mut copy, &mut partial);
            let mut copies = Vec::with_capacity(partial.len());
            for (address, mask) in partial.drain(..) {
                if let Some((space, block)) = spaces.find(address)
                    && !planted::has(PlantedBug::CheckpointWithoutMasks)
                {
                    copies.push(PartialMask { volume: space.id, block, mask });
                }
            }
            masks.push(copies);
            for batch in copy.chunks(BATCH) {
                entries.clear();
                for (address, entry) in batch {
                    let Some((space, block)) = spaces.find(*address) else { continue };
                    entries.push(IndexEntry {
                        block,
                        slot: entry.slot,
                        check: entry.check.to_28() >> (28 - bits),
                        volume: space.id,
                        rank: entry.rank,
                        dirty: entry.dirty,
                        partial: entry.partial && !planted::has(PlantedBug::CheckpointWithoutMasks),
                    });
                }
                let mut rest = &entries[..];
                while !rest.is_empty() {
                    let taken = writer.push_entries(rest).map_err(fault)?;
                    rest = &rest[taken..];
                    if !rest.is_empty() {
                        self.write_chunk(&mut writer, offset).await?;
                    }
                }
            }
        }
        for masks in masks {
            let mut rest = &masks[..];
            while !rest.is_empty() {
                let taken = writer.push_masks(rest).map_err(fault)?;
                rest = &rest[taken..];
                if !rest.is_empty() {
                    self.write_chunk(&mut writer, offset).await?;
                }
            }
        }
        while self.write_chunk(&mut writer, offset).await? {}
        let late = planted::has(PlantedBug::CheckpointBaseLate);
        let claimed = if late { store.log.last_closed() } else { base };
        let finished = writer.finish(claimed, sequence, next_generation).map_err(fault)?;
        self.write_checkpoint_part(offset, &finished.header).await?;
        if let Some(place) = ParityPlace::of(&finished.reference, &store.geometry) {
            self.write_checkpoint_part(offset + place.offset, &finished.parity).await?;
        }
        // Barrier for invariant 8: the records that the copy refers to, before the copy counts.
        if !planted::has(PlantedBug::CheckpointBeforeRecords) {
            self.commit().await?;
        }
        // Barrier for invariant 7: the copy, before the superblock that refers to it.
        if !planted::has(PlantedBug::CheckpointBeforeCopy) {
            self.sync().await?;
        }
        let reference = finished.reference;
        let clean = clean && store.log.last_closed() == base;
        // From here on the checkpoint before cannot be recovered from: no copy refers to it.
        self.write_superblock(|superblock| {
            superblock.checkpoint = Some(reference);
            superblock.clean_shutdown = clean;
            superblock.compat &= !CLEAN_DISTRUSTED;
        })
        .await?;
        store.resting.lock().retain(|id| !rested.contains(id));
        store.appended_at_checkpoint.store(appended, Ordering::Relaxed);
        store.log.forget_marks(marks);
        store.segments.checkpoint_durable(base);
        self.free_drained();
        Ok(())
    }

    async fn write_chunk(
        &self,
        writer: &mut CheckpointWriter,
        area: u64,
    ) -> Result<bool, StoreError> {
        let Some(chunk) = writer.take_chunk().map_err(fault)? else { return Ok(false) };
        let offset = area + chunk.offset;
        let bytes = chunk.bytes.len() as u64;
        let buf = page_buffer(chunk.bytes);
        self.store().counters.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.queue().write(offset, buf).await.map_err(|error| {
            self.store().fail(&error);
            StoreError::from(error)
        })?;
        Ok(true)
    }

    async fn write_checkpoint_part(&self, offset: u64, part: &[u8]) -> Result<(), StoreError> {
        self.queue().write(offset, page_buffer(part)).await.map_err(|error| {
            self.store().fail(&error);
            StoreError::from(error)
        })?;
        Ok(())
    }
}
