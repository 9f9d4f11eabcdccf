//! Blocks, the regions in which they are written down, and the parts of requests that lie in one
//! block.

use std::ops::{Range, RangeInclusive};

use forebay_core::SECTOR_SIZE;
use forebay_policy::exact::Key;

/// The unit of caching in RAM: a power of two from 512 bytes to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamBlock(u32);

impl RamBlock {
    /// Smallest block, in bytes.
    pub const MIN: u64 = 512;
    /// Largest block, in bytes.
    pub const MAX: u64 = 64 << 10;

    /// Returns the block size of `bytes` bytes, or `None` if there is no such block size.
    pub fn new(bytes: u64) -> Option<Self> {
        let good = bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes);
        good.then_some(RamBlock(bytes as u32))
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// Returns the sectors in a block: 1 to 128.
    pub fn sectors(self) -> u32 {
        self.0 / SECTOR_SIZE as u32
    }

    pub(crate) fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// Returns the first and the last block of a region.
    pub(crate) fn span_of(self, region: Region) -> RangeInclusive<RamBlockNumber> {
        let each = REGION_BYTES >> self.shift();
        let first = region.0 * each;
        RamBlockNumber(first)..=RamBlockNumber(first + each - 1)
    }

    /// Returns the blocks of a region.
    pub(crate) fn blocks_of(self, region: Region) -> impl Iterator<Item = RamBlockNumber> + use<> {
        let span = self.span_of(region);
        (span.start().0..=span.end().0).map(RamBlockNumber)
    }

    /// Returns the region of a block.
    pub(crate) fn region_of(self, block: RamBlockNumber) -> Region {
        Region((block.0 << self.shift()) / REGION_BYTES)
    }
}

impl Default for RamBlock {
    fn default() -> Self {
        RamBlock(4096)
    }
}

/// Number of a block of the volume, in units of the tier's block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RamBlockNumber(pub(crate) u64);

impl RamBlockNumber {
    /// Returns 64 well-mixed bits: the lowest 40 choose the entry in a shard's index, and some of
    /// the others the guard.
    pub(crate) fn hash(self) -> u64 {
        Key(self.0).spread()
    }
}

/// Bytes of a region: the largest request that is written down. A region's blocks are in one shard,
/// so that neighbours are found together.
pub(crate) const REGION_BYTES: u64 = 1 << 20;

/// Number of an aligned range of [`REGION_BYTES`] of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Region(pub(crate) u64);

impl Region {
    /// Returns the shard among `shards`, a power of two. Each run of `shards` regions maps to
    /// distinct shards, in an order that differs per run: sequential ranges spread evenly, strides
    /// do not collide.
    pub(crate) fn shard(self, shards: usize) -> usize {
        let group = self.0 / shards as u64;
        (self.0 ^ (Key(group).spread() >> 32)) as usize & (shards - 1)
    }
}

/// Cuts a range of bytes at the borders of regions.
pub(crate) fn in_regions(range: Range<u64>) -> impl Iterator<Item = (Region, Range<u64>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let (start, region) = (at, Region(at / REGION_BYTES));
        at = range.end.min((region.0 + 1).saturating_mul(REGION_BYTES));
        (start < range.end).then_some((region, start..at))
    })
}

/// Returns whether a range of a region is all of it.
fn is_whole(range: &Range<u64>) -> bool {
    range.end - range.start == REGION_BYTES
}

/// A change of the lower tier, for the tier above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierChange {
    /// The range gets known data.
    Data,
    /// The range gets zeroes, or may get zeroes after a discard.
    Zeroes,
}

impl TierChange {
    /// Returns whether this range of a region is changed as a whole, without a token for each
    /// block.
    pub(crate) fn is_of_region(self, range: &Range<u64>) -> bool {
        self == TierChange::Zeroes && is_whole(range)
    }
}

/// A part of a request that lies in one block.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) block: RamBlockNumber,
    /// The sectors, from the start of the block.
    pub(crate) sectors: Range<u32>,
    /// The bytes, from the start of the request.
    pub(crate) bytes: Range<usize>,
}

impl RamBlock {
    /// Splits a range of whole sectors at the borders of blocks.
    pub(crate) fn pieces(
        self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = Piece> + Clone + use<> {
        let mut at = offset;
        std::iter::from_fn(move || {
            let end = offset + len;
            let number = at >> self.shift();
            let start = number << self.shift();
            let until = end.min(start + self.bytes());
            let piece = (at < end).then(|| Piece {
                block: RamBlockNumber(number),
                sectors: ((at - start) / SECTOR_SIZE) as u32
                    ..((until - start) / SECTOR_SIZE) as u32,
                bytes: (at - offset) as usize..(until - offset) as usize,
            });
            at = until;
            piece
        })
    }
}

/// Returns the bits of the sectors in `range`, at most 128.
pub(crate) fn bits(range: &Range<u32>) -> u128 {
    let len = range.end - range.start;
    let ones = if len >= 128 { u128::MAX } else { (1 << len) - 1 };
    ones << range.start
}

/// Returns the runs of ones in `mask`, in order.
pub(crate) fn runs(mut mask: u128) -> impl Iterator<Item = Range<u32>> {
    std::iter::from_fn(move || {
        let start = mask.trailing_zeros();
        (start < 128).then(|| {
            let len = (mask >> start).trailing_ones();
            mask &= !bits(&(start..start + len));
            start..start + len
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_regions_end() {
        const MIB: u64 = 1 << 20;
        let cut = |range| in_regions(range).collect::<Vec<_>>();
        assert_eq!(cut(0..0), []);
        assert_eq!(cut(4096..8192), [(Region(0), 4096..8192)]);
        assert_eq!(
            cut(MIB - 512..2 * MIB + 512),
            [
                (Region(0), MIB - 512..MIB),
                (Region(1), MIB..2 * MIB),
                (Region(2), 2 * MIB..2 * MIB + 512)
            ]
        );
    }

    #[test]
    fn runs_are_the_ones_of_a_mask() {
        let all = |mask| runs(mask).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(u128::MAX), [(0, 128)]);
        assert_eq!(all(0b1011_0001), [(0, 1), (4, 6), (7, 8)]);
        assert_eq!(all(1 << 127 | 1), [(0, 1), (127, 128)]);
    }

    #[test]
    fn neighbouring_regions_and_strides_fill_all_shards_alike() {
        for shards in [1usize, 2, 8, 64] {
            let mut counts = vec![0; shards];
            (0..10 * shards as u64).for_each(|number| counts[Region(number).shard(shards)] += 1);
            assert!(counts.iter().all(|count| *count == 10), "{counts:?}");
            let strided = |number: u64| Region(number * shards as u64).shard(shards);
            let used: std::collections::BTreeSet<usize> = (0..1000).map(strided).collect();
            assert_eq!(used.len(), shards);
        }
    }
}
