//! 2Q: a block seen for the first time goes through a short FIFO queue and leaves a ghost; if it is
//! missed again while the ghost lasts, it counts as hot and goes to an LRU list.
//!
//! Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement
//! algorithm", VLDB 1994, the full version, with the recommended sizes: `Kin` a quarter of the
//! cache, `Kout` ghosts for half of it. A hit in the FIFO queue changes nothing.
//!
//! 12.13 bytes per block, and 2.7 for ghosts.

use super::fields::Fields;
use super::ghost::Ghosts;
use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// Seen once: `A1in` of the paper, in the order of arrival.
const ONCE: usize = 0;
/// Hot: `Am`, in the order of use.
const HOT: usize = 1;
/// The only queue of ghosts: `A1out`.
const OUT: usize = 0;

/// See the module.
#[derive(Debug)]
pub struct TwoQ {
    capacity: u32,
    most_once: u32,
    most_ghosts: u32,
    lists: Lists,
    hot: Fields,
    hashes: Vec<u32>,
    ghosts: Ghosts,
}

impl TwoQ {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        let most_ghosts = (capacity / 2).max(1);
        TwoQ {
            capacity,
            most_once: (capacity / 4).max(1),
            most_ghosts,
            lists: Lists::new(nodes, 2),
            hot: Fields::new(nodes, 1),
            hashes: vec![0; nodes as usize],
            ghosts: Ghosts::new(most_ghosts),
        }
    }

    fn list(&self, node: u32) -> usize {
        usize::from(self.hot.get(node))
    }
}

impl BlockPolicy for TwoQ {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::TwoQ
    }

    fn resident(&self) -> u32 {
        self.lists.len(ONCE) + self.lists.len(HOT)
    }

    fn hit(&mut self, Node(node): Node) {
        if self.hot.is_set(node) && self.lists.holds(node) {
            self.lists.renew(HOT, node);
        }
    }

    fn insert(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        let hash = key.hash();
        let hot = self.ghosts.take(hash).is_some();
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.hashes[node as usize] = hash;
        self.hot.set(node, u8::from(hot));
        self.lists.push(if hot { HOT } else { ONCE }, node);
        leaves
    }

    fn evict(&mut self) -> Option<Node> {
        if self.lists.len(ONCE) > self.most_once || self.lists.len(HOT) == 0 {
            let node = self.lists.pop(ONCE)?;
            self.ghosts.insert(OUT, self.hashes[node as usize], 0);
            if self.ghosts.len(OUT) > self.most_ghosts {
                self.ghosts.pop(OUT);
            }
            return Some(Node(node));
        }
        self.lists.pop(HOT).map(Node)
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(self.list(node), node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.hot.replace(from, to);
        self.hashes[to as usize] = self.hashes[from as usize];
    }

    fn state_bytes(&self) -> StateBytes {
        let hashes = self.hashes.capacity() * size_of::<u32>();
        StateBytes {
            resident: self.lists.bytes() + self.hot.bytes() + hashes,
            ghosts: self.ghosts.bytes(),
        }
    }
}
