//! The entry of one cached block, and its packing into a word.

use forebay_core::Slot;

/// The largest rank. Ranks are 0 to 15 on the replacement policy's own scale; at 0 the policy no
/// longer keeps the block.
pub const RANK_MAX: u8 = 15;

/// The rank of recovered blocks whose rank is unknown: the lowest with which the policy keeps them.
pub const RANK_UNKNOWN: u8 = 1;

const RANK_BITS: u32 = 4;

/// Bits of a word that are neither slot, check nor remainder: rank, dirty, partial and choice.
pub(super) const FIXED_BITS: u32 = RANK_BITS + 3;

/// The high bits of a 32-bit checksum of a block's payload, as many as the table has room for.
///
/// In a check that comes from a table the missing bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Check(u32);

impl Check {
    /// Keeps all bits of `full`. A table truncates it to its own width.
    pub fn new(full: u32) -> Self {
        Check(full)
    }

    /// Returns whether the first `bits` (0 to 32) bits agree with those of `full`.
    #[inline]
    pub fn matches(self, full: u32, bits: u32) -> bool {
        u64::from(self.0 ^ full) >> (32 - bits.min(32)) == 0
    }

    /// Returns the known bits, at the high end.
    pub fn high_bits(self) -> u32 {
        self.0
    }

    /// Returns the 28 high bits as a number below 2^28, for structures that keep 28.
    pub fn to_28(self) -> u32 {
        self.0 >> 4
    }

    /// Restores a check from [`Check::to_28`]; higher bits of `value` are ignored. Valid for widths
    /// up to 28.
    pub fn from_28(value: u32) -> Self {
        Check(value << 4)
    }
}

/// State of a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Slot of the payload; below 2^slot_bits of the geometry.
    pub slot: Slot,
    /// Whether the block is newer than the origin.
    pub dirty: bool,
    /// Whether some sectors of the block are invalid; the mask has the valid ones.
    pub partial: bool,
    /// Rank for the policy, 0 to [`RANK_MAX`]; larger values are stored as [`RANK_MAX`].
    pub rank: u8,
    /// The high bits of the payload's checksum.
    pub check: Check,
}

impl Entry {
    /// Returns the 28 high bits of the check; missing bits of a narrower one are 0.
    pub fn check28(&self) -> u32 {
        self.check.to_28()
    }
}

/// Widths of the fields of a word, from the low end: check, slot, rank, dirty, partial, choice,
/// and the remainder plus one. A used word is therefore never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    check_bits: u32,
    slot_bits: u32,
}

impl Layout {
    pub(super) fn new(check_bits: u32, slot_bits: u32) -> Self {
        debug_assert!(check_bits <= 32 && (1..=32).contains(&slot_bits));
        Layout { check_bits, slot_bits }
    }

    pub(super) fn check_bits(self) -> u32 {
        self.check_bits
    }

    pub(super) fn slot_bits(self) -> u32 {
        self.slot_bits
    }

    #[inline]
    fn rank_shift(self) -> u32 {
        self.check_bits + self.slot_bits
    }

    #[inline]
    fn dirty_bit(self) -> u64 {
        1 << (self.rank_shift() + RANK_BITS)
    }

    #[inline]
    fn partial_bit(self) -> u64 {
        self.dirty_bit() << 1
    }

    /// The bit that is set in words in the second of their two buckets; all lower bits are payload.
    #[inline]
    pub(super) fn choice_bit(self) -> u64 {
        self.dirty_bit() << 2
    }

    /// Returns the part of a word in its first bucket that identifies its key.
    ///
    /// # Panics
    /// The remainder does not fit: truncated, it would be that of another key.
    #[inline]
    pub(super) fn tag(self, remainder: u64) -> u64 {
        let shift = self.rank_shift() + FIXED_BITS;
        assert!(remainder < (1 << (64 - shift)) - 1, "an address is out of range");
        (remainder + 1) << shift
    }

    /// Returns a used word of this layout in one with fewer bits of check.
    #[inline]
    pub(super) fn widened(self, word: u64, check_bits: u32) -> u64 {
        // The lowest bits of the check are the lowest of the word.
        word >> (self.check_bits - check_bits)
    }

    /// Returns the remainder in a used word.
    #[inline]
    pub(super) fn remainder(self, word: u64) -> u64 {
        (word >> (self.rank_shift() + FIXED_BITS)).wrapping_sub(1)
    }

    /// Returns `word` with everything but the key replaced by `entry`.
    ///
    /// # Panics
    /// The slot does not fit: truncated, it would be a valid slot of another block.
    #[inline]
    pub(super) fn with_entry(self, word: u64, entry: &Entry) -> u64 {
        let slot = u64::from(entry.slot.0);
        assert!(slot >> self.slot_bits == 0, "slot {slot} is wider than {} bits", self.slot_bits);
        let payload = (u64::from(entry.check.0) >> (32 - self.check_bits))
            | (slot << self.check_bits)
            | (u64::from(entry.rank.min(RANK_MAX)) << self.rank_shift())
            | if entry.dirty { self.dirty_bit() } else { 0 }
            | if entry.partial { self.partial_bit() } else { 0 };
        (word & !(self.choice_bit() - 1)) | payload
    }

    /// Returns `word` with another rank.
    #[inline]
    pub(super) fn with_rank(self, word: u64, rank: u8) -> u64 {
        let field = u64::from(RANK_MAX) << self.rank_shift();
        (word & !field) | (u64::from(rank.min(RANK_MAX)) << self.rank_shift())
    }

    /// Returns the entry in a used word.
    #[inline]
    pub(super) fn entry(self, word: u64) -> Entry {
        let check = word & ((1 << self.check_bits) - 1);
        let slot = (word >> self.check_bits) & ((1 << self.slot_bits) - 1);
        Entry {
            slot: Slot(slot as u32),
            dirty: word & self.dirty_bit() != 0,
            partial: word & self.partial_bit() != 0,
            rank: (word >> self.rank_shift()) as u8 & RANK_MAX,
            check: Check((check << (32 - self.check_bits)) as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_keeps_its_extremes_apart_from_the_others() {
        for check_bits in 16..=32 {
            for slot_bits in 1..=32 {
                let Some(remainder_bits) = 64u32.checked_sub(check_bits + slot_bits + FIXED_BITS)
                else {
                    continue;
                };
                if remainder_bits == 0 {
                    continue;
                }
                let layout = Layout::new(check_bits, slot_bits);
                let slot_last = ((1u64 << slot_bits) - 1) as u32;
                let check_last = (u32::MAX >> (32 - check_bits)) << (32 - check_bits);
                let remainder_last = (1u64 << remainder_bits) - 2;
                for pattern in 0..128u32 {
                    let bit = |n: u32| pattern >> n & 1 == 1;
                    let remainder = if bit(0) { remainder_last } else { 0 };
                    let choice = if bit(1) { layout.choice_bit() } else { 0 };
                    let entry = Entry {
                        slot: Slot(if bit(2) { slot_last } else { 0 }),
                        dirty: bit(3),
                        partial: bit(4),
                        rank: if bit(5) { RANK_MAX } else { 0 },
                        check: Check(if bit(6) { check_last } else { 0 }),
                    };
                    let word = layout.with_entry(layout.tag(remainder) | choice, &entry);
                    assert_ne!(word, 0);
                    assert_eq!(layout.remainder(word), remainder);
                    assert_eq!(word & layout.choice_bit(), choice);
                    assert_eq!(layout.entry(word), entry);
                    for rank in 0..=RANK_MAX {
                        let ranked = layout.with_rank(word, rank);
                        assert_eq!(layout.entry(ranked), Entry { rank, ..entry });
                        assert_eq!(
                            ranked >> layout.rank_shift() >> 4,
                            word >> layout.rank_shift() >> 4
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn checks_compare_high_bits_only() {
        let check = Check::new(0xdead_beef);
        for bits in 0..=32 {
            for flipped in 0..32 {
                let full = 0xdead_beef ^ (1 << flipped);
                assert_eq!(check.matches(full, bits), flipped < 32 - bits, "{bits} {flipped}");
            }
        }
        let short = Check::from_28(check.to_28());
        assert!(short.matches(0xdead_beef, 28));
        assert!(!short.matches(0xdead_beef, 32));
        assert_eq!(short.to_28(), check.to_28());
        assert_eq!(Check::from_28(u32::MAX).to_28(), (1 << 28) - 1);
    }

    #[test]
    fn a_word_that_is_widened_loses_bits_of_its_check_only() {
        let mut random = fastrand::Rng::with_seed(3);
        for (from, to) in [(32, 16), (25, 24), (20, 20)] {
            let (narrow, wide) = (Layout::new(from, 16), Layout::new(to, 16));
            for _ in 0..1000 {
                let entry = Entry {
                    slot: Slot(random.u32(..1 << 16)),
                    dirty: random.bool(),
                    partial: random.bool(),
                    rank: random.u8(..=RANK_MAX),
                    check: Check::new(random.u32(..)),
                };
                let remainder = random.u64(..(1 << (64 - 16 - FIXED_BITS - from)) - 1);
                let choice =
                    if random.bool() { (narrow.choice_bit(), wide.choice_bit()) } else { (0, 0) };
                let word = narrow.with_entry(narrow.tag(remainder) | choice.0, &entry);
                let wanted = wide.with_entry(wide.tag(remainder) | choice.1, &entry);
                assert_eq!(narrow.widened(word, to), wanted);
            }
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn remainders_are_never_cut_short() {
        let layout = Layout::new(16, 8);
        let bits = 64 - 16 - 8 - FIXED_BITS;
        assert_ne!(layout.tag((1 << bits) - 2), 0);
        layout.tag((1 << bits) - 1);
    }

    #[test]
    fn ranks_saturate() {
        let layout = Layout::new(16, 8);
        let entry =
            Entry { slot: Slot(3), dirty: false, partial: false, rank: 200, check: Check(0) };
        let word = layout.with_entry(layout.tag(5), &entry);
        assert_eq!(layout.entry(word).rank, RANK_MAX);
        assert_eq!(layout.entry(layout.with_rank(word, 16)).rank, RANK_MAX);
    }

    #[test]
    #[should_panic(expected = "wider than 8 bits")]
    fn slots_are_never_cut_short() {
        let layout = Layout::new(16, 8);
        let slot = Slot(256);
        let entry = Entry { slot, dirty: false, partial: false, rank: 0, check: Check(0) };
        layout.with_entry(layout.tag(5), &entry);
    }
}
