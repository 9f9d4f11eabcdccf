//! Second chance: blocks are evicted in the order of arrival, but a used block gets another round.
//!
//! Corbato, "A paging experiment with the Multics system", MIT Project MAC, 1968. The ring of the
//! clock hand is a list: blocks that the hand spares move to its end. One bit marks a used block; a
//! new block is unmarked. 8.13 bytes per block.

use super::fields::Fields;
use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// See the module.
#[derive(Debug)]
pub struct Clock {
    capacity: u32,
    lists: Lists,
    used: Fields,
}

/// The only list: the hand stands before the oldest block.
const RING: usize = 0;

impl Clock {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Clock { capacity, lists: Lists::new(nodes, 1), used: Fields::new(nodes, 1) }
    }
}

impl BlockPolicy for Clock {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Clock
    }

    fn resident(&self) -> u32 {
        self.lists.len(RING)
    }

    fn hit(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.used.set(node, 1);
        }
    }

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.used.set(node, 0);
        self.lists.push(RING, node);
        leaves
    }

    /// Amortised constant time: each step consumes the mark of an earlier hit.
    fn evict(&mut self) -> Option<Node> {
        loop {
            let node = self.lists.oldest(RING)?;
            if !self.used.is_set(node) {
                self.lists.remove(RING, node);
                return Some(Node(node));
            }
            self.used.set(node, 0);
            self.lists.renew(RING, node);
        }
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(RING, node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.used.replace(from, to);
    }

    fn state_bytes(&self) -> StateBytes {
        StateBytes { resident: self.lists.bytes() + self.used.bytes(), ghosts: 0 }
    }
}
