//! Ghosts of the blocks that the ranks demote ([`crate::replacement`]): one for each group of four
//! neighbours.
//!
//! Clients read and write runs of blocks, so blocks that are demoted together are mostly
//! neighbours. A ghost has 16 bits: 12 bits of a hash of the group's address, and a bit for each of
//! its blocks. 32 ghosts fill a CPU cache line, in the order of age. A group maps to one line, in
//! which a new ghost replaces the oldest. So a lookup costs one memory access, and of the blocks
//! that were never demoted one in 128 (if all bits are set) to 512 (if one of four is) is taken for
//! a demoted one.
//!
//! There are ghosts for two groups of nine blocks of capacity: runs are remembered for as long as
//! with a ghost for each block at four times the memory, and single blocks for less than a quarter
//! of that. [`GhostGroups::are_single`] tells which case holds.
//!
//! Lanes share the memory without locks. If two lanes write to a line at once, some of their notes
//! may be lost, or stay after they were removed; the only effect is that a block is taken for a
//! returning one, or for a new one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::chunked::Chunked;
use crate::hash::mix;

/// Blocks of a group, and its bits in a ghost.
const GROUP: u32 = 4;
const BLOCKS: u64 = (1 << GROUP) - 1;
/// Bits of a ghost.
const GHOST_BITS: u32 = 16;
const GHOST: u64 = (1 << GHOST_BITS) - 1;
/// Ghosts in a word, words in a line, and ghosts in a line.
const IN_WORD: usize = 4;
const WORDS: usize = 8;
const IN_LINE: usize = WORDS * IN_WORD;

/// Window of the share of notes that joined a ghost, and the share that counts as all.
const NOTES: u32 = 1024;
const ALL: u32 = 1 << 24;

#[repr(align(64))]
#[derive(Default)]
struct GroupLine([AtomicU64; WORDS]);

impl GroupLine {
    /// Returns the ghosts, the oldest first; one without blocks is empty.
    fn ghosts(&self) -> [u64; IN_LINE] {
        let words = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        std::array::from_fn(|n| words[n / IN_WORD] >> (n % IN_WORD * GHOST_BITS as usize) & GHOST)
    }

    /// Replaces the ghosts; does not write to words that stay the same.
    fn set_ghosts(&self, ghosts: &[u64; IN_LINE]) {
        for (cell, ghosts) in self.0.iter().zip(ghosts.chunks(IN_WORD)) {
            let word = ghosts.iter().rev().fold(0, |word, ghost| word << GHOST_BITS | ghost);
            if cell.load(Ordering::Relaxed) != word {
                cell.store(word, Ordering::Relaxed);
            }
        }
    }
}

/// Location of a block's ghost.
#[derive(Clone, Copy)]
struct GroupSlot {
    /// Index of the line.
    line: u64,
    /// Fingerprint of the group.
    print: u64,
    /// Bit of the block.
    bit: u64,
}

impl GroupSlot {
    fn is_of_group(self, ghost: u64) -> bool {
        ghost & BLOCKS != 0 && ghost >> GROUP == self.print
    }
}

/// See the module.
pub struct GhostGroups {
    lines: Chunked<GroupLine>,
    /// The share of notes that joined a ghost of their group, of [`ALL`]: a mean that decays over
    /// [`NOTES`].
    joined: AtomicU32,
}

impl GhostGroups {
    /// Creates a memory for a log of `room` blocks: four ninths of a byte for each.
    pub fn new(room: u64) -> Self {
        let ghosts = (room / 9 * 2).max(1);
        let lines = Chunked::new(ghosts.div_ceil(IN_LINE as u64));
        GhostGroups { lines, joined: AtomicU32::new(ALL) }
    }

    /// Returns the memory in bytes once all of it is in use.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// Returns whether demoted blocks come singly: fewer than two in five joined the ghost of a
    /// neighbour. For runs that fill their groups, three in four do; for pages of two blocks, one
    /// in two.
    pub fn are_single(&self) -> bool {
        self.joined.load(Ordering::Relaxed) < ALL / 5 * 2
    }

    fn place(&self, address: u64) -> GroupSlot {
        let hash = mix(address / u64::from(GROUP));
        let print = hash & (GHOST >> GROUP);
        GroupSlot { line: self.lines.of_hash(hash), print, bit: 1 << (address % u64::from(GROUP)) }
    }

    /// Records that a block was demoted. The ghost of its group counts as new again.
    pub fn note(&self, address: u64) {
        let place = self.place(address);
        let Some(line) = self.lines.get_or_init(place.line) else { return };
        let mut ghosts = line.ghosts();
        let same = ghosts.iter().position(|ghost| place.is_of_group(*ghost));
        let empty = || ghosts.iter().position(|ghost| ghost & BLOCKS == 0);
        let gone = same.or_else(empty).unwrap_or(0);
        let blocks = same.map_or(0, |at| ghosts[at] & BLOCKS);
        ghosts.copy_within(gone + 1.., gone);
        ghosts[IN_LINE - 1] = place.print << GROUP | blocks | place.bit;
        line.set_ghosts(&ghosts);
        self.count(blocks & !place.bit != 0);
    }

    /// `joined`: the ghost has a neighbour as well.
    fn count(&self, joined: bool) {
        let share = self.joined.load(Ordering::Relaxed);
        let more = if joined { ALL / NOTES } else { 0 };
        self.joined.store(share - share / NOTES + more, Ordering::Relaxed);
    }

    /// Returns whether a block was demoted and there is still a ghost of it.
    pub fn recall(&self, address: u64) -> bool {
        let place = self.place(address);
        let Some(line) = self.lines.get(place.line) else { return false };
        let found = line.ghosts().into_iter().rev().find(|ghost| place.is_of_group(*ghost));
        found.is_some_and(|ghost| ghost & place.bit != 0)
    }

    /// Forgets a block, because it is cached now.
    pub fn forget(&self, address: u64) {
        let place = self.place(address);
        let Some(line) = self.lines.get(place.line) else { return };
        let mut ghosts = line.ghosts();
        if let Some(ghost) = ghosts.iter_mut().find(|ghost| place.is_of_group(**ghost)) {
            *ghost &= !place.bit;
            line.set_ghosts(&ghosts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demoted_block_is_recalled_without_its_neighbours() {
        for room in [0, 1, 9, 1000, 1 << 20] {
            let ghosts = GhostGroups::new(room);
            for address in (0..5_000).map(|number| number * 7).chain([u64::MAX]) {
                ghosts.note(address);
                assert!(ghosts.recall(address), "{room} {address}");
                ghosts.note(address ^ 1);
                ghosts.forget(address);
                assert!(!ghosts.recall(address) && ghosts.recall(address ^ 1));
                ghosts.forget(address ^ 1);
            }
        }
    }

    /// Against a vector of groups: the youngest is found first, the oldest is replaced first.
    #[test]
    fn ghosts_have_an_age_and_a_group_is_as_young_as_its_last_note() {
        let ghosts = GhostGroups::new(1);
        let mut random = fastrand::Rng::with_seed(4);
        let mut model: Vec<(u64, u64)> = Vec::new();
        let group = |address: u64| address / 4;
        let bit = |address: u64| 1u64 << (address % 4);
        for _ in 0..20_000 {
            let address = random.u64(0..60 * 4);
            let known = model.iter().position(|(other, _)| *other == group(address));
            if random.u32(0..4) == 0 {
                ghosts.forget(address);
                if let Some(at) = known {
                    model[at].1 &= !bit(address);
                }
            } else {
                ghosts.note(address);
                let blocks = known.map_or(0, |at| model.remove(at).1);
                model.push((group(address), blocks | bit(address)));
            }
            model.retain(|(_, blocks)| *blocks != 0);
            if model.len() > IN_LINE {
                model.remove(0);
            }
            let other = random.u64(0..60 * 4);
            let mut known = model.iter();
            let expected =
                known.any(|(of, blocks)| *of == group(other) && blocks & bit(other) != 0);
            assert_eq!(ghosts.recall(other), expected, "{other} {model:?}");
        }
    }

    fn reach(notes: impl Iterator<Item = u64>, room: u64) -> f64 {
        let ghosts = GhostGroups::new(room);
        let notes: Vec<u64> = notes.collect();
        notes.iter().for_each(|address| ghosts.note(*address));
        notes.iter().filter(|address| ghosts.recall(**address)).count() as f64 / room as f64
    }

    #[test]
    fn runs_are_remembered_longer_than_single_blocks() {
        for room in [1 << 12, 1 << 16] {
            let runs = reach(0..4 * room, room);
            assert!((0.85..0.95).contains(&runs), "{runs}");
            let single = reach((0..4 * room).map(|number| number * 16), room);
            assert!((0.2..0.26).contains(&single), "{single}");
        }
    }

    #[test]
    fn few_blocks_are_taken_for_others() {
        let wrong = |notes: &mut dyn Iterator<Item = u64>| {
            let ghosts = GhostGroups::new(9 << 12);
            notes.for_each(|address| ghosts.note(address));
            let others = 1 << 30..(1 << 30) + (1 << 20);
            others.clone().filter(|other| ghosts.recall(*other)).count() as f64 / (1 << 20) as f64
        };
        let (runs, single) = (wrong(&mut (0..1 << 17)), wrong(&mut (0..1 << 15).map(|it| it * 4)));
        assert!(
            (0.007..0.0085).contains(&runs) && (0.0016..0.0023).contains(&single),
            "{runs} {single}"
        );
    }

    #[test]
    fn runs_are_told_from_single_blocks() {
        let ghosts = GhostGroups::new(1 << 16);
        assert!(!ghosts.are_single(), "before anything was demoted");
        (0..5000).for_each(|number| ghosts.note(number * 100));
        assert!(ghosts.are_single());
        (0..5000).for_each(|number| ghosts.note(1 << 20 | number));
        assert!(!ghosts.are_single());
        (0..5000).for_each(|number| ghosts.note((1 << 21) + number / 2 * 100 + number % 2));
        assert!(!ghosts.are_single(), "pages of two blocks");
    }

    #[test]
    fn ghosts_take_less_than_half_a_byte_per_block_of_capacity() {
        for room in [1u64 << 16, 1 << 24, 1 << 32] {
            let per_block = GhostGroups::new(room).bytes() as f64 / room as f64;
            assert!((0.44..0.446).contains(&per_block), "{room}: {per_block}");
        }
    }
}
