//! The order of writeback: across the origin in one direction.
//!
//! A disk is fastest when its head moves one way, so writeback goes through the origin in ascending
//! order and starts again at the beginning (the circular elevator, C-SCAN: Seaman, Lind and Wilson,
//! IBM Systems Journal 1966; bcache walks its index likewise). The index is a hash table without
//! order. [`DirtyMap`] is a coarse histogram of dirty blocks by address, and [`SweepPlanner`]
//! divides it into windows small enough to collect and sort. Within a window [`next_run`] merges
//! neighbours into one origin write, including clean cached blocks between them: a disk has to pass
//! over those anyway.

use forebay_core::sync::atomic::{AtomicU32, Ordering};
use forebay_core::{BlockSize, OriginBlock};
use std::ops::Range;

/// Default number of regions of a [`DirtyMap`]; 16 KiB of counters.
pub const DEFAULT_REGIONS: usize = 4096;

/// The number of dirty blocks in each region of one volume's origin.
///
/// Any lane updates it on the data path, with one relaxed atomic addition. A count is never too low
/// if a block is counted before another lane can clean it; it may be too high for a moment.
#[derive(Debug)]
pub struct DirtyMap {
    counts: Box<[AtomicU32]>,
    shift: u32,
}

impl DirtyMap {
    /// Creates a map of an origin of `origin_blocks` blocks in at most `regions` regions (at least
    /// 1), each a power of two of blocks.
    ///
    /// Blocks beyond the end (the origin grew) count towards the last region.
    pub fn new(origin_blocks: u64, regions: usize) -> Self {
        let wanted = regions.max(1) as u64;
        let last = origin_blocks.saturating_sub(1);
        let mut shift = 0;
        while last >> shift >= wanted {
            shift += 1;
        }
        let counts = (0..=(last >> shift)).map(|_| AtomicU32::new(0)).collect();
        DirtyMap { counts, shift }
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> usize {
        self.counts.len()
    }

    /// Counts a block that became dirty.
    #[inline]
    pub fn add(&self, block: OriginBlock) {
        self.counts[self.region_of(block)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a block that is no longer dirty.
    #[inline]
    pub fn sub(&self, block: OriginBlock) {
        self.counts[self.region_of(block)].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of dirty blocks in a region; 0 if the region does not exist.
    pub fn dirty_in(&self, region: usize) -> u32 {
        let count = self.counts.get(region).map_or(0, |count| count.load(Ordering::Relaxed));
        // The count is negative for a moment when one lane's subtraction overtakes another's
        // addition.
        if count > i32::MAX as u32 { 0 } else { count }
    }

    /// Returns the dirty blocks in all regions.
    pub fn total(&self) -> u64 {
        (0..self.regions()).map(|region| u64::from(self.dirty_in(region))).sum()
    }

    /// Returns the parts of `range` in regions with dirty blocks, in ascending order.
    pub fn parts(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let regions = match range.is_empty() {
            true => 0..0,
            false => {
                self.region_of(OriginBlock(range.start))
                    ..self.region_of(OriginBlock(range.end - 1)) + 1
            }
        };
        regions.filter(|&region| self.dirty_in(region) > 0).map(move |region| {
            self.start_of(region).max(range.start)..self.end_of(region).min(range.end)
        })
    }

    /// Returns the region that a block counts towards.
    #[inline]
    pub fn region_of(&self, block: OriginBlock) -> usize {
        let region = block.0 >> self.shift;
        region.min(self.counts.len() as u64 - 1) as usize
    }

    /// Returns the blocks of a region; the last region is open-ended.
    pub fn blocks_of(&self, region: usize) -> Range<u64> {
        self.start_of(region)..self.end_of(region)
    }

    fn start_of(&self, region: usize) -> u64 {
        (region as u64) << self.shift
    }

    /// Returns the first block after a region; `u64::MAX` for the last.
    fn end_of(&self, region: usize) -> u64 {
        if region + 1 == self.regions() { u64::MAX } else { self.start_of(region + 1) }
    }
}

/// A stretch of the origin whose dirty blocks are collected, sorted and written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepWindow {
    /// The blocks of the window.
    pub blocks: Range<OriginBlock>,
    /// Dirty blocks in the window, according to the map; exact if the window is whole regions.
    pub expected: u32,
    /// Whether the sweep restarted at the beginning of the origin for this window.
    pub wrapped: bool,
}

/// Plans a sweep over an origin window by window, upwards and round again.
#[derive(Clone, Debug, Default)]
pub struct SweepPlanner {
    next: u64,
}

impl SweepPlanner {
    /// Starts a sweep at the beginning of the origin.
    pub fn new() -> Self {
        SweepPlanner::default()
    }

    /// Returns the next window with dirty blocks, or `None` if there are none.
    ///
    /// A window is whole regions with at most `max_dirty` dirty blocks together. A single region
    /// with more is split into equal parts, on the assumption that its blocks are spread evenly; if
    /// a part has more than `max_dirty`, the caller collects the lowest and continues with
    /// [`SweepPlanner::resume_at`].
    pub fn next_window(&mut self, map: &DirtyMap, max_dirty: u32) -> Option<SweepWindow> {
        if let Some(window) = self.from(map, self.next, max_dirty.max(1)) {
            return Some(window);
        }
        let mut window = self.from(map, 0, max_dirty.max(1))?;
        window.wrapped = true;
        Some(window)
    }

    /// Continues at `block`, because the last window was not finished.
    pub fn resume_at(&mut self, block: OriginBlock) {
        self.next = block.0;
    }

    fn from(&mut self, map: &DirtyMap, begin: u64, max_dirty: u32) -> Option<SweepWindow> {
        if begin == u64::MAX {
            return None;
        }
        let here = map.region_of(OriginBlock(begin));
        let first = (here..map.regions()).find(|&region| map.dirty_in(region) > 0)?;
        let start = begin.max(map.start_of(first));
        let mut dirty = map.dirty_in(first);
        let mut end = map.end_of(first);
        if dirty > max_dirty {
            // The last region may be open-ended; its nominal size is split.
            let part = ((1u64 << map.shift) / u64::from(dirty.div_ceil(max_dirty))).max(1);
            if start + part < map.start_of(first) + (1u64 << map.shift) {
                end = start + part;
            }
            dirty = max_dirty;
        } else {
            for region in first + 1..map.regions() {
                let sum = dirty.saturating_add(map.dirty_in(region));
                if sum > max_dirty {
                    break;
                }
                if sum > dirty {
                    end = map.end_of(region);
                }
                dirty = sum;
            }
        }
        self.next = end;
        let blocks = OriginBlock(start)..OriginBlock(end);
        Some(SweepWindow { blocks, expected: dirty, wrapped: false })
    }
}

/// Limits for merging blocks into one origin write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Maximum number of blocks in a write, including clean ones between; at least 1.
    pub blocks: u64,
    /// Maximum number of clean blocks between two dirty ones that a write may include.
    pub gap: u64,
}

impl Merge {
    /// Converts limits in bytes to blocks of this size.
    pub fn of(block: BlockSize, merge_bytes: u32, gap_bytes: u32) -> Self {
        let blocks = |bytes: u32| u64::from(bytes) >> block.shift();
        Merge { blocks: blocks(merge_bytes).max(1), gap: blocks(gap_bytes) }
    }
}

/// One write to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of blocks, from the start of the list, in this write.
    pub count: usize,
    /// Clean blocks after the last dirty one that the write includes, up to the start of the next
    /// run: a disk continues in place, and would lose a revolution if it skipped a block.
    pub tail: u64,
}

/// Returns the first write of ascending `blocks`: neighbours, and blocks behind gaps within
/// `merge.gap` for which `fills` returns true. `None` for no blocks.
///
/// Blocks that are out of order or listed twice end a run.
pub fn next_run(
    blocks: &[OriginBlock],
    merge: Merge,
    mut fills: impl FnMut(Range<OriginBlock>) -> bool,
) -> Option<Run> {
    let first = blocks.first()?;
    let mut run = Run { count: 1, tail: 0 };
    for pair in blocks.windows(2) {
        let (Some(after), next) = (pair[0].0.checked_add(1), pair[1].0) else { break };
        let Some(gap) = next.checked_sub(after) else { break };
        if gap > 0 && (gap > merge.gap || !fills(OriginBlock(after)..OriginBlock(next))) {
            break;
        }
        if next - first.0 >= merge.blocks.max(1) {
            run.tail = gap;
            break;
        }
        run.count += 1;
    }
    Some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_lies_in_dirty_regions() {
        let map = DirtyMap::new(40, 4);
        let parts = |range| map.parts(range).collect::<Vec<_>>();
        assert_eq!(parts(0..40), []);
        for block in [3, 17, 18, 39] {
            map.add(OriginBlock(block));
        }
        assert_eq!(map.regions(), 3);
        assert_eq!(parts(0..40), [0..16, 16..32, 32..40]);
        assert_eq!(parts(0..u64::MAX), [0..16, 16..32, 32..u64::MAX]);
        assert_eq!(parts(5..33), [5..16, 16..32, 32..33]);
        assert_eq!(parts(17..17), []);
        map.sub(OriginBlock(17));
        map.sub(OriginBlock(18));
        assert_eq!(parts(5..35), [5..16, 32..35]);
        assert_eq!(parts(100..200).first(), Some(&(100..200)));
    }

    #[test]
    fn regions_cover_the_origin_and_what_lies_beyond() {
        for (blocks, wanted, regions) in [
            (0, 4, 1),
            (1, 4, 1),
            (4, 4, 4),
            (5, 4, 3),
            (4096, 4096, 4096),
            (4097, 4096, 2049),
            (u64::MAX, 4096, 4096),
            (100, 0, 1),
        ] {
            let map = DirtyMap::new(blocks, wanted);
            assert_eq!(map.regions(), regions, "{blocks} blocks");
            for block in [0, blocks / 2, blocks.saturating_sub(1), blocks, u64::MAX] {
                map.add(OriginBlock(block));
            }
            assert_eq!(map.total(), 5);
            for block in [0, blocks / 2, blocks.saturating_sub(1), blocks, u64::MAX] {
                map.sub(OriginBlock(block));
            }
            assert_eq!(map.total(), 0);
        }
    }

    #[test]
    fn a_subtraction_that_comes_first_reads_as_nothing() {
        let map = DirtyMap::new(100, 10);
        map.sub(OriginBlock(3));
        assert_eq!((map.dirty_in(0), map.total()), (0, 0));
        map.add(OriginBlock(3));
        assert_eq!(map.total(), 0);
    }

    #[test]
    fn nothing_dirty_is_no_window() {
        let map = DirtyMap::new(1 << 20, 4096);
        assert_eq!(SweepPlanner::new().next_window(&map, 100), None);
    }

    /// A sweep visits every dirty block once, upwards, and the next starts again.
    #[test]
    fn a_sweep_covers_every_dirty_block_once() {
        for (blocks, regions, dirty, max) in [
            (1u64 << 16, 256, 1000, 64),
            (1 << 16, 16, 5000, 64),
            (1000, 4096, 300, 7),
            (1 << 30, 4096, 2000, 500),
            (1 << 16, 256, 1000, 0),
            (50_000, 7, 1, 10),
        ] {
            let map = DirtyMap::new(blocks, regions);
            let mut rng = fastrand::Rng::with_seed(blocks ^ u64::from(max));
            let mut all: Vec<u64> = (0..dirty).map(|_| rng.u64(..blocks)).collect();
            all.sort_unstable();
            all.dedup();
            all.iter().for_each(|&block| map.add(OriginBlock(block)));
            let mut planner = SweepPlanner::new();
            for round in 0..3 {
                let mut met: Vec<u64> = Vec::new();
                let mut last_end = 0;
                while met.len() < all.len() {
                    let window = planner.next_window(&map, max).expect("something is dirty");
                    assert_eq!(window.wrapped, round > 0 && met.is_empty());
                    assert!(window.blocks.start.0 >= last_end, "the sweep went back");
                    assert!(window.blocks.start < window.blocks.end);
                    assert!(window.expected <= max.max(1));
                    last_end = window.blocks.end.0;
                    met.extend(
                        all.iter().filter(|&&block| window.blocks.contains(&OriginBlock(block))),
                    );
                }
                assert_eq!(met, all);
                // Parts of a split region after its last block may still follow; end the round.
                planner.resume_at(OriginBlock(u64::MAX));
            }
        }
    }

    #[test]
    fn whole_regions_never_hold_more_than_asked_for() {
        let map = DirtyMap::new(1 << 12, 1 << 6);
        for block in (0..1 << 12).step_by(3) {
            map.add(OriginBlock(block));
        }
        let mut planner = SweepPlanner::new();
        for _ in 0..1000 {
            let window = planner.next_window(&map, 50).expect("dirty");
            let truth = (window.blocks.start.0..window.blocks.end.0.min(1 << 12))
                .filter(|block| block % 3 == 0)
                .count();
            assert!(truth <= 50 && truth == window.expected as usize);
        }
    }

    #[test]
    fn an_unfinished_window_is_resumed() {
        let map = DirtyMap::new(1 << 20, 1);
        for block in 0..100 {
            map.add(OriginBlock(block));
        }
        let mut planner = SweepPlanner::new();
        let window = planner.next_window(&map, 10).expect("dirty");
        assert!(window.blocks.contains(&OriginBlock(99)));
        planner.resume_at(OriginBlock(10));
        assert_eq!(planner.next_window(&map, 10).expect("dirty").blocks.start, OriginBlock(10));
    }

    /// Returns the runs of `blocks`, with gaps of up to two blocks if they lie below `cached`.
    fn merged(blocks: &[u64], bytes: u32, cached: u64) -> Vec<Vec<u64>> {
        let merge = Merge::of(BlockSize::DEFAULT, bytes, 2 * 4096);
        let all: Vec<OriginBlock> = blocks.iter().copied().map(OriginBlock).collect();
        let mut rest = &all[..];
        let mut runs = Vec::new();
        let fills = |gap: Range<OriginBlock>| {
            assert!(gap.start < gap.end && gap.end.0 - gap.start.0 <= 2);
            gap.end.0 <= cached
        };
        while let Some(run) = next_run(rest, merge, fills) {
            let (blocks, behind) = rest.split_at(run.count);
            runs.push(blocks.iter().map(|block| block.0).collect());
            if run.tail > 0 {
                assert_eq!(behind[0].0, blocks[run.count - 1].0 + 1 + run.tail);
            }
            rest = behind;
        }
        runs
    }

    #[test]
    fn neighbours_are_merged_up_to_the_limit() {
        let merged = |blocks: &[u64], bytes| merged(blocks, bytes, 0);
        assert!(merged(&[], 1 << 20).is_empty());
        assert_eq!(merged(&[7, 8], 0), [[7], [8]]);
        assert_eq!(merged(&[1, 2, 3, 5, 6, 9], 1 << 20), [vec![1, 2, 3], vec![5, 6], vec![9]]);
        assert_eq!(merged(&[1, 2, 3, 4, 5], 8192), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(merged(&[1, 2, 3], 4096), [[1], [2], [3]]);
        assert_eq!(merged(&[1, 2, 3], 12_287), [vec![1, 2], vec![3]]);
        assert_eq!(merged(&[4, 4, 5, 2, 3], 1 << 20), [vec![4], vec![4, 5], vec![2, 3]]);
        let last = u64::MAX;
        assert_eq!(merged(&[last - 1, last, 0], u32::MAX), [vec![last - 1, last], vec![0]]);
    }

    #[test]
    fn gaps_are_filled_where_they_are_short_and_cached() {
        let merged = |blocks: &[u64], bytes| merged(blocks, bytes, 100);
        assert_eq!(merged(&[1, 3, 6, 10], 1 << 20), [vec![1, 3, 6], vec![10]]);
        // Clean blocks in between count towards the limit.
        assert_eq!(merged(&[1, 3, 6], 5 * 4096), [vec![1, 3], vec![6]]);
        assert_eq!(merged(&[1, 4, 7], 4 * 4096), [vec![1, 4], vec![7]]);
        assert_eq!(merged(&[98, 100, 102], 1 << 20), [vec![98, 100], vec![102]]);
        assert_eq!(merged(&[5, 3, 5, 5], 1 << 20), [vec![5], vec![3, 5], vec![5]]);
        let tail = |blocks: &[u64], most| {
            let blocks: Vec<OriginBlock> = blocks.iter().copied().map(OriginBlock).collect();
            next_run(&blocks, Merge { blocks: most, gap: 2 }, |_| true).map(|run| run.tail)
        };
        // The tail extends to the next run if that is near.
        assert_eq!(tail(&[1, 3, 6], 5), Some(2));
        assert_eq!(tail(&[1, 3, 7], 5), Some(0));
        assert_eq!(tail(&[1, 2, 3], 2), Some(0));
        assert_eq!(tail(&[1, 3], 5), Some(0));
    }
}
