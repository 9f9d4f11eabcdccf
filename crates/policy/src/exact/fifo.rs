//! First in, first out: blocks are evicted in the order of arrival, used or not.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
//! 5(2), 1966. One list in the order of arrival; 8 bytes per block.

use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// See the module.
#[derive(Debug)]
pub struct Fifo {
    capacity: u32,
    lists: Lists,
}

/// The only list, in the order of arrival.
const CAME: usize = 0;

impl Fifo {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Fifo { capacity, lists: Lists::new(nodes, 1) }
    }
}

impl BlockPolicy for Fifo {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Fifo
    }

    fn resident(&self) -> u32 {
        self.lists.len(CAME)
    }

    fn hit(&mut self, _node: Node) {}

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.lists.push(CAME, node);
        leaves
    }

    fn evict(&mut self) -> Option<Node> {
        self.lists.pop(CAME).map(Node)
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(CAME, node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
    }

    fn state_bytes(&self) -> StateBytes {
        StateBytes { resident: self.lists.bytes(), ghosts: 0 }
    }
}
