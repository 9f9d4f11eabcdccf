//! Compares all clean cached blocks with the origin before a volume starts, at the operator's
//! request.
//!
//! Afterwards only blocks that differ have to be dropped. Memory is bounded: cached blocks are
//! recorded by regions of the origin, and one group of regions is read at a time.

use forebay_core::{OriginBlock, SECTOR_SIZE};
use forebay_device::Queue;
use forebay_format::VolumeRecord;
use forebay_lane::{join_all, yield_now};
use forebay_store::{ReadFailure, VolumeSpace};

use crate::control::compare::{Compared, read_span};
use crate::error::{EngineError, EngineErrorKind};
use crate::lane::engine::EngineLane;

/// Bytes of the origin per read.
const REGION: u64 = 1 << 20;
/// Regions that are read at a time.
const DEPTH: usize = 8;

/// Called with the numbers of compared and of all blocks; returns whether to continue.
pub type OnVerify<'a> = &'a dyn Fn(u64, u64) -> bool;

/// The regions of an origin that have clean blocks.
struct Regions {
    /// Blocks in each.
    blocks: u64,
    bits: Vec<u64>,
    clean: u64,
}

impl EngineLane {
    /// Compares every clean block of a stopped volume with its origin. The index is loaded.
    ///
    /// # Errors
    /// The origin or the cache device cannot be read, or `on_verify` ends the comparison. Nothing
    /// has changed.
    pub(crate) async fn compare_all(
        &self,
        record: &VolumeRecord,
        origin: &Queue,
        on_verify: OnVerify<'_>,
    ) -> Result<Compared, EngineError> {
        let mut compared = Compared::default();
        let Some(space) = self.cache.store.space_of(record.id) else { return Ok(compared) };
        let regions = self.regions_with_clean(&space).await;
        let mut numbers = regions.numbers();
        loop {
            if !on_verify(compared.blocks, regions.clean) {
                return Err(EngineError::new(
                    EngineErrorKind::Failed,
                    format!("the comparison was cancelled; '{}' is not started", record.name),
                ));
            }
            let some: Vec<u64> = numbers.by_ref().take(DEPTH).collect();
            if some.is_empty() {
                return Ok(compared);
            }
            let reads = some.into_iter().map(|number| {
                let first = number * regions.blocks;
                let end = (first + regions.blocks).min(space.blocks);
                self.compare_range(record, &space, origin, first..end)
            });
            for read in join_all(reads).await {
                let Compared { blocks, differing } = read?;
                compared.blocks += blocks;
                compared.differing.extend(differing);
            }
            yield_now().await;
        }
    }

    async fn regions_with_clean(&self, space: &VolumeSpace) -> Regions {
        let store = &self.cache.store;
        let blocks = (REGION / store.block_size().bytes()).max(1);
        let words = space.blocks.div_ceil(blocks).div_ceil(64) as usize;
        let mut regions = Regions { blocks, bits: vec![0; words], clean: 0 };
        for shard in 0..store.index.shard_count() {
            store.index.scan_shard(shard, &mut |address, entry| {
                if !entry.dirty
                    && let Some(block) = space.block(address)
                {
                    let region = block.0 / blocks;
                    if let Some(word) = regions.bits.get_mut((region / 64) as usize) {
                        *word |= 1 << (region % 64);
                    }
                    regions.clean += 1;
                }
            });
            yield_now().await;
        }
        regions
    }

    /// Compares the clean blocks in a range of blocks.
    async fn compare_range(
        &self,
        record: &VolumeRecord,
        space: &VolumeSpace,
        origin: &Queue,
        range: std::ops::Range<u64>,
    ) -> Result<Compared, EngineError> {
        let (store, bytes) = (&self.cache.store, self.cache.store.block_size().bytes());
        let shift = u64::from(record.alignment);
        let clean: Vec<OriginBlock> = range
            .map(OriginBlock)
            .filter(|block| store.peek(space, *block).is_some_and(|found| !found.entry.dirty))
            .collect();
        let (Some(first), Some(last)) = (clean.first(), clean.last()) else {
            return Ok(Compared::default());
        };
        let start = (first.0 * bytes).saturating_sub(shift);
        let end = ((last.0 + 1) * bytes).saturating_sub(shift).min(record.origin_bytes);
        let content = read_span(origin, start, end, record.origin_bytes).await?;
        let compare = clean.iter().map(|block| {
            // The block may begin before the origin and end after it.
            let at = (block.0 * bytes).saturating_sub(shift);
            let skipped = (shift.saturating_sub(block.0 * bytes)) as usize;
            let from = (at - start) as usize;
            let len = (bytes as usize - skipped).min((end - at) as usize);
            let own = content.get(from..from + len).unwrap_or_default();
            self.differs(space, *block, own, skipped)
        });
        let mut compared = Compared::default();
        for (block, differs) in clean.iter().zip(join_all(compare).await) {
            compared.blocks += 1;
            if differs? {
                compared.differing.push(*block);
            }
        }
        Ok(compared)
    }

    /// Returns whether a cached clean sector differs from `origin`, which is the block's content
    /// from byte `skipped` on. A copy that fails its check does not count: readers will notice
    /// that.
    pub(crate) async fn differs(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        origin: &[u8],
        skipped: usize,
    ) -> Result<bool, EngineError> {
        let Some(pinned) = self.cache.store.look_up(space, block) else { return Ok(false) };
        if pinned.found.entry.dirty {
            return Ok(false);
        }
        let mask = pinned.found.mask.clone();
        let payload = match self.store.read_block(space, pinned).await {
            Ok(payload) => payload,
            Err(ReadFailure::Corrupt) => return Ok(false),
            Err(ReadFailure::Device(error)) => return Err(error.into()),
        };
        let sector = SECTOR_SIZE as usize;
        let cached = payload.get(skipped..).unwrap_or_default().chunks(sector);
        let mut pairs = cached.zip(origin.chunks(sector)).enumerate();
        Ok(pairs.any(|(number, (cached, origin))| {
            let number = (skipped / sector + number) as u32;
            let counts = mask.as_ref().is_none_or(|mask| mask.contains(number));
            counts && cached.get(..origin.len()) != Some(origin)
        }))
    }
}

impl Regions {
    /// Returns their numbers in order.
    fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.bits.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u64 * 64 + bit)
        })
    }
}
