//! Compares clean cached blocks with the origin when a volume starts and it is unclear whether the
//! origin was written by others.
//!
//! A few of the blocks that entered the cache last are compared, because other writers change the
//! same places as the volume's clients: journals, directories, tables. Their number is limited by
//! the time that a disk needs to read them.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::{Generation, OriginBlock, SegmentId, Slot};
use forebay_device::{IoBuf, Queue};
use forebay_format::{Body, VolumeRecord};
use forebay_lane::{join_all, turns};
use forebay_store::{Entry, VolumeSpace};

use crate::error::EngineError;
use crate::lane::engine::EngineLane;

/// Bytes of the origin per read, whose blocks are then compared.
const REGION: u64 = 64 << 10;
/// Maximum number of blocks that are compared in a region.
const BLOCKS: usize = 16;
/// Segments of the log that are searched, the newest first.
const SEGMENTS: usize = 24;
/// Reads of the origin in flight.
const DEPTH: usize = 32;
/// Alignment that every device can read.
const ALIGN: u64 = 4096;

/// Number of regions that are compared after an orderly stop: a disk reads them in address order in
/// about a second.
pub(crate) const FEW: usize = 192;
/// Number of regions that are compared after a crash, which leaves less evidence.
pub(crate) const MORE: usize = 384;

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compared {
    /// Number of compared blocks.
    pub(crate) blocks: u64,
    /// Blocks that differ.
    pub(crate) differing: Vec<OriginBlock>,
}

impl EngineLane {
    /// Compares the clean blocks that entered the cache last, in at most `regions` parts of the
    /// origin. Unreadable blocks are skipped.
    ///
    /// # Errors
    /// If the index cannot be loaded.
    pub(crate) async fn compare_recent(
        &self,
        record: &VolumeRecord,
        origin: &Queue,
        regions: usize,
    ) -> Result<Compared, EngineError> {
        let mut compared = Compared::default();
        let Some(space) = self.cache.store.space_of(record.id) else { return Ok(compared) };
        let recent = self.recent(record, &space, regions).await;
        let on_load = |address, entry: &Entry| self.cache.on_load(&self.lane, address, entry);
        let mut wanted = Vec::new();
        for blocks in recent.into_values() {
            let mut clean = Vec::new();
            for (block, slot) in blocks {
                self.store.load(&space, (block, OriginBlock(block.0 + 1)), &on_load).await?;
                let found = self.cache.store.peek(&space, block);
                // A later version may be elsewhere.
                if found.is_some_and(|found| found.entry.slot == slot && !found.entry.dirty) {
                    clean.push(block);
                }
            }
            clean.sort_unstable();
            wanted.push(clean);
        }
        for some in wanted.chunks(DEPTH) {
            let reads =
                some.iter().map(|blocks| self.compare_region(record, &space, origin, blocks));
            for (blocks, differing) in join_all(reads).await {
                compared.blocks += blocks;
                compared.differing.extend(differing);
            }
        }
        Ok(compared)
    }

    /// Returns the blocks of a volume whose versions are the newest in the log, with their slots,
    /// by regions of the origin. Some of them may have left the index.
    async fn recent(
        &self,
        record: &VolumeRecord,
        space: &VolumeSpace,
        regions: usize,
    ) -> BTreeMap<u64, Vec<(OriginBlock, Slot)>> {
        let store = &self.cache.store;
        let mut recent: BTreeMap<u64, Vec<(OriginBlock, Slot)>> = BTreeMap::new();
        for segment in self.newest_segments().await {
            for header in self.record_headers(segment).await.iter().rev() {
                let Body::Data(entries) = &header.body else { continue };
                for (number, entry) in entries.iter().enumerate().rev() {
                    let whole = place(record, store.block_size().bytes(), entry.block);
                    let Some(at) = whole.filter(|_| {
                        !entry.void && entry.volume == record.id && space.contains(entry.block)
                    }) else {
                        continue;
                    };
                    let full = recent.len() >= regions;
                    let region = match recent.entry(at / REGION) {
                        std::collections::btree_map::Entry::Vacant(_) if full => continue,
                        region => region.or_default(),
                    };
                    let slot = header.cell(store.geometry(), number);
                    if region.len() < BLOCKS
                        && region.iter().all(|(known, _)| *known != entry.block)
                    {
                        region.push((entry.block, slot));
                    }
                }
            }
            if recent.len() >= regions {
                break;
            }
        }
        recent
    }

    /// Returns the segments that were opened last, newest first.
    async fn newest_segments(&self) -> Vec<SegmentId> {
        let segments = &self.cache.store.segments;
        let mut newest: BTreeSet<(Generation, SegmentId)> = BTreeSet::new();
        let mut looked_at = 0;
        for segment in (0..segments.count()).map(SegmentId) {
            let one = (segments.generation(segment), segment);
            if newest.len() < SEGMENTS || newest.first().is_some_and(|oldest| *oldest < one) {
                newest.insert(one);
                if newest.len() > SEGMENTS {
                    newest.pop_first();
                }
            }
            turns::rest(&mut looked_at).await;
        }
        newest.into_iter().rev().map(|(_, segment)| segment).collect()
    }

    /// Compares blocks of one region, which are in ascending order. Returns their number, and the
    /// blocks that differ.
    async fn compare_region(
        &self,
        record: &VolumeRecord,
        space: &VolumeSpace,
        origin: &Queue,
        blocks: &[OriginBlock],
    ) -> (u64, Vec<OriginBlock>) {
        let bytes = self.cache.store.block_size().bytes();
        let places = blocks.iter().filter_map(|block| place(record, bytes, *block));
        let Some((start, end)) = span(places, bytes) else { return (0, Vec::new()) };
        let Ok(content) = read_span(origin, start, end, record.origin_bytes).await else {
            return (0, Vec::new());
        };
        // Compares bytes: a checksum may miss changes of metadata that are followed by a CRC of
        // their own.
        let compare = blocks.iter().filter_map(|block| {
            let at = place(record, bytes, *block)?.checked_sub(start)? as usize;
            let own = content.get(at..at + bytes as usize)?;
            Some(async move { (*block, self.differs(space, *block, own, 0).await) })
        });
        let differs = join_all(compare).await.into_iter();
        // Blocks that the cache device cannot return are skipped.
        let known: Vec<(OriginBlock, bool)> =
            differs.filter_map(|(block, differs)| Some((block, differs.ok()?))).collect();
        let differing = known.iter().filter(|(_, differs)| *differs).map(|(block, _)| *block);
        (known.len() as u64, differing.collect())
    }
}

/// Returns the offset of a block on the origin, if it lies within the origin completely.
pub(crate) fn place(record: &VolumeRecord, bytes: u64, block: OriginBlock) -> Option<u64> {
    let at = block.0.checked_mul(bytes)?.checked_sub(u64::from(record.alignment))?;
    (at.checked_add(bytes)? <= record.origin_bytes).then_some(at)
}

/// Returns the first byte of all blocks that start at these places, in order, and the end of the
/// last.
fn span(mut places: impl Iterator<Item = u64>, bytes: u64) -> Option<(u64, u64)> {
    let first = places.next()?;
    Some((first, places.last().unwrap_or(first) + bytes))
}

/// Reads a part of an origin of `size` bytes, at any sector boundaries.
///
/// # Errors
/// The device's error.
pub(crate) async fn read_span(
    origin: &Queue,
    start: u64,
    end: u64,
    size: u64,
) -> Result<IoBuf, forebay_device::DeviceError> {
    let (from, to) = (start / ALIGN * ALIGN, end.next_multiple_of(ALIGN).min(size));
    let mut buf = origin.read(from, IoBuf::for_overwrite((to - from) as usize)).await?;
    Ok(buf.split_off((start - from) as usize))
}
