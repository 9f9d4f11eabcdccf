//! LRU stack distances: how many different blocks were used since a block's last use.
//!
//! Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
//! Journal 9(2), 1970: an LRU cache holds a block if fewer different blocks were used since than
//! the cache has capacity for. Each use gets a position in time, and the position of each block's
//! last use is marked; a Fenwick tree counts the marks above a position in O(log n). When positions
//! run out, they are renumbered.
//!
//! A discarded block leaves a **hole** in its position, because a discard does not undo earlier
//! evictions. A hole takes space like a block. The next block that enters fills the topmost hole
//! above its old position: Thompson and Smith, "Efficient (stack) algorithms for analysis of
//! write-back and sector memories", ACM TOCS 7(1), 1989.

use std::collections::{BTreeSet, HashMap};

use crate::exact::Key;

/// Positions of a new stack.
const PLACES: usize = 1024;

/// Prefix sums of marks, as a Fenwick tree.
#[derive(Clone, Debug)]
struct FenwickTree {
    /// Each node, counted from 1, sums the marks of as many positions up to its own as its lowest
    /// set bit.
    nodes: Vec<u32>,
    marked: u32,
}

impl FenwickTree {
    /// Creates a tree of `places` positions, the first `marked` of which are marked.
    fn new(places: usize, marked: u32) -> Self {
        let node = |index: usize| {
            let width = index & index.wrapping_neg();
            (marked as usize).min(index).saturating_sub(index - width) as u32
        };
        FenwickTree { nodes: (0..=places).map(node).collect(), marked }
    }

    fn places(&self) -> usize {
        self.nodes.len() - 1
    }

    fn change(&mut self, place: u32, by: i32) {
        self.marked = self.marked.wrapping_add_signed(by);
        let mut index = place as usize + 1;
        while let Some(node) = self.nodes.get_mut(index) {
            *node = node.wrapping_add_signed(by);
            index += index & index.wrapping_neg();
        }
    }

    /// Returns the marks up to and including a position.
    fn up_to(&self, place: u32) -> u32 {
        let mut index = place as usize + 1;
        let mut sum = 0;
        while index > 0 {
            sum += self.nodes.get(index).copied().unwrap_or_default();
            index &= index - 1;
        }
        sum
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    places: HashMap<Key, u32>,
    holes: BTreeSet<u32>,
    marks: FenwickTree,
    /// The position of the next use.
    next: u32,
}

impl Stack {
    pub(super) fn new() -> Self {
        let marks = FenwickTree::new(PLACES, 0);
        Stack { places: HashMap::new(), holes: BTreeSet::new(), marks, next: 0 }
    }

    /// Returns the number of blocks and holes.
    pub(super) fn depth(&self) -> usize {
        self.marks.marked as usize
    }

    /// Notes a use of a block. Returns the number of different blocks used since its last use, or
    /// `None` for a new block.
    pub(super) fn access(&mut self, key: Key) -> Option<u32> {
        if self.next as usize >= self.marks.places() {
            self.renumber();
        }
        let now = self.next;
        self.next += 1;
        let before = self.places.insert(key, now);
        let distance = before.map(|place| self.marks.marked - self.marks.up_to(place));
        // Caches too small to hold the block fill the hole with it. In caches that hold the block
        // the hole stays, and moves to the position that the block leaves.
        let hole =
            self.holes.last().copied().filter(|hole| before.is_none_or(|place| *hole > place));
        if let Some(hole) = hole {
            self.holes.remove(&hole);
            self.marks.change(hole, -1);
            self.holes.extend(before);
        } else if let Some(place) = before {
            self.marks.change(place, -1);
        }
        self.marks.change(now, 1);
        distance
    }

    /// Turns a block into a hole; an unknown block is ignored.
    pub(super) fn discard(&mut self, key: Key) {
        self.holes.extend(self.places.remove(&key));
    }

    /// Returns the number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.places.len()
    }

    /// Returns the blocks, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.places.keys().copied()
    }

    /// Keeps only the blocks that `stays` accepts, as if there had never been others, and every
    /// other hole.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(Key) -> bool) {
        let marks = &mut self.marks;
        self.places.retain(|key, place| {
            let stays = stays(*key);
            if !stays {
                marks.change(*place, -1);
            }
            stays
        });
        let mut odd = false;
        self.holes.retain(|hole| {
            odd = !odd;
            if !odd {
                marks.change(*hole, -1);
            }
            odd
        });
    }

    /// Moves the marks to the first positions, in their order, and leaves at least as many free.
    fn renumber(&mut self) {
        let marks = &self.marks;
        for place in self.places.values_mut() {
            *place = marks.up_to(*place).saturating_sub(1);
        }
        self.holes = self.holes.iter().map(|hole| marks.up_to(*hole).saturating_sub(1)).collect();
        let marked = self.marks.marked;
        self.marks = FenwickTree::new((marked as usize * 2).max(PLACES), marked);
        self.next = marked;
    }

    /// Returns an estimate of the bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        // One control byte per slot of the table.
        let map = self.places.capacity() * (size_of::<(Key, u32)>() + 1);
        map * 8 / 7 + self.holes.len() * 8 + self.marks.nodes.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted() {
        let mut marks = FenwickTree::new(21, 13);
        for place in 0..21 {
            assert_eq!(marks.up_to(place), (place + 1).min(13));
        }
        marks.change(5, -1);
        marks.change(20, 1);
        assert_eq!((marks.up_to(4), marks.up_to(5), marks.up_to(20), marks.marked), (5, 5, 13, 13));
    }

    #[test]
    fn distances_count_different_blocks_also_after_renumbering() {
        let mut stack = Stack::new();
        let mut order: Vec<u64> = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let key = random.u64(0..1500);
            let depth = order.iter().rev().position(|other| *other == key);
            assert_eq!(stack.access(Key(key)), depth.map(|depth| depth as u32));
            order.retain(|other| *other != key);
            order.push(key);
            if random.u32(0..5000) == 0 {
                stack.retain(|key| key.0 % 3 > 0);
                order.retain(|key| key % 3 > 0);
            }
        }
        assert_eq!((stack.blocks(), stack.depth()), (order.len(), order.len()));
    }
}
