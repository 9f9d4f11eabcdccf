//! The blocks of one write to the origin.

use std::ops::Range;

use forebay_core::OriginBlock;
use forebay_core::why::WritebackReason;
use forebay_policy::next_run;
use forebay_policy::sweep::Merge;
use forebay_store::VersionId;

use crate::lane::LaneVolume;

/// What one write is made of.
pub(crate) struct Span {
    /// Blocks that were dirty, ascending.
    pub(crate) dirty: Vec<OriginBlock>,
    /// The clean ones between them are written along, and so many behind the last.
    pub(crate) tail: u64,
}

impl Span {
    /// The blocks from the first to the last; empty if there are none.
    pub(crate) fn blocks(&self) -> Range<u64> {
        match (self.dirty.first(), self.dirty.last()) {
            (Some(first), Some(last)) => first.0..last.0 + 1 + self.tail,
            _ => 0..0,
        }
    }
}

/// A block that is on the origin, but not known to be durable there.
pub(crate) struct Written {
    pub(crate) block: OriginBlock,
    /// Which version of it.
    pub(crate) version: VersionId,
    /// Failed syncs of the origin before it was written.
    pub(crate) failures: u64,
    /// Why it was written.
    pub(crate) why: WritebackReason,
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Spans<'a>(pub(crate) &'a LaneVolume);

impl Spans<'_> {
    /// How far blocks are merged. A cache device that has failed is read no more than it must be.
    pub(crate) fn merging(self) -> Merge {
        let settings = self.0.volume.settings();
        let gap = if self.0.is_unavailable_to(true) { 0 } else { settings.writeback_gap };
        Merge::of(self.0.volume.block, settings.merge_bytes, gap)
    }

    /// The first write of ascending blocks.
    pub(crate) fn next_span(self, blocks: &[OriginBlock], merge: Merge) -> Option<Span> {
        let fills = |gap: Range<OriginBlock>| self.is_whole_and_clean(gap.start.0..gap.end.0);
        let run = next_run(blocks, merge, fills)?;
        Some(Span { dirty: blocks.get(..run.count)?.to_vec(), tail: run.tail })
    }

    /// Whether all of these blocks are cached, clean, and valid throughout: then they are on the origin
    /// as they are in the cache, until somebody writes there.
    fn is_whole_and_clean(self, blocks: Range<u64>) -> bool {
        let (store, space) = (&self.0.cache.store, &self.0.volume.space);
        blocks.into_iter().all(|block| {
            store
                .peek(space, OriginBlock(block))
                .is_some_and(|found| !found.entry.dirty && found.mask.is_none())
        })
    }
}
