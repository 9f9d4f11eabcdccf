//! Least recently used: the block unused for longest is evicted.
//!
//! Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
//! Journal 9(2), 1970. One list in the order of use; 8 bytes per block.

use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// See the module.
#[derive(Debug)]
pub struct Lru {
    capacity: u32,
    lists: Lists,
}

/// The only list, in the order of last use.
const USED: usize = 0;

impl Lru {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Lru { capacity, lists: Lists::new(nodes, 1) }
    }
}

impl BlockPolicy for Lru {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Lru
    }

    fn resident(&self) -> u32 {
        self.lists.len(USED)
    }

    fn hit(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.renew(USED, node);
        }
    }

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.lists.push(USED, node);
        leaves
    }

    fn evict(&mut self) -> Option<Node> {
        self.lists.pop(USED).map(Node)
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(USED, node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
    }

    fn state_bytes(&self) -> StateBytes {
        StateBytes { resident: self.lists.bytes(), ghosts: 0 }
    }
}
