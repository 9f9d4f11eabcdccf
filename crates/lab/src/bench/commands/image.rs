//! A large cache without its blocks: their entries are in the index and in the checkpoint, and the
//! pages of record headers are made when they are read. The payload is zeroes, with valid
//! checksums.

use std::sync::Arc;

use forebay_core::{
    BlockSize, Generation, OriginBlock, RecordNumber, SectorMask, SegmentId, VolumeId,
};
use forebay_format::record::{HEADER_BYTES, encode_data, encode_opening};
use forebay_format::{DataEntry, Geometry, Head, Uuid, crc32c, crc32c_append, max_entries};
use forebay_store::segments::Live;
use forebay_store::{Check, Entry, Store, VolumeSpace};

use crate::bench::device::Behind;
use crate::error::{LabResult, other};
use crate::progress::Progress;

/// Number of consecutive origin blocks of which exactly one is not cached.
const ONE_ABSENT_IN: u64 = 4;

/// Share of the cached blocks that is dirty, in tenths.
const DIRTY: u64 = 3;

/// Distance of index prefetches, in blocks: each insertion is a miss of the CPU's cache.
const AHEAD: u64 = 24;

/// The cached blocks of a volume, in the order in which they were written.
pub(super) struct Blocks {
    cache: Uuid,
    volume: VolumeId,
    size: BlockSize,
    /// Checksum of a block of zeroes.
    zeroes: u32,
}

impl Blocks {
    fn new(cache: Uuid, volume: VolumeId, size: BlockSize) -> Self {
        Blocks { cache, volume, size, zeroes: crc32c(&vec![0; size.as_usize()]) }
    }

    /// The block that was written as number `nth`.
    fn block(nth: u64) -> OriginBlock {
        OriginBlock(nth + nth / (ONE_ABSENT_IN - 1) + 1)
    }

    fn is_dirty(nth: u64) -> bool {
        nth % 10 < DIRTY
    }

    /// Computes `payload_check` of a block of zeroes without reading it.
    fn check(&self, block: OriginBlock) -> u32 {
        let mut tail = [0; 26];
        tail[..16].copy_from_slice(self.cache.as_bytes());
        tail[16..18].copy_from_slice(&self.volume.0.to_le_bytes());
        tail[18..].copy_from_slice(&block.0.to_le_bytes());
        crc32c_append(self.zeroes, &tail)
    }

    fn entry(&self, nth: u64) -> DataEntry {
        let block = Self::block(nth);
        DataEntry {
            volume: self.volume,
            block,
            sequence: nth + 1,
            dirty: Self::is_dirty(nth),
            void: false,
            mask: SectorMask::all(self.size.sectors()),
            check: self.check(block),
        }
    }
}

/// Layout of a full segment: records as large as possible behind an opening.
#[derive(Clone, Copy)]
struct Records {
    /// Granules of a header and of a block.
    header: u64,
    block: u64,
    /// Granules in a segment.
    segment: u64,
    /// Blocks of a record.
    most: u64,
}

impl Records {
    fn of(geometry: &Geometry) -> Self {
        Records {
            header: geometry.granules_per_header(),
            block: geometry.granules_per_block(),
            segment: geometry.granules_per_segment(),
            most: max_entries(geometry.block) as u64,
        }
    }

    /// Returns each record's start, in granules, and the numbers of its blocks in the segment.
    fn all(self) -> impl Iterator<Item = (u64, std::ops::Range<u64>)> {
        let (mut at, mut first) = (self.header, 0);
        std::iter::from_fn(move || {
            let room = self.segment.checked_sub(at + self.header)? / self.block;
            let count = room.min(self.most);
            let record = (at, first..first + count);
            at += self.header + count * self.block;
            first += count;
            (count > 0).then_some(record)
        })
    }

    fn blocks(self) -> u64 {
        self.all().map(|(_, blocks)| blocks.end).max().unwrap_or(0)
    }
}

/// The headers of the full segments.
pub(crate) struct Headers {
    blocks: Blocks,
    geometry: Geometry,
    records: Records,
    /// For each full segment its generation and its position in the order of writing.
    lives: Vec<Option<(Generation, u64)>>,
    pub(super) count: u64,
}

impl Headers {
    fn head(&self, segment: SegmentId, generation: Generation, position: u64) -> Head {
        Head {
            cache: self.blocks.cache,
            segment,
            generation,
            position: position as u32,
            number: RecordNumber(1),
            durable_through: RecordNumber(0),
        }
    }
}

impl Headers {
    /// Returns the block after the last cached one.
    pub(crate) fn end(&self) -> OriginBlock {
        Blocks::block(self.count)
    }

    /// Returns the opening and the first header of each full segment, and their offset.
    pub(crate) fn openings(&self) -> impl Iterator<Item = (u64, [u8; 2 * HEADER_BYTES])> {
        let full = (0..).zip(&self.lives).filter(|(_, lives)| lives.is_some());
        full.map(|(number, _)| {
            let offset = self.geometry.segment_offset(SegmentId(number));
            let mut pages = [0; 2 * HEADER_BYTES];
            for (page, into) in (offset / HEADER_BYTES as u64..).zip(pages.chunks_mut(HEADER_BYTES))
            {
                self.make(page, into);
            }
            (offset, pages)
        })
    }
}

impl Behind for Headers {
    fn make(&self, page: u64, into: &mut [u8]) {
        let geometry = &self.geometry;
        let Some(at) = (page * HEADER_BYTES as u64).checked_sub(geometry.segments_offset) else {
            return;
        };
        let (number, position) =
            (at / geometry.segment_bytes, at % geometry.segment_bytes / geometry.granule());
        let Some(Some((generation, order))) = self.lives.get(number as usize) else { return };
        let segment = SegmentId(number as u32);
        let head = self.head(segment, *generation, position);
        let made = if position == 0 {
            encode_opening(into, &head, &[])
        } else {
            let Some((_, blocks)) = self.records.all().find(|(start, _)| *start == position) else {
                return;
            };
            let first = order * self.records.blocks();
            let entries: Vec<DataEntry> =
                blocks.map(|number| self.blocks.entry(first + number)).collect();
            encode_data(into, &head, geometry.block, &entries)
        };
        made.unwrap_or_else(|error| unreachable!("a header of these values fits: {error}"));
    }
}

/// Fills so many percent of the cache with blocks of one volume: in the index only.
pub(crate) fn fill(store: &Store, space: &VolumeSpace, percent: u64) -> LabResult<Headers> {
    let geometry = store.geometry().clone();
    let records = Records::of(&geometry);
    let segments = u64::from(store.segments.count()) * percent / 100;
    let progress = Progress::new(segments, "filling");
    let mut headers = Headers {
        blocks: Blocks::new(store.uuid(), space.id, geometry.block),
        records,
        lives: vec![None; store.segments.count() as usize],
        count: segments * records.blocks(),
        geometry,
    };
    let full = || other("the cache has no room");
    for order in 0..segments {
        let (segment, generation) = store.segments.open(0, (0, 1), false).ok_or_else(full)?;
        headers.lives[segment.0 as usize] = Some((generation, order));
        let first = order * records.blocks();
        for (start, blocks) in records.all() {
            for number in blocks.clone() {
                let cell = start + records.header + (number - blocks.start) * records.block;
                let slot = headers.geometry.slot_at(segment, cell as u32);
                let nth = first + number;
                store.expect(space, Blocks::block(nth + AHEAD), true);
                let (block, dirty) = (Blocks::block(nth), Blocks::is_dirty(nth));
                let check = Check::new(headers.blocks.check(block));
                let entry = Entry { slot, dirty, partial: false, rank: 1, check };
                store.index.restore(space.address(block), entry).map_err(|_| full())?;
                store.segments.add_live(segment, Live::one(dirty, 1));
            }
        }
        store.segments.close(segment);
        progress.advance(1);
    }
    store.index.raise_sequence(headers.count + 1);
    Ok(headers)
}

/// An origin that another program has written to.
pub(super) struct Foreign;

impl Behind for Foreign {
    fn make(&self, _page: u64, into: &mut [u8]) {
        into.fill(0x77);
    }
}

/// Returns the size of an origin whose volume has so many cached blocks, in bytes.
pub(super) fn origin_bytes(cached: u64, size: BlockSize) -> u64 {
    (Blocks::block(cached).0 + 1).next_multiple_of(1 << 10) * size.bytes()
}

pub(super) fn behind(headers: Headers) -> Arc<dyn Behind> {
    Arc::new(headers)
}
