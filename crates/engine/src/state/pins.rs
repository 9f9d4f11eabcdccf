//! The pinned blocks of a volume: they enter whenever they are missed, and reclaim never evicts
//! them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::OriginBlock;
use parking_lot::RwLock;

/// A set of blocks: ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockSet(Vec<Range<u64>>);

impl BlockSet {
    /// Returns the set of the blocks in these ranges, which may be in any order.
    pub fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut all: Vec<Range<u64>> = ranges.into_iter().filter(|it| !it.is_empty()).collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(all.len());
        for range in all {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        BlockSet(joined)
    }

    /// Returns the ranges of block numbers, in ascending order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the blocks of both sets.
    pub fn union(&self, other: &Self) -> Self {
        BlockSet::of(self.0.iter().chain(&other.0).cloned())
    }

    /// Returns the blocks that are not in the other set.
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for Range { mut start, end } in self.0.iter().cloned() {
            let first = other.0.partition_point(|gone| gone.end <= start);
            for gone in other.0[first..].iter().take_while(|gone| gone.start < end) {
                left.push(start..gone.start);
                start = gone.end;
            }
            left.push(start..end);
        }
        BlockSet::of(left)
    }

    /// Returns whether the set contains a block of a range of block numbers.
    pub fn overlaps(&self, blocks: &Range<u64>) -> bool {
        let at = self.0.partition_point(|range| range.end <= blocks.start);
        !blocks.is_empty() && self.0.get(at).is_some_and(|range| range.start < blocks.end)
    }
}

impl From<Range<u64>> for BlockSet {
    fn from(range: Range<u64>) -> Self {
        BlockSet::of(std::iter::once(range))
    }
}

/// The pinned blocks of a volume. A volume without pins costs a request one load.
#[derive(Default)]
pub(crate) struct Pins {
    /// Number of pinned blocks.
    count: AtomicU64,
    /// Number of changes of the pins.
    changes: AtomicU64,
    blocks: RwLock<Arc<BlockSet>>,
}

impl Pins {
    pub(crate) fn set(&self, blocks: BlockSet) {
        self.count.store(blocks.len(), Ordering::Relaxed);
        *self.blocks.write() = Arc::new(blocks);
        // Release: a reader that sees the new count also sees the blocks.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of pinned blocks.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns a number that changes whenever the set of pinned blocks changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn blocks(&self) -> Arc<BlockSet> {
        self.blocks.read().clone()
    }

    /// Returns whether a block is pinned. Takes a lock; lanes use [`LanePins`].
    pub(crate) fn contain(&self, block: OriginBlock) -> bool {
        self.count() > 0 && self.blocks.read().overlaps(&(block.0..block.0.saturating_add(1)))
    }
}

/// One lane's copy of a volume's pins, so that its requests write to no shared memory.
#[derive(Default)]
pub(crate) struct LanePins {
    /// Number of changes at which the copy was made.
    changes: Cell<u64>,
    blocks: RefCell<Arc<BlockSet>>,
}

impl LanePins {
    /// Returns whether a block of a range is pinned in `of`.
    #[inline]
    pub(crate) fn overlap(&self, of: &Pins, blocks: &Range<u64>) -> bool {
        if of.count() == 0 {
            return false;
        }
        let changes = of.changes();
        if self.changes.replace(changes) != changes {
            *self.blocks.borrow_mut() = of.blocks();
        }
        self.blocks.borrow().overlaps(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every set of the numbers below 8, as bits.
    fn set(bits: u32) -> BlockSet {
        BlockSet::of((0..8).filter(|bit| bits & (1 << bit) != 0).map(|bit| bit..bit + 1))
    }

    #[test]
    fn sets_are_what_bits_are() {
        for one in 0..256 {
            assert_eq!(set(one).len(), u64::from(one.count_ones()));
            assert_eq!(set(one).is_empty(), one == 0);
            for range in (0..8).flat_map(|start| (start..=8).map(move |end| start..end)) {
                let bits = (1u32 << range.end) - (1u32 << range.start);
                assert_eq!(set(one).overlaps(&range), one & bits != 0, "{one:b} {range:?}");
            }
            for other in 0..256 {
                assert_eq!(set(one).union(&set(other)), set(one | other));
                assert_eq!(set(one).without(&set(other)), set(one & !other), "{one:b} {other:b}");
            }
        }
    }

    #[test]
    fn ranges_in_any_order_are_joined() {
        let set = BlockSet::of([30..40, 0..10, 5..20, 20..25, 7..7]);
        assert_eq!(set.ranges(), [0..25, 30..40]);
        assert_eq!(BlockSet::from(0..u64::MAX).without(&set).ranges()[0], 25..30);
    }

    #[test]
    fn pins_are_replaced_as_a_whole() {
        let (pins, lane) = (Pins::default(), LanePins::default());
        assert!(!pins.contain(OriginBlock(0)) && !lane.overlap(&pins, &(0..u64::MAX)));
        for (set, expected) in [(3..5, [false, true, true, false, false]), (5..6, [false; 5])] {
            pins.set(BlockSet::from(set));
            let blocks = [2, 3, 4, 6, u64::MAX];
            assert_eq!(blocks.map(|block| pins.contain(OriginBlock(block))), expected);
            assert_eq!(
                blocks.map(|block| lane.overlap(&pins, &(block..block.saturating_add(1)))),
                expected
            );
        }
        pins.set(BlockSet::default());
        assert!(!pins.contain(OriginBlock(5)) && !lane.overlap(&pins, &(0..u64::MAX)));
    }
}
