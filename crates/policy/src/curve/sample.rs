//! Chooses the sampled blocks.
//!
//! Keys are divided into groups of neighbours, as many as one sampled block stands for, and a hash
//! draws one block of each group. So each block is sampled with the same probability, a block is
//! either always or never sampled, and a run of many blocks contains always the same number of
//! sampled ones, give or take one at its ends. Drawing each block independently would leave that
//! number to chance.
//!
//! Halving the sample draws one of each pair of groups, then one of each pair of pairs. A smaller
//! sample is a subset of the larger one.

use std::ops::Range;

use crate::exact::Key;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Group size, in blocks.
    group: u64,
    /// Base-two logarithm of the group size; 64 if that is not a power of two.
    shift: u32,
    /// Number of times that the sample was halved.
    level: u32,
    seed: u64,
}

/// The sample is halved at most this often.
const MOST_LEVELS: u32 = 40;

const fn mix(number: u64) -> u64 {
    // The finalizer of splitmix64.
    let one = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let two = (one ^ (one >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    two ^ (two >> 31)
}

impl Sample {
    /// Creates a sample of one block of each `group` blocks; a group of 1 or 0 samples all blocks.
    pub const fn new(group: u32, seed: u64) -> Self {
        let group = if group == 0 { 1 } else { group as u64 };
        let shift = if group.is_power_of_two() { group.trailing_zeros() } else { u64::BITS };
        Sample { group, shift, level: 0, seed: mix(seed) }
    }

    /// Returns the group of a block. Called for each request of a volume, in which a division would
    /// take as long as everything else.
    #[inline]
    fn group_of(&self, key: u64) -> u64 {
        key.checked_shr(self.shift).unwrap_or_else(|| key / self.group)
    }

    /// Returns the number of blocks that a sampled one stands for.
    pub fn stands_for(&self) -> u64 {
        self.group << self.level
    }

    /// Halves the sample. Returns `false` if it cannot be halved further.
    pub(super) fn halve(&mut self) -> bool {
        let more = self.level < MOST_LEVELS;
        self.level += u32::from(more);
        more
    }

    /// Returns a sample of half of these blocks; `None` if it cannot be halved further.
    pub fn halved(mut self) -> Option<Self> {
        self.halve().then_some(self)
    }

    /// Hashes a number; `kind` makes the hashes for different purposes independent.
    fn hash(&self, number: u64, kind: u32) -> u64 {
        mix(number.wrapping_add(self.seed).wrapping_add(u64::from(kind) << 57))
    }

    /// Returns the one block of a group that may be sampled.
    fn drawn(&self, group: u64) -> Option<u64> {
        let place = match self.shift {
            // Called for each request of a volume, so it mixes less well but in half the time.
            1..64 => {
                let one = group.wrapping_add(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (one ^ (one >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (64 - self.shift)
            }
            _ => ((u128::from(self.hash(group, 0)) * u128::from(self.group)) >> 64) as u64,
        };
        (group * self.group).checked_add(place)
    }

    /// Whether a group is left after all halvings.
    fn left(&self, group: u64) -> bool {
        (1..=self.level)
            .all(|level| self.hash(group >> level, level) & 1 == group >> (level - 1) & 1)
    }

    /// Whether a block is sampled.
    pub fn has(&self, Key(key): Key) -> bool {
        let group = self.group_of(key);
        self.drawn(group) == Some(key) && self.left(group)
    }

    /// Returns the sampled blocks of a range, in ascending order. Takes time per group in the
    /// range, not per block.
    #[inline]
    pub fn of(&self, keys: Range<Key>) -> impl Iterator<Item = Key> + use<> {
        let sample = *self;
        let range = keys.start.0..keys.end.0;
        let end = if range.is_empty() { 0 } else { self.group_of(range.end - 1) + 1 };
        let groups = self.group_of(range.start)..end;
        groups.filter_map(move |group| {
            let key = sample.drawn(group).filter(|key| range.contains(key))?;
            sample.left(group).then_some(Key(key))
        })
    }

    /// Whether any block in a range is sampled.
    #[inline]
    pub fn touches(&self, keys: Range<Key>) -> bool {
        let Range { start: Key(start), end: Key(end) } = keys;
        let group = self.group_of(start);
        if start < end && group == self.group_of(end - 1) {
            // Fast path: most requests lie within one group.
            let drawn = self.drawn(group).is_some_and(|key| (start..end).contains(&key));
            return drawn && self.left(group);
        }
        self.of(keys).next().is_some()
    }

    /// Returns the part, of `parts` equal ones, that a sampled block belongs to: neighbouring
    /// groups are in different parts.
    pub(crate) fn part(&self, Key(key): Key, parts: u64) -> usize {
        let group = self.group_of(key);
        let turn = self.hash(group / parts, MOST_LEVELS + 1) % parts;
        ((group % parts + turn) % parts) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: Range<u64>) -> Range<Key> {
        Key(range.start)..Key(range.end)
    }

    #[test]
    fn each_group_has_one_and_ranges_agree_with_single_blocks() {
        for group in [1u32, 2, 7, 100, 128] {
            let mut sample = Sample::new(group, 3);
            for _ in 0..4 {
                let stands_for = sample.stands_for();
                let sampled: Vec<Key> = sample.of(keys(0..stands_for * 64)).collect();
                assert_eq!(sampled.len(), 64, "one of each {stands_for}");
                let all = (0..stands_for * 64).map(Key);
                assert_eq!(sampled, all.filter(|key| sample.has(*key)).collect::<Vec<_>>());
                for (begin, end) in [(0, 1), (5, 5), (13, 500), (501, 502)] {
                    let inside = sampled.iter().filter(|key| (begin..end).contains(&key.0));
                    let any = inside.clone().next().is_some();
                    assert!(end > stands_for * 64 || sample.touches(keys(begin..end)) == any);
                    assert_eq!(
                        sample
                            .of(keys(begin..end))
                            .filter(|key| key.0 < stands_for * 64)
                            .collect::<Vec<_>>(),
                        inside.copied().collect::<Vec<_>>()
                    );
                }
                let before = sample;
                assert!(sample.halve());
                assert!(sample.of(keys(0..10_000)).all(|key| before.has(key)));
            }
        }
    }

    #[test]
    fn all_places_of_a_group_are_drawn_equally_often() {
        let sample = Sample::new(10, 1);
        let mut counts = [0u32; 10];
        sample.of(keys(0..1_000_000)).for_each(|key| counts[(key.0 % 10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn parts_are_equal_and_the_ends_of_all_keys_do_no_harm() {
        let sample = Sample::new(10, 1);
        let mut counts = [0u32; 8];
        sample.of(keys(0..8_000)).for_each(|key| counts[sample.part(key, 8)] += 1);
        assert_eq!(counts, [100; 8]);
        assert!(sample.of(keys(u64::MAX - 100..u64::MAX)).count() >= 9);
        assert!(!sample.has(Key(u64::MAX)) || sample.drawn(u64::MAX / 10) == Some(u64::MAX));
        let mut sample = Sample::new(1, 1);
        while sample.halve() {}
        assert_eq!(sample.stands_for(), 1 << 40);
    }
}
