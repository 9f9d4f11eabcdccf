//! The sweep over one volume's origin: chooses the next dirty blocks in ascending order.
//!
//! The index is unordered, so the dirty blocks of a window are collected in one pass over it and
//! sorted, or looked up one by one if the dirty map leaves few candidates. A pass costs more in a
//! larger cache, so windows grow with it. Blocks that become dirty after the pass and before the
//! sweep reaches them would be missed this time, so the rest of an old window is collected again.

use std::ops::Range;
use std::time::Duration;

use forebay_core::{Nanos, OriginBlock};
use forebay_lane::{turns, yield_now};
use forebay_policy::sweep::Merge;
use forebay_policy::{SweepPlanner, SweepWindow};
use forebay_store::Entry;

use crate::io::writeback::span::{Span, Spans};
use crate::lane::LaneVolume;

/// The fewest and the most blocks of a window. The list takes 8 bytes per block.
const FEWEST: u64 = 16_384;
const MOST: u64 = 4 << 20;

/// A window is this fraction of the cache, so that a pass over the index is worth it.
const PART: u64 = 64;

/// The approximate number of blocks to sort in one go.
const SORTED_TOGETHER: u64 = 4096;

/// Index entries that a pass visits in the time of one look-up.
const PASSED_PER_LOOK_UP: u64 = 8;

/// Distance of prefetch hints ahead of look-ups, in blocks.
const LOOKED_UP_AHEAD: u64 = 8;

/// Look-ups before yielding to other tasks.
const LOOK_UPS_AT_ONCE: usize = 1024;

/// Time for which a collected window is used; or this multiple of the time that collecting it took,
/// if that is longer.
const GOOD_FOR: Duration = Duration::from_secs(30);
const GOOD_FOR_PASSES: u32 = 32;

/// The next step of a sweep.
pub(super) enum SweepStep {
    /// Write these blocks with one write.
    Run(Span),
    /// The sweep has reached the end of the origin and starts again. No write may be in progress
    /// when it continues, or it would collect those blocks again.
    Wrapped,
    /// The map counts dirty blocks here, but none can be written.
    Nothing,
    /// The map counts no dirty blocks.
    Clean,
}

/// The position of a sweep and the blocks collected for it.
pub(super) struct Sweep {
    planner: SweepPlanner,
    /// The collected blocks, sorted, and how many of them have been taken.
    blocks: Vec<OriginBlock>,
    taken: usize,
    collected: Nanos,
    good_for: Duration,
}

impl Sweep {
    pub(super) fn new() -> Self {
        Sweep {
            planner: SweepPlanner::new(),
            blocks: Vec::new(),
            taken: 0,
            collected: Nanos(0),
            good_for: GOOD_FOR,
        }
    }

    /// Returns the next step.
    pub(super) async fn next(&mut self, volume: &LaneVolume, merge: Merge) -> SweepStep {
        if volume.now().since(self.collected) > self.good_for
            && let Some(block) = self.rest().first().copied()
        {
            self.blocks.clear();
            self.taken = 0;
            self.planner.resume_at(block);
        }
        if self.rest().is_empty() {
            let most = volume.cache.store.capacity_blocks() / PART;
            let most = most.clamp(FEWEST, MOST) as u32;
            match self.planner.next_window(&volume.volume.dirty, most) {
                None => return SweepStep::Clean,
                Some(window) if window.wrapped => {
                    // Blocks may become dirty before this window while the caller settles the
                    // last sweep; the next sweep has to start with them.
                    self.planner = SweepPlanner::new();
                    return SweepStep::Wrapped;
                }
                Some(window) => self.collect(volume, &window).await,
            }
        }
        match Spans(volume).next_span(self.rest(), merge) {
            Some(span) => {
                self.taken += span.dirty.len();
                SweepStep::Run(span)
            }
            None => SweepStep::Nothing,
        }
    }

    /// Returns the blocks that have not been taken.
    fn rest(&self) -> &[OriginBlock] {
        self.blocks.get(self.taken..).unwrap_or(&[])
    }

    /// Collects the dirty blocks of a window, without those that failed in this round.
    async fn collect(&mut self, view: &LaneVolume, window: &SweepWindow) {
        let (volume, index) = (&view.volume, &view.cache.store.index);
        let started = view.now();
        let start = window.blocks.start.0;
        let end = window.blocks.end.0.min(volume.space.blocks);
        let ranges: Vec<Range<u64>> = volume.dirty.parts(start..end).collect();
        let numbers: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let parts = if numbers.saturating_mul(PASSED_PER_LOOK_UP) < index.len() {
            vec![dirty_by_look_up(view, ranges).await]
        } else {
            dirty_by_passing(view, start..end, window.expected).await
        };
        self.blocks = Vec::with_capacity(parts.iter().map(Vec::len).sum());
        for mut part in parts {
            match part.len() {
                // Dirty blocks may be close together.
                turns::AT_ONCE.. => turns::sort_by_key(&mut part, |block| *block).await,
                _ => part.sort_unstable(),
            }
            part.dedup();
            if volume.bad_count() > 0 {
                part.retain(|block| !volume.is_given_up(*block));
            }
            self.blocks.append(&mut part);
            yield_now().await;
        }
        self.taken = 0;
        self.collected = view.now();
        self.good_for = GOOD_FOR.max(self.collected.since(started) * GOOD_FOR_PASSES);
    }
}

/// Returns the dirty blocks of these ranges, by looking each block up.
async fn dirty_by_look_up(view: &LaneVolume, ranges: Vec<Range<u64>>) -> Vec<OriginBlock> {
    let (space, store) = (&view.volume.space, &view.cache.store);
    let mut blocks = Vec::new();
    for (count, number) in ranges.into_iter().flatten().enumerate() {
        store.expect(space, OriginBlock(number + LOOKED_UP_AHEAD), false);
        let block = OriginBlock(number);
        if store.peek(space, block).is_some_and(|found| found.entry.dirty) {
            blocks.push(block);
        }
        if count % LOOK_UPS_AT_ONCE == LOOK_UPS_AT_ONCE - 1 {
            yield_now().await;
        }
    }
    blocks
}

/// Returns the dirty blocks of a range from a pass over the whole index, in parts of ascending
/// address.
async fn dirty_by_passing(
    view: &LaneVolume,
    range: Range<u64>,
    expected: u32,
) -> Vec<Vec<OriginBlock>> {
    let (volume, index) = (&view.volume, &view.cache.store.index);
    // Parts cover equally many origin blocks, so evenly spread dirty blocks are divided evenly.
    let wanted = u64::from(expected).div_ceil(SORTED_TOGETHER).max(1);
    let length = range.end.saturating_sub(range.start).div_ceil(wanted).max(1);
    let mut parts = vec![Vec::new(); wanted as usize];
    for shard in 0..index.shard_count() {
        let mut found = |address, _: &Entry| {
            if let Some(block) = volume.space.block(address)
                && range.contains(&block.0)
                && let Some(part) = parts.get_mut(((block.0 - range.start) / length) as usize)
            {
                part.push(block);
            }
        };
        index.visit_shard(shard, &mut |entry| entry.dirty, &mut found);
        yield_now().await;
    }
    parts
}
