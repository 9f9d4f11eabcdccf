//! Random: every block is evicted with the same probability.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
//! 5(2), 1966. One bit per node marks resident ones; nodes are drawn until a resident one is hit.
//! That takes `nodes / resident` draws on average, and an insertion evicts only when the cache is
//! full.

use super::fields::Fields;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// See the module.
#[derive(Debug)]
pub struct Random {
    capacity: u32,
    nodes: u32,
    resident: u32,
    present: Fields,
    random: fastrand::Rng,
}

impl Random {
    pub(super) fn new(capacity: u32, nodes: u32, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Random { capacity, nodes, resident: 0, present: Fields::new(nodes, 1), random }
    }
}

impl BlockPolicy for Random {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Random
    }

    fn resident(&self) -> u32 {
        self.resident
    }

    fn hit(&mut self, _node: Node) {}

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.present.set(node, 1);
        self.resident += 1;
        leaves
    }

    fn evict(&mut self) -> Option<Node> {
        while self.resident > 0 {
            let drawn = self.random.u32(0..self.nodes);
            if self.present.is_set(drawn) {
                self.remove(Node(drawn));
                return Some(Node(drawn));
            }
        }
        None
    }

    fn remove(&mut self, Node(node): Node) {
        if self.present.is_set(node) {
            self.present.set(node, 0);
            self.resident -= 1;
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.present.replace(from, to);
    }

    fn state_bytes(&self) -> StateBytes {
        StateBytes { resident: self.present.bytes(), ghosts: 0 }
    }
}
