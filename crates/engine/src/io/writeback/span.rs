//! The blocks of one write to the origin.

use std::ops::Range;

use forebay_core::OriginBlock;
use forebay_core::why::WritebackReason;
use forebay_policy::next_run;
use forebay_policy::sweep::Merge;
use forebay_store::VersionId;

use crate::lane::LaneVolume;

/// The blocks that one write covers.
pub(crate) struct Span {
    /// Blocks that were dirty when the span was planned, ascending.
    pub(crate) dirty: Vec<OriginBlock>,
    /// Number of clean blocks to write along after the last dirty one. The clean ones in between
    /// are always written along.
    pub(crate) tail: u64,
}

impl Span {
    /// Returns the blocks from first to last; empty if there are none.
    pub(crate) fn blocks(&self) -> Range<u64> {
        match (self.dirty.first(), self.dirty.last()) {
            (Some(first), Some(last)) => first.0..last.0 + 1 + self.tail,
            _ => 0..0,
        }
    }
}

/// A block that has been written to the origin and waits for a sync.
pub(crate) struct Written {
    pub(crate) block: OriginBlock,
    /// The version that was written.
    pub(crate) version: VersionId,
    /// The count of failed origin syncs before the write.
    pub(crate) failures: u64,
    /// Why it was written.
    pub(crate) why: WritebackReason,
}

/// Plans the spans of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Spans<'a>(pub(crate) &'a LaneVolume);

impl Spans<'_> {
    /// Returns the merge limits. A cache device that has failed is read as little as possible, so
    /// no clean blocks are written along. An origin without seeks gains nothing from them.
    pub(crate) fn merging(self) -> Merge {
        let settings = self.0.volume.settings();
        let fills = self.0.volume.is_rotational() && !self.0.is_unavailable_to(true);
        let gap = if fills { settings.writeback_gap } else { 0 };
        Merge::of(self.0.volume.block, settings.merge_bytes, gap)
    }

    /// Returns the first span of ascending blocks.
    pub(crate) fn next_span(self, blocks: &[OriginBlock], merge: Merge) -> Option<Span> {
        let fills = |gap: Range<OriginBlock>| self.is_whole_and_clean(gap.start.0..gap.end.0);
        let run = next_run(blocks, merge, fills)?;
        Some(Span { dirty: blocks.get(..run.count)?.to_vec(), tail: run.tail })
    }

    /// Returns whether all blocks are cached, clean and wholly valid. Then the origin has the same
    /// data until a writer changes it.
    fn is_whole_and_clean(self, blocks: Range<u64>) -> bool {
        let (store, space) = (&self.0.cache.store, &self.0.volume.space);
        blocks.into_iter().all(|block| {
            store
                .peek(space, OriginBlock(block))
                .is_some_and(|found| !found.entry.dirty && found.mask.is_none())
        })
    }
}
