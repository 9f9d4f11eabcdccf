//! Valid sectors of a block.

use std::ops::Range;

/// A set of sectors within one block. Blocks of up to 64 sectors (32 KiB) need no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectorMask {
    sectors: u32,
    first: u64,
    rest: Vec<u64>,
}

impl SectorMask {
    /// Returns the empty set, for a block of `sectors` sectors.
    pub fn none(sectors: u32) -> Self {
        let words = sectors.div_ceil(64).max(1) as usize;
        SectorMask { sectors, first: 0, rest: vec![0; words - 1] }
    }

    /// Returns the set of all `sectors` sectors of a block.
    pub fn all(sectors: u32) -> Self {
        if (1..=64).contains(&sectors) {
            // Called for every block written: no loop.
            return SectorMask { sectors, first: u64::MAX >> (64 - sectors), rest: Vec::new() };
        }
        let mut mask = Self::none(sectors);
        mask.insert(0..sectors);
        mask
    }

    /// Returns the set of the sectors in `range`, for a block of `sectors` sectors.
    pub fn of(sectors: u32, range: Range<u32>) -> Self {
        let mut mask = Self::none(sectors);
        mask.insert(range);
        mask
    }

    /// Builds a mask from its words, lowest sectors first; bits beyond `sectors` are dropped.
    pub fn from_words(sectors: u32, words: impl IntoIterator<Item = u64>) -> Self {
        if (1..=64).contains(&sectors) {
            // Called for every entry of a replayed log, so the common case of one word has no loop.
            let first = words.into_iter().next().unwrap_or_default();
            return SectorMask { first: first & Self::all(sectors).first, ..Self::all(sectors) };
        }
        let mut mask = Self::none(sectors);
        for (index, word) in words.into_iter().enumerate() {
            let used = sectors.saturating_sub(index as u32 * 64).min(64);
            let keep = if used == 64 { u64::MAX } else { (1 << used) - 1 };
            if let Some(place) = mask.word_mut(index) {
                *place = word & keep;
            }
        }
        mask
    }

    /// Returns the words of the mask, lowest sectors first.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Returns the number of sectors in the block, valid or not.
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    fn word_mut(&mut self, index: usize) -> Option<&mut u64> {
        if index == 0 { Some(&mut self.first) } else { self.rest.get_mut(index - 1) }
    }

    fn word(&self, index: usize) -> u64 {
        if index == 0 { self.first } else { self.rest.get(index - 1).copied().unwrap_or(0) }
    }

    /// Adds the sectors in `range`; sectors beyond the block are ignored.
    pub fn insert(&mut self, range: Range<u32>) {
        for sector in range.start..range.end.min(self.sectors) {
            if let Some(word) = self.word_mut(sector as usize / 64) {
                *word |= 1 << (sector % 64);
            }
        }
    }

    /// Removes the sectors in `range`.
    pub fn remove(&mut self, range: Range<u32>) {
        for sector in range.start..range.end.min(self.sectors) {
            if let Some(word) = self.word_mut(sector as usize / 64) {
                *word &= !(1 << (sector % 64));
            }
        }
    }

    /// Adds every sector of `other`.
    pub fn union_with(&mut self, other: &SectorMask) {
        self.first |= other.first;
        for (mine, theirs) in self.rest.iter_mut().zip(&other.rest) {
            *mine |= theirs;
        }
    }

    /// Whether `sector` is in the set.
    pub fn contains(&self, sector: u32) -> bool {
        self.word(sector as usize / 64) >> (sector % 64) & 1 == 1
    }

    /// Whether all of `range` is in the set.
    pub fn contains_range(&self, range: Range<u32>) -> bool {
        range.into_iter().all(|sector| self.contains(sector))
    }

    /// Whether the set holds every sector of the block.
    pub fn is_all(&self) -> bool {
        self.count() == self.sectors
    }

    /// Whether the set is empty.
    pub fn is_none(&self) -> bool {
        self.words().all(|word| word == 0)
    }

    /// Returns the number of sectors in the set.
    pub fn count(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    /// Returns the maximal runs of consecutive sectors in the set, in ascending order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < self.sectors && !self.contains(next) {
                next += 1;
            }
            let start = next;
            while next < self.sectors && self.contains(next) {
                next += 1;
            }
            (start < next).then_some(start..next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_of_every_small_block_is_exact() {
        for sectors in [4, 8, 64, 130] {
            for start in 0..sectors {
                for end in start..=sectors {
                    let mask = SectorMask::of(sectors, start..end);
                    assert_eq!(mask.count(), end - start);
                    assert_eq!(mask.is_all(), end - start == sectors);
                    assert_eq!(mask.is_none(), start == end);
                    let runs: Vec<_> = mask.runs().collect();
                    let expected: Vec<_> =
                        (start < end).then_some(start..end).into_iter().collect();
                    assert_eq!(runs, expected);
                    assert_eq!(SectorMask::from_words(sectors, mask.words()), mask);
                }
            }
        }
    }

    #[test]
    fn bits_beyond_the_block_are_dropped() {
        assert!(SectorMask::from_words(8, [u64::MAX]).is_all());
        assert_eq!(SectorMask::from_words(8, [u64::MAX]).count(), 8);
    }

    #[test]
    fn holes_split_runs() {
        let mut mask = SectorMask::all(8);
        mask.remove(2..4);
        assert_eq!(mask.runs().collect::<Vec<_>>(), [0..2, 4..8]);
        mask.union_with(&SectorMask::of(8, 2..3));
        assert_eq!(mask.count(), 7);
    }
}
