//! The dirty blocks of a volume, as a set that takes one bit or two bytes for each.

use std::ops::Range;

use forebay_core::OriginBlock;
use roaring::RoaringTreemap;

/// A set of blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtySet(RoaringTreemap);

impl DirtySet {
    pub(crate) fn insert(&mut self, block: OriginBlock) {
        self.0.insert(block.0);
    }

    pub(crate) fn insert_range(&mut self, blocks: Range<u64>) {
        self.0.insert_range(blocks);
    }

    pub(crate) fn contains(&self, block: OriginBlock) -> bool {
        self.0.contains(block.0)
    }

    pub(crate) fn remove(&mut self, block: OriginBlock) {
        self.0.remove(block.0);
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns the blocks within a range of block numbers, in ascending order.
    pub(crate) fn within(&self, range: &Range<u64>) -> impl Iterator<Item = OriginBlock> {
        let mut blocks = self.0.iter();
        blocks.advance_to(range.start);
        let end = range.end;
        blocks.take_while(move |block| *block < end).map(OriginBlock)
    }

    /// Returns the blocks as ranges of block numbers in ascending order; neighbours are joined.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let mut blocks = self.0.iter().peekable();
        std::iter::from_fn(move || {
            let start = blocks.next()?;
            let mut end = start + 1;
            while blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(start..end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_order_and_neighbours_joined() {
        let mut set = DirtySet::default();
        let high = 1 << 40;
        for block in [7, 3, 5, 4, 9, high, high + 1] {
            set.insert(OriginBlock(block));
        }
        set.insert_range(20..23);
        assert!([20, 22].map(OriginBlock).iter().all(|block| set.contains(*block)));
        assert!(!set.contains(OriginBlock(23)));
        (20..23).for_each(|block| set.remove(OriginBlock(block)));
        set.remove(OriginBlock(9));
        set.remove(OriginBlock(10));
        assert_eq!(set.len(), 6);
        let within = |range| set.within(&range).map(|block| block.0).collect::<Vec<_>>();
        assert_eq!(within(4..7), [4, 5]);
        assert_eq!(within(6..u64::MAX), [7, high, high + 1]);
        assert!(within(8..8).is_empty());
        let ranges: Vec<_> = set.ranges().collect();
        assert_eq!(ranges, [3..6, 7..8, high..high + 2]);
    }

    #[test]
    fn sets_of_sparse_or_dense_blocks_take_little_memory() {
        for (step, most) in [(1u64, 1), (2, 1), (64, 3)] {
            let mut set = DirtySet::default();
            (0..1 << 20).for_each(|number| set.insert(OriginBlock(number * step)));
            let bytes = set.0.serialized_size();
            assert!(bytes <= most << 20, "{bytes} bytes, every {step} blocks");
        }
    }
}
