//! Writing the image of a checkpoint into its area, chunk by chunk.

use std::rc::Rc;

use forebay_core::{Generation, RecordNumber};
use forebay_format::checkpoint::{
    CheckpointRef, CheckpointWriter, ParityPlace, PartialMask, SegmentUse,
};
use forebay_format::{CheckpointWriteError, IndexEntry, SegmentState as SegmentLine};
use forebay_lane::{turns, yield_now};

use super::arrangement;
use crate::error::StoreError;
use crate::index::Address;
use crate::lane::StoreLane;
use crate::meta::page_buffer;
use crate::planted::{self, PlantedBug};
use crate::segments::{SegmentSnapshot, SegmentState};
use crate::store::Spaces;
use crate::table::Entry;

/// Entries encoded at a time. Other tasks run after each chunk.
const BATCH: usize = 4096;

fn fault(error: CheckpointWriteError) -> StoreError {
    StoreError::Refused(format!("a checkpoint could not be made: {error}"))
}

/// The writer of one image.
pub(super) struct ImageWriter<'a> {
    lane: &'a StoreLane,
    writer: CheckpointWriter,
    /// Offset of the area on the device, in bytes.
    area: u64,
    /// Bits of a payload check that entries keep.
    check_bits: u32,
    /// The volumes in the image. All data of a volume that is created meanwhile is in the log.
    spaces: Rc<Spaces>,
}

impl<'a> ImageWriter<'a> {
    /// Begins an image in the area that the last checkpoint does not occupy.
    pub(super) fn begin(lane: &'a StoreLane) -> Result<Self, StoreError> {
        let store = lane.store();
        let last = store.meta.lock().checkpoint;
        let (area, number) = last.map_or((0, 1), |last| (1 - last.area, last.number + 1));
        let most = u32::from(forebay_format::checkpoint::MAX_CHECK_BITS);
        let check_bits = store.index.check_bits().min(most);
        let (geometry, bits) = (&store.geometry, check_bits as u8);
        let mut writer =
            CheckpointWriter::new(geometry, store.uuid, area, number, bits).map_err(fault)?;
        let (index, spaces) = (&store.index, Rc::new(store.spaces()));
        writer.arrange(arrangement(index.geometry(), index.shard_count(), spaces.all()));
        Ok(ImageWriter {
            lane,
            writer,
            area: geometry.checkpoint_areas[usize::from(area)],
            check_bits,
            spaces,
        })
    }

    /// Writes the segment table for records up to `base`, one part at a time; each part is in the
    /// state of the moment at which it is copied.
    pub(super) async fn segments(&mut self, base: RecordNumber) -> Result<(), StoreError> {
        let line = |segment: SegmentSnapshot| SegmentLine {
            generation: segment.generation,
            usage: match segment.state {
                SegmentState::Free => SegmentUse::Free,
                SegmentState::Open => SegmentUse::Open,
                _ => SegmentUse::Closed,
            },
            write_position: segment.position,
        };
        let (segments, part) = (&self.lane.store().segments, turns::AT_ONCE);
        for first in (0..segments.count()).step_by(part) {
            let lives = segments.snapshot(base, first..first.saturating_add(part as u32));
            let lines: Vec<_> = lives.into_iter().map(line).collect();
            self.push(&lines, CheckpointWriter::push_segments).await?;
            yield_now().await;
        }
        Ok(())
    }

    /// Writes the index; each shard is in the state of the moment at which it is copied.
    pub(super) async fn index(&mut self) -> Result<(), StoreError> {
        let store = self.lane.store();
        let spaces = self.spaces.clone();
        let without_masks = planted::has(PlantedBug::CheckpointWithoutMasks);
        // Collected for each shard, without spare capacity: memory for these copies was held in
        // advance.
        let mut masks: Vec<Vec<PartialMask>> = Vec::new();
        let (mut copy, mut partial) = (Vec::new(), Vec::new());
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
                    && !without_masks
                {
                    copies.push(PartialMask { volume: space.id, block, mask });
                }
            }
            masks.push(copies);
            self.entries(&copy, &spaces).await?;
        }
        for masks in masks {
            self.push(&masks, CheckpointWriter::push_masks).await?;
        }
        while self.write_chunk().await? {}
        Ok(())
    }

    /// Writes one shard's entries.
    async fn entries(
        &mut self,
        copy: &[(Address, Entry)],
        spaces: &Spaces,
    ) -> Result<(), StoreError> {
        let mut entries = Vec::with_capacity(BATCH);
        for batch in copy.chunks(BATCH) {
            entries.clear();
            for (address, entry) in batch {
                let Some((space, block)) = spaces.find(*address) else { continue };
                entries.push(IndexEntry {
                    block,
                    slot: entry.slot,
                    check: entry.check.to_28() >> (28 - self.check_bits),
                    volume: space.id,
                    rank: entry.rank,
                    dirty: entry.dirty,
                    partial: entry.partial && !planted::has(PlantedBug::CheckpointWithoutMasks),
                });
            }
            self.push(&entries, CheckpointWriter::push_entries).await?;
        }
        Ok(())
    }

    /// Adds items to the image; writes every chunk that becomes full.
    async fn push<T>(
        &mut self,
        mut rest: &[T],
        push: impl Fn(&mut CheckpointWriter, &[T]) -> Result<usize, CheckpointWriteError>,
    ) -> Result<(), StoreError> {
        while !rest.is_empty() {
            let taken = push(&mut self.writer, rest).map_err(fault)?;
            rest = &rest[taken..];
            if !rest.is_empty() {
                self.write_chunk().await?;
            }
        }
        Ok(())
    }

    /// Writes the next chunk. Returns `false` if none is left.
    async fn write_chunk(&mut self) -> Result<bool, StoreError> {
        let Some(chunk) = self.writer.take_chunk().map_err(fault)? else { return Ok(false) };
        let bytes = chunk.bytes.len() as u64;
        let written = &self.lane.store().counters.written_bytes;
        written.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        write(self.lane, self.area + chunk.offset, chunk.bytes).await?;
        // A device that completes at once would not let other tasks run.
        yield_now().await;
        Ok(true)
    }

    /// Writes header and parity, and returns the reference for the superblock. Nothing of the image
    /// is durable yet.
    pub(super) async fn finish(
        self,
        base: RecordNumber,
        sequence: u64,
        next_generation: Generation,
    ) -> Result<CheckpointRef, StoreError> {
        let finished = self.writer.finish(base, sequence, next_generation).map_err(fault)?;
        write(self.lane, self.area, &finished.header).await?;
        if let Some(place) = ParityPlace::of(&finished.reference, &self.lane.store().geometry) {
            write(self.lane, self.area + place.offset, &finished.parity).await?;
        }
        Ok(finished.reference)
    }
}

/// Writes a part of the image. An error marks the cache device as failed.
async fn write(lane: &StoreLane, offset: u64, part: &[u8]) -> Result<(), StoreError> {
    let written = lane.queue().write(offset, page_buffer(part)).await;
    written.map(drop).map_err(|error| {
        lane.store().fail(&error);
        error.into()
    })
}
