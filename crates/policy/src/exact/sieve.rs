//! SIEVE: a queue in the order of arrival and a hand that moves from old to new. Unlike in second
//! chance, spared blocks keep their place, so new blocks are examined soon and proven ones late.
//!
//! Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is simpler than LRU: an efficient turn-key
//! eviction algorithm for web caches", NSDI 2024. 8.13 bytes per block.

use super::fields::Fields;
use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// See the module.
#[derive(Debug)]
pub struct Sieve {
    capacity: u32,
    lists: Lists,
    used: Fields,
    /// Next position of the hand; `None` for the oldest block.
    hand: Option<u32>,
}

/// The only list, in the order of arrival.
const CAME: usize = 0;

impl Sieve {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Sieve { capacity, lists: Lists::new(nodes, 1), used: Fields::new(nodes, 1), hand: None }
    }
}

impl BlockPolicy for Sieve {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Sieve
    }

    fn resident(&self) -> u32 {
        self.lists.len(CAME)
    }

    fn hit(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.used.set(node, 1);
        }
    }

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.used.set(node, 0);
        self.lists.push(CAME, node);
        leaves
    }

    /// Amortised constant time: each step consumes the mark of an earlier hit.
    fn evict(&mut self) -> Option<Node> {
        let mut node = self.hand.or_else(|| self.lists.oldest(CAME))?;
        while self.used.is_set(node) {
            self.used.set(node, 0);
            node = self.lists.newer(node).or_else(|| self.lists.oldest(CAME))?;
        }
        self.hand = self.lists.newer(node);
        self.lists.remove(CAME, node);
        Some(Node(node))
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            if self.hand == Some(node) {
                self.hand = self.lists.newer(node);
            }
            self.lists.remove(CAME, node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.used.replace(from, to);
        if self.hand == Some(from) {
            self.hand = Some(to);
        }
    }

    fn state_bytes(&self) -> StateBytes {
        StateBytes { resident: self.lists.bytes() + self.used.bytes(), ghosts: 0 }
    }
}
