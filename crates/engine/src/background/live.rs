//! Finds the live blocks of a segment.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_core::{OriginBlock, SegmentId, Slot, VolumeId};
use forebay_device::IoBuf;
use forebay_format::{Body, PAGE, RecordHeader, record};
use forebay_lane::join_all;
use forebay_store::{Entry, VolumeSpace};

use crate::lane::engine::EngineLane;

/// Distance of prefetch hints ahead of look-ups, in blocks.
const LOOKED_UP_AHEAD: usize = 4;

/// Number of bytes per read in a segment whose records have at most a quarter of that.
const SHORT_RECORDS: u64 = 64 << 10;

/// A live block of a segment that is being reclaimed.
pub(crate) struct LiveBlock {
    pub(crate) block: OriginBlock,
    pub(crate) slot: Slot,
    pub(crate) dirty: bool,
    /// Whether the replacement policy keeps the block.
    pub(crate) kept: bool,
    /// Whether the block is clean and pinned, or guarded by its volume's share: it can leave its
    /// segment only by being reinserted.
    pub(crate) stays: bool,
}

impl EngineLane {
    /// Returns the live blocks of a segment by volume: from its record headers or, if one cannot be
    /// read, from the index.
    pub(crate) async fn live_blocks(
        &self,
        segment: SegmentId,
    ) -> BTreeMap<VolumeId, Vec<LiveBlock>> {
        let store = &self.cache.store;
        let mut live: BTreeMap<VolumeId, Vec<LiveBlock>> = BTreeMap::new();
        let mut count = 0;
        for header in self.record_headers(segment).await {
            count += self.add_live(&header, &mut live);
        }
        if count >= store.segments.live(segment) as usize {
            return live;
        }
        self.live_by_index(segment).await
    }

    /// Returns the headers of the records in a segment in order, without unreadable ones.
    pub(crate) async fn record_headers(&self, segment: SegmentId) -> Vec<RecordHeader> {
        let store = &self.cache.store;
        let granule = store.geometry().granule();
        let end = u64::from(store.segments.position(segment)) * granule;
        // Parts of the segment are read concurrently, because within a part each header is found by
        // the one before.
        let starts = store.segments.record_starts(segment).into_iter();
        let mut starts: Vec<u64> = starts.map(|start| u64::from(start) * granule).collect();
        if starts.first() != Some(&0) {
            starts.insert(0, 0);
        }
        let ends = starts.iter().skip(1).copied().chain([end]);
        let parts = starts.iter().zip(ends).map(|(start, end)| self.headers(segment, *start..end));
        join_all(parts).await.into_iter().flatten().collect()
    }

    /// Reads the headers of the records in a part of a segment, which begins with a header, up to
    /// the first unreadable one.
    async fn headers(&self, segment: SegmentId, part: Range<u64>) -> Vec<RecordHeader> {
        let store = &self.cache.store;
        let geometry = store.geometry();
        let mut headers = Vec::new();
        let mut at = part.start;
        let mut image = IoBuf::zeroed(0);
        let mut image_at = at;
        let mut short = false;
        while at < part.end {
            if at + PAGE as u64 > image_at + image.len() as u64 {
                // If records are short, read several headers at once.
                let bytes = (if short { SHORT_RECORDS } else { PAGE as u64 }).min(part.end - at);
                let buf = IoBuf::for_overwrite(bytes as usize);
                let offset = geometry.segment_offset(segment) + at;
                let Ok(read) = self.store.queue().read(offset, buf).await else { break };
                (image, image_at) = (read, at);
            }
            let from = (at - image_at) as usize;
            let Some(page) = image.get(from..from + PAGE) else { break };
            let position = (at / geometry.granule()) as u32;
            let Ok(header) = record::decode(page, geometry, &store.uuid()) else { break };
            if header.segment != segment || header.position != position {
                break;
            }
            let bytes = PAGE as u64 + u64::from(header.payload_bytes);
            short = bytes <= SHORT_RECORDS / 4;
            at = (at + bytes).next_multiple_of(PAGE as u64);
            headers.push(header);
        }
        headers
    }

    /// Adds the live blocks of a record, and returns their number.
    fn add_live(
        &self,
        header: &RecordHeader,
        live: &mut BTreeMap<VolumeId, Vec<LiveBlock>>,
    ) -> usize {
        let store = &self.cache.store;
        let Body::Data(entries) = &header.body else { return 0 };
        let mut count = 0;
        // The inner value is `None` for a deleted volume.
        let mut space: Option<(VolumeId, Option<VolumeSpace>)> = None;
        for (number, entry) in entries.iter().enumerate() {
            let slot = header.cell(store.geometry(), number);
            if let Some(next) = entries.get(number + LOOKED_UP_AHEAD)
                && let Some((id, Some(space))) = &space
                && *id == next.volume
                && space.contains(next.block)
            {
                store.expect(space, next.block, false);
            }
            if entry.void {
                continue;
            }
            if space.is_none_or(|(id, _)| id != entry.volume) {
                space = Some((entry.volume, store.space_of(entry.volume)));
            }
            let Some((_, Some(space))) = space else { continue };
            if space.contains(entry.block)
                && let Some(found) = store.peek(&space, entry.block)
                && found.entry.slot == slot
            {
                count += 1;
                live.entry(entry.volume).or_default().push(LiveBlock {
                    block: entry.block,
                    slot,
                    dirty: found.entry.dirty,
                    kept: found.entry.rank > 0,
                    stays: false,
                });
            }
        }
        count
    }

    /// Returns the live blocks of a segment from a pass over the whole index.
    async fn live_by_index(&self, segment: SegmentId) -> BTreeMap<VolumeId, Vec<LiveBlock>> {
        let store = &self.cache.store;
        let mut live: BTreeMap<VolumeId, Vec<LiveBlock>> = BTreeMap::new();
        let spaces = store.spaces();
        // No block enters the segment meanwhile.
        let within = |entry: &Entry| store.segment_of(entry.slot) == segment;
        let found = |address, entry: &Entry| {
            if let Some((space, block)) = spaces.find(address) {
                let (slot, dirty, kept) = (entry.slot, entry.dirty, entry.rank > 0);
                let block = LiveBlock { block, slot, dirty, kept, stays: false };
                live.entry(space.id).or_default().push(block);
            }
        };
        self.store.visit(within, found).await;
        live
    }
}
