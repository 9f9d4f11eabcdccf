//! ARC: an LRU list of blocks seen once and one of blocks seen more often, each with ghosts. A hit
//! on a ghost shows which list should have been longer, and moves the target towards it.
//!
//! Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4.
//! The target length of the first list is a real number, as in the paper. Ghosts and blocks
//! together are at most twice the capacity.
//!
//! 12.13 bytes per block, and 5.4 for ghosts.

use super::fields::Fields;
use super::ghost::Ghosts;
use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// Queue of blocks that were used once: `T1`, and `B1` for its ghosts.
const ONCE: usize = 0;
/// Queue of blocks that were used more often: `T2`, and `B2` for its ghosts.
const OFTEN: usize = 1;

/// See the module.
#[derive(Debug)]
pub struct Arc {
    capacity: u32,
    /// `p`: target length of the first list.
    target: f64,
    lists: Lists,
    often: Fields,
    hashes: Vec<u32>,
    ghosts: Ghosts,
}

impl Arc {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Arc {
            capacity,
            target: 0.0,
            lists: Lists::new(nodes, 2),
            often: Fields::new(nodes, 1),
            hashes: vec![0; nodes as usize],
            ghosts: Ghosts::new(capacity),
        }
    }

    fn list(&self, node: u32) -> usize {
        usize::from(self.often.get(node))
    }

    /// `REPLACE` of the paper; `ghost` is the queue whose ghost was hit.
    fn replace(&mut self, ghost: Option<usize>) -> Option<u32> {
        let once = self.lists.len(ONCE);
        let target = self.target;
        let too_long =
            f64::from(once) > target || (ghost == Some(OFTEN) && f64::from(once) == target);
        let from = if once > 0 && (too_long || self.lists.len(OFTEN) == 0) { ONCE } else { OFTEN };
        let node = self.lists.pop(from)?;
        self.ghosts.insert(from, self.hashes[node as usize], 0);
        // Can happen only after external removals.
        if self.ghosts.len(ONCE) + self.ghosts.len(OFTEN) > self.capacity {
            let longer = if self.ghosts.len(ONCE) > self.ghosts.len(OFTEN) { ONCE } else { OFTEN };
            self.ghosts.pop(longer);
        }
        Some(node)
    }

    /// Moves the target towards the list whose ghost was hit; that ghost is already removed.
    fn learn(&mut self, ghost: usize) {
        let ghosts = |queue| f64::from(self.ghosts.len(queue) + u32::from(queue == ghost));
        let step = |other: f64, own: f64| (other / own).max(1.0);
        self.target = if ghost == ONCE {
            (self.target + step(ghosts(OFTEN), ghosts(ONCE))).min(f64::from(self.capacity))
        } else {
            (self.target - step(ghosts(ONCE), ghosts(OFTEN))).max(0.0)
        };
    }
}

impl BlockPolicy for Arc {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Arc
    }

    fn resident(&self) -> u32 {
        self.lists.len(ONCE) + self.lists.len(OFTEN)
    }

    fn hit(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(self.list(node), node);
            self.often.set(node, 1);
            self.lists.push(OFTEN, node);
        }
    }

    fn insert(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        let hash = key.hash();
        let full = self.resident() >= self.capacity;
        let ghost = self.ghosts.take(hash);
        let leaves = if let Some(queue) = ghost {
            self.learn(queue);
            if full { self.replace(ghost) } else { None }
        } else {
            let once = self.lists.len(ONCE);
            let known = self.resident() + self.ghosts.len(ONCE) + self.ghosts.len(OFTEN);
            if once + self.ghosts.len(ONCE) >= self.capacity {
                if once < self.capacity {
                    self.ghosts.pop(ONCE);
                    if full { self.replace(None) } else { None }
                } else {
                    self.lists.pop(ONCE)
                }
            } else {
                if known >= 2 * self.capacity {
                    self.ghosts.pop(OFTEN);
                }
                if full { self.replace(None) } else { None }
            }
        };
        self.hashes[node as usize] = hash;
        self.often.set(node, u8::from(ghost.is_some()));
        self.lists.push(if ghost.is_some() { OFTEN } else { ONCE }, node);
        leaves.map(Node)
    }

    fn evict(&mut self) -> Option<Node> {
        self.replace(None).map(Node)
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(self.list(node), node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.often.replace(from, to);
        self.hashes[to as usize] = self.hashes[from as usize];
    }

    fn state_bytes(&self) -> StateBytes {
        let hashes = self.hashes.capacity() * size_of::<u32>();
        StateBytes {
            resident: self.lists.bytes() + self.often.bytes() + hashes,
            ghosts: self.ghosts.bytes(),
        }
    }
}
