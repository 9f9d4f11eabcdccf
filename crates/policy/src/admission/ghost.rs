//! Ghosts: a memory of blocks that are not cached, and why they are not.
//!
//! A miss asks two questions. Why is the block absent? And was it missed before, so that it is
//! worth caching now?
//!
//! An entry has 16 bits: 13 bits of a hash of the address, and 3 bits of [`Past`]. 31 entries and a
//! cursor fill one CPU cache line. A block maps to one line, in which a new entry replaces the
//! oldest. So an entry costs two bytes, a lookup costs one memory access, and about one block in
//! 260 is mistaken for another (31 in 8192).
//!
//! Lanes share the memory without locks. Words of four entries are read and written whole; if two
//! lanes write the same word at the same moment, one note may be lost, which only means that a
//! block is forgotten early.
//!
//! A memory for statistics only can be smaller than the number of blocks it covers. It samples one
//! address in [`Ghost::kept_of`], chosen by the hash, like the sampled caches of "Efficient MRC
//! Construction with SHARDS" (FAST 2015), and reports all others as not kept.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::chunked::Chunked;
use crate::hash::mix;

/// Why a block is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Past {
    /// The block was evicted.
    Evicted = 1,
    /// The block was discarded, or invalidated by a write to the origin.
    Invalidated = 2,
    /// The block was missed, and admission refused it.
    NotAdmitted = 3,
    /// The block was missed while the write budget was used up.
    OverBudget = 4,
    /// The block was missed, and the fill was refused or overtaken.
    NotFilled = 5,
}

impl Past {
    /// Every value.
    pub const ALL: [Past; 5] =
        [Past::Evicted, Past::Invalidated, Past::NotAdmitted, Past::OverBudget, Past::NotFilled];

    fn from_bits(bits: u64) -> Option<Past> {
        Past::ALL.into_iter().find(|past| *past as u64 == bits & PAST)
    }
}

/// Answer to [`Ghost::recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recall {
    /// The block is remembered.
    Past(Past),
    /// The block is not remembered: never seen, or too long ago.
    Nothing,
    /// The block is not in the sample, so nothing is kept about it.
    NotKept,
}

/// The bits of an entry that hold [`Past`].
const PAST: u64 = 7;
/// Entries in a word, and words in a line.
const LANES: usize = 4;
const WORDS: usize = 8;
/// Entries in a line; the last position holds the cursor.
const ENTRIES: u64 = (WORDS * LANES - 1) as u64;
/// A memory for statistics has at least this many entries (128 KiB) before it samples.
const LEAST_ENTRIES: u64 = 1 << 16;
/// The sparsest sampling: one address in this many.
const SPARSEST: u64 = 32;

/// The same 16 bits four times.
const ONES: u64 = 0x0001_0001_0001_0001;
/// Bit position of the cursor in its word.
const CURSOR_SHIFT: u32 = 48;

#[repr(align(64))]
#[derive(Default)]
struct GhostLine([AtomicU64; WORDS]);

/// Marks the highest bit of each 16 bits of `word` that are zero.
fn zeroes(word: u64) -> u64 {
    const LOW: u64 = 0x7fff * ONES;
    !(((word & LOW) + LOW) | word | LOW)
}

/// Returns the bit position of the lowest marked entry in a word.
fn shift_of(marks: u64) -> u32 {
    marks.trailing_zeros() & !15
}

impl GhostLine {
    /// Returns the words, each with a mask of the highest bits of the positions that hold entries.
    fn words(&self) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let places = |number: usize| match number + 1 {
            WORDS => (0x8000 * ONES) & ((1 << CURSOR_SHIFT) - 1),
            _ => 0x8000 * ONES,
        };
        self.0.iter().enumerate().map(move |(number, word)| (word, places(number)))
    }

    /// Finds the entry with this fingerprint: its word, and its bit position there.
    fn find(&self, print: u64) -> Option<(&AtomicU64, u32)> {
        self.words().find_map(|(cell, places)| {
            let word = cell.load(Ordering::Relaxed);
            // With the fingerprint removed, a matching entry has only its `Past` bits left, which
            // are not zero.
            let different = word ^ ((print << 3) * ONES);
            let candidates = zeroes(different & !(PAST * ONES)) & !zeroes(word & (PAST * ONES));
            let found = candidates & places;
            (found != 0).then(|| (cell, shift_of(found)))
        })
    }

    /// Returns the position for a new entry: an empty one, or that of the oldest entry.
    fn room(&self) -> (&AtomicU64, u32) {
        let empty = self.words().find_map(|(cell, places)| {
            let found = zeroes(cell.load(Ordering::Relaxed)) & places;
            (found != 0).then(|| (cell, shift_of(found)))
        });
        empty.unwrap_or_else(|| {
            let last = &self.0[WORDS - 1];
            let cursor = (last.load(Ordering::Relaxed) >> CURSOR_SHIFT) % ENTRIES;
            put(last, CURSOR_SHIFT, (cursor + 1) % ENTRIES);
            (&self.0[cursor as usize / LANES], (cursor as u32 % LANES as u32) * 16)
        })
    }
}

/// Replaces the 16 bits at `shift`.
fn put(cell: &AtomicU64, shift: u32, entry: u64) {
    let word = cell.load(Ordering::Relaxed);
    cell.store((word & !(0xffff << shift)) | (entry << shift), Ordering::Relaxed);
}

/// See the module.
pub struct Ghost {
    lines: Chunked<GhostLine>,
    /// Only addresses whose hash has these bits zero are kept.
    sparse: u64,
}

/// Location of a stored address.
#[derive(Clone, Copy)]
struct GhostSlot {
    /// Index of the line.
    line: u64,
    /// Fingerprint of 13 bits.
    print: u64,
}

impl Ghost {
    /// Creates a memory of `entries` entries, two bytes each, for all addresses.
    pub fn new(entries: u64) -> Self {
        Ghost::sparse(entries, 1)
    }

    /// Makes a memory for statistics that covers as many blocks as a cache of `slots` blocks holds.
    /// It takes 128 KiB, or a sixteenth of a byte per slot if that is more.
    pub fn for_statistics(slots: u64) -> Self {
        let kept_of = (slots / LEAST_ENTRIES).clamp(1, SPARSEST).next_power_of_two();
        Ghost::sparse((slots / kept_of).max(LEAST_ENTRIES.min(slots)), kept_of)
    }

    fn sparse(entries: u64, kept_of: u64) -> Self {
        Ghost { lines: Chunked::new(entries.div_ceil(ENTRIES + 1)), sparse: (kept_of - 1) << 13 }
    }

    /// Returns the number of entries the memory can hold.
    pub fn entries(&self) -> u64 {
        self.lines.len() * (ENTRIES + 1)
    }

    /// Returns the sampling ratio: one address in this many is kept; 1 keeps all.
    pub fn kept_of(&self) -> u64 {
        (self.sparse >> 13) + 1
    }

    /// Returns the memory in bytes once every chunk is allocated.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    fn place(&self, address: u64) -> Option<GhostSlot> {
        let hash = mix(address);
        let place = GhostSlot { line: self.lines.of_hash(hash), print: hash & 0x1fff };
        (hash & self.sparse == 0).then_some(place)
    }

    /// Returns why a block is absent, if that is remembered.
    pub fn recall(&self, address: u64) -> Recall {
        let Some(place) = self.place(address) else { return Recall::NotKept };
        let found = self.lines.get(place.line).and_then(|line| line.find(place.print));
        let past =
            found.and_then(|(cell, shift)| Past::from_bits(cell.load(Ordering::Relaxed) >> shift));
        past.map_or(Recall::Nothing, Recall::Past)
    }

    /// Records why a block is absent; replaces an earlier record.
    pub fn note(&self, address: u64, past: Past) {
        let Some(place) = self.place(address) else { return };
        let Some(line) = self.lines.get_or_init(place.line) else { return };
        let (cell, shift) = line.find(place.print).unwrap_or_else(|| line.room());
        put(cell, shift, (place.print << 3) | past as u64);
    }

    /// Forgets a block, because it is cached now.
    pub fn forget(&self, address: u64) {
        let Some(place) = self.place(address) else { return };
        if let Some((cell, shift)) =
            self.lines.get(place.line).and_then(|line| line.find(place.print))
        {
            put(cell, shift, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(number: u64) -> Past {
        Past::ALL[number as usize % Past::ALL.len()]
    }

    #[test]
    fn zero_entries_are_marked_and_no_others() {
        let values = [0, 1, 7, 8, 0x7fff, 0x8000, 0xffff];
        for a in values {
            for b in values {
                for c in values {
                    for d in values {
                        let word = a | b << 16 | c << 32 | d << 48;
                        let expected = [a, b, c, d]
                            .iter()
                            .enumerate()
                            .map(|(lane, value)| u64::from(*value == 0) << (lane * 16 + 15))
                            .sum::<u64>();
                        assert_eq!(zeroes(word), expected, "{word:x}");
                    }
                }
            }
        }
    }

    /// One line matches a reference list, for any sequence of notes and removals.
    #[test]
    fn a_line_is_a_list_of_the_latest_31_with_holes_filled_first() {
        let mut random = fastrand::Rng::with_seed(1);
        for prints in [3, 31, 32, 40, 200] {
            let line = GhostLine::default();
            let mut places: Vec<Option<(u64, u64)>> = vec![None; ENTRIES as usize];
            let mut cursor = 0;
            for _ in 0..5_000 {
                let (print, bits) = (random.u64(0..prints) * 41 % 0x2000, random.u64(1..=5));
                let known = places.iter().position(|e| e.is_some_and(|(p, _)| p == print));
                let found = line.find(print);
                assert_eq!(found.is_some(), known.is_some());
                if let (Some((cell, shift)), Some(place)) = (found, known) {
                    let entry = (cell.load(Ordering::Relaxed) >> shift) & 0xffff;
                    assert_eq!(Some((entry >> 3, entry & PAST)), places[place]);
                }
                if random.u8(..) < 30 {
                    if let (Some((cell, shift)), Some(place)) = (found, known) {
                        put(cell, shift, 0);
                        places[place] = None;
                    }
                    continue;
                }
                let (cell, shift) = found.unwrap_or_else(|| line.room());
                put(cell, shift, (print << 3) | bits);
                let place = known.or_else(|| places.iter().position(Option::is_none));
                let place = place.unwrap_or_else(|| {
                    cursor += 1;
                    (cursor - 1) % ENTRIES as usize
                });
                places[place] = Some((print, bits));
            }
        }
    }

    #[test]
    fn the_latest_notes_are_recalled_until_they_are_removed() {
        for entries in [0, 1, 31, 32, 33, 1000, 100_000] {
            let ghost = Ghost::new(entries);
            for address in (0..5_000u64).chain([u64::MAX]) {
                ghost.note(address, Past::Evicted);
                ghost.note(address, past(address));
                assert_eq!(ghost.recall(address), Recall::Past(past(address)), "{address}");
                if address % 3 == 0 {
                    ghost.forget(address);
                    assert_eq!(ghost.recall(address), Recall::Nothing);
                }
            }
        }
    }

    #[test]
    fn notes_reach_back_over_most_entries_but_not_twice_as_many() {
        for entries in [1 << 10, 1 << 16] {
            let ghost = Ghost::new(entries);
            let last = 10 * entries;
            (0..last).for_each(|address| ghost.note(address, past(address)));
            let recalled = |back: u64, of: u64| {
                let from = last - back;
                let right = (from..from + of)
                    .filter(|address| ghost.recall(*address) == Recall::Past(past(*address)));
                right.count() as f64 / of as f64
            };
            let tenth = entries / 10;
            assert!(recalled(tenth, tenth) > 0.98, "{}", recalled(tenth, tenth));
            let back = entries * 6 / 10;
            assert!(recalled(back, tenth) > 0.9, "{}", recalled(back, tenth));
            assert!(recalled(2 * entries, tenth) < 0.1, "{}", recalled(2 * entries, tenth));
        }
    }

    #[test]
    fn few_blocks_are_taken_for_others() {
        let ghost = Ghost::new(1 << 15);
        (0..1 << 16).for_each(|address| ghost.note(address, Past::NotAdmitted));
        let others = 1 << 20..(1 << 20) + (1 << 18);
        let wrong = others.clone().filter(|other| ghost.recall(*other) != Recall::Nothing).count();
        let share = wrong as f64 / others.count() as f64;
        assert!((0.003..0.0045).contains(&share), "{share}");
    }

    #[test]
    fn statistics_take_a_sixteenth_of_a_byte_per_slot() {
        for (slots, kept_of) in
            [(0, 1), (100, 1), (1 << 16, 1), (1 << 17, 2), (1 << 21, 32), (1 << 28, 32)]
        {
            let ghost = Ghost::for_statistics(slots);
            assert_eq!(ghost.kept_of(), kept_of, "{slots}");
            let most = (slots / 16 + 64).max(128 << 10);
            assert!(ghost.bytes() <= most, "{slots}: {}", ghost.bytes());
            assert!(ghost.entries() * kept_of >= slots);
        }
    }

    #[test]
    fn a_sparse_memory_knows_its_share_of_the_addresses_and_says_so() {
        let ghost = Ghost::for_statistics(1 << 21);
        let addresses = 0..1u64 << 20;
        addresses.clone().for_each(|address| ghost.note(address, past(address)));
        let mut kept = 0;
        for address in addresses.clone() {
            match ghost.recall(address) {
                Recall::NotKept => (),
                Recall::Past(found) => kept += u64::from(found == past(address)),
                Recall::Nothing => (),
            }
        }
        let share = kept as f64 / addresses.count() as f64;
        assert!((share * 32.0 - 1.0).abs() < 0.03, "{share}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what lanes share is tried with threads")]
    fn lanes_together_lose_notes_and_make_none_up() {
        let ghost = Ghost::new(64);
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let ghost = &ghost;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(lane);
                    for _ in 0..rounds {
                        let address = random.u64(0..100);
                        match random.u8(0..4) {
                            0 => ghost.forget(address),
                            1 => ghost.note(address, Past::Evicted),
                            2 => ghost.note(address, Past::NotFilled),
                            _ => {
                                let past = ghost.recall(address);
                                let known = [Past::Evicted, Past::NotFilled].map(Recall::Past);
                                assert!(past == Recall::Nothing || known.contains(&past));
                            }
                        }
                    }
                });
            }
        });
        ghost.note(1, Past::Invalidated);
        assert_eq!(ghost.recall(1), Recall::Past(Past::Invalidated));
    }
}
