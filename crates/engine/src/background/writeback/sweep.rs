//! The sweep over one volume's origin: which dirty blocks come next, in ascending order.
//!
//! The index has no order, so the blocks of a window are collected in one pass over it, and sorted; or
//! each is looked up, where the map leaves few. A pass costs the more the larger the cache is, so windows
//! grow with it. What becomes dirty behind the
//! pass and before the sweep comes by would be missed this time; after a while the rest of a window is
//! collected anew.

use std::ops::Range;
use std::time::Duration;

use forebay_core::{Nanos, OriginBlock};
use forebay_policy::sweep::Merge;
use forebay_policy::{SweepPlanner, Window};

use crate::io::writeback::span::{Span, Spans};
use crate::lane::LaneVolume;

/// The fewest and the most blocks that are collected together. The list takes 8 bytes for each.
const FEWEST: u64 = 16_384;
const MOST: u64 = 4 << 20;

/// A window is this part of the cache, so that a pass over the index is worth it.
const PART: u64 = 64;

/// Blocks that are sorted in one go, about.
const SORTED_TOGETHER: u64 = 4096;

/// Shards of the index that are looked through before others have their turn.
const SHARDS_AT_ONCE: u32 = 8;

/// Entries of the index that are passed in the time that a look-up takes.
const PASSED_PER_LOOK_UP: u64 = 8;

/// Blocks by which hints are ahead of look-ups.
const LOOKED_UP_AHEAD: u64 = 8;

/// Look-ups before other tasks have their turn.
const LOOK_UPS_AT_ONCE: usize = 1024;

/// What was collected is good for so long, or this many times as long as collecting took.
const GOOD_FOR: Duration = Duration::from_secs(30);
const GOOD_FOR_PASSES: u32 = 32;

/// What comes next.
pub(super) enum Next {
    /// These make one write.
    Run(Span),
    /// The sweep has come to the end of the origin and begins again. Nothing may be under way when it
    /// goes on: it would collect what is.
    Wrapped,
    /// Nothing that could be written is dirty where the map says so.
    Nothing,
    /// The map knows of nothing dirty.
    Clean,
}

/// See the module.
pub(super) struct Sweep {
    planner: SweepPlanner,
    /// The window to be collected next.
    window: Option<Window>,
    /// What was collected, sorted, and how much of it has been taken.
    blocks: Vec<OriginBlock>,
    taken: usize,
    collected: Nanos,
    good_for: Duration,
}

impl Sweep {
    pub(super) fn new() -> Self {
        Sweep {
            planner: SweepPlanner::new(),
            window: None,
            blocks: Vec::new(),
            taken: 0,
            collected: Nanos(0),
            good_for: GOOD_FOR,
        }
    }

    /// The next write.
    pub(super) async fn next(&mut self, volume: &LaneVolume, merge: Merge) -> Next {
        if volume.now().since(self.collected) > self.good_for
            && let Some(block) = self.rest().first().copied()
        {
            self.blocks.clear();
            self.taken = 0;
            self.planner.resume_at(block);
        }
        if self.rest().is_empty() {
            let window = match self.window.take() {
                Some(window) => window,
                None => {
                    let most = volume.cache.store.capacity_blocks() / PART;
                    let most = most.clamp(FEWEST, MOST) as u32;
                    match self.planner.next_window(&volume.volume.dirty, most) {
                        None => return Next::Clean,
                        Some(window) if window.wrapped => {
                            self.window = Some(window);
                            return Next::Wrapped;
                        }
                        Some(window) => window,
                    }
                }
            };
            self.collect(volume, &window).await;
        }
        match Spans(volume).next_span(self.rest(), merge) {
            Some(span) => {
                self.taken += span.dirty.len();
                Next::Run(span)
            }
            None => Next::Nothing,
        }
    }

    /// What has not been taken.
    fn rest(&self) -> &[OriginBlock] {
        self.blocks.get(self.taken..).unwrap_or(&[])
    }

    /// Collects the dirty blocks of a window; bad ones are left out.
    async fn collect(&mut self, view: &LaneVolume, window: &Window) {
        let (volume, index) = (&view.volume, &view.cache.store.index);
        let started = view.now();
        let start = window.blocks.start.0;
        let end = window.blocks.end.0.min(volume.space.blocks);
        let ranges: Vec<Range<u64>> = volume.dirty.parts(start..end).collect();
        let numbers: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let mut parts = if numbers.saturating_mul(PASSED_PER_LOOK_UP) < index.len() {
            vec![dirty_by_look_up(view, ranges).await]
        } else {
            dirty_by_passing(view, start..end, window.expected).await
        };
        for part in &mut parts {
            part.sort_unstable();
            part.dedup();
            if volume.bad_count() > 0 {
                part.retain(|block| !volume.is_given_up(*block));
            }
            forebay_lane::yield_now().await;
        }
        self.blocks = parts.concat();
        self.taken = 0;
        self.collected = view.now();
        self.good_for = GOOD_FOR.max(self.collected.since(started) * GOOD_FOR_PASSES);
    }
}

/// The dirty blocks of these ranges, each looked up.
async fn dirty_by_look_up(view: &LaneVolume, ranges: Vec<Range<u64>>) -> Vec<OriginBlock> {
    let (space, store) = (&view.volume.space, &view.cache.store);
    let mut blocks = Vec::new();
    for (count, number) in ranges.into_iter().flatten().enumerate() {
        store.expect(space, OriginBlock(number + LOOKED_UP_AHEAD));
        let block = OriginBlock(number);
        if store.peek(space, block).is_some_and(|found| found.entry.dirty) {
            blocks.push(block);
        }
        if count % LOOK_UPS_AT_ONCE == LOOK_UPS_AT_ONCE - 1 {
            forebay_lane::yield_now().await;
        }
    }
    blocks
}

/// The dirty blocks of a range, from a pass over the whole index, in parts that follow each other.
async fn dirty_by_passing(
    view: &LaneVolume,
    range: Range<u64>,
    expected: u32,
) -> Vec<Vec<OriginBlock>> {
    let (volume, index) = (&view.volume, &view.cache.store.index);
    // Parts of equal length in blocks of the origin: what is spread evenly is cut evenly.
    let wanted = u64::from(expected).div_ceil(SORTED_TOGETHER).max(1);
    let length = range.end.saturating_sub(range.start).div_ceil(wanted).max(1);
    let mut parts = vec![Vec::new(); wanted as usize];
    for shard in 0..index.shard_count() {
        index.scan_shard(shard, &mut |address, entry: &forebay_store::Entry| {
            if entry.dirty
                && let Some(block) = volume.space.block(address)
                && range.contains(&block.0)
                && let Some(part) = parts.get_mut(((block.0 - range.start) / length) as usize)
            {
                part.push(block);
            }
        });
        if shard % SHARDS_AT_ONCE == SHARDS_AT_ONCE - 1 {
            forebay_lane::yield_now().await;
        }
    }
    parts
}
