//! W-TinyLFU: a new block spends some time in a small LRU window; then it stays only if it was seen
//! more often than the block that would be evicted for it. Frequencies are counted for all keys,
//! resident or not, and decay.
//!
//! Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM
//! Transactions on Storage 13(4), 2017. The window is 1 % of the cache, the rest is a segmented LRU
//! with four fifths for blocks reused there, and counts are halved after ten times the capacity of
//! them.
//!
//! Hits in the window are not counted, as in libCacheSim: several uses in short succession, because
//! requests are smaller than blocks or run along them, do not make a block frequent. On the trace
//! of a virtual machine's disk in `docs/notebook/policies.md` that changes the miss ratio by 0.05
//! to 0.12 at 10 and 20 %, on the other trace not at all. libCacheSim counts in a filter of 57
//! bytes per block; this sketch takes 8.
//!
//! 12.25 bytes per block, and 8 for the sketch.

use super::fields::Fields;
use super::list::Lists;
use super::sketch::Sketch;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// New blocks.
const WINDOW: usize = 0;
/// Blocks that left the window, or the protected part.
const PROBATION: usize = 1;
/// Blocks used again after they left the window.
const PROTECTED: usize = 2;

/// Counts per block of capacity after which all counts are halved.
const COUNTS_PER_EPOCH: u64 = 10;

/// See the module.
#[derive(Debug)]
pub struct WTinyLfu {
    most_window: u32,
    most_main: u32,
    most_protected: u32,
    lists: Lists,
    places: Fields,
    hashes: Vec<u32>,
    sketch: Sketch,
}

/// Returns the sizes of the window, of the protected part, and of everything but the window.
pub(super) fn sizes(capacity: u32) -> (u32, u32, u32) {
    let window = (capacity / 100).max(1);
    let main = capacity - window;
    (window, (u64::from(main) * 4 / 5) as u32, main)
}

/// Makes the sketch for a cache of `capacity` blocks.
pub(super) fn sketch(capacity: u32) -> Sketch {
    Sketch::new(capacity, u64::from(capacity) * COUNTS_PER_EPOCH)
}

impl WTinyLfu {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        let (most_window, most_protected, most_main) = sizes(capacity);
        WTinyLfu {
            most_window,
            most_main,
            most_protected,
            lists: Lists::new(nodes, 3),
            places: Fields::new(nodes, 2),
            hashes: vec![0; nodes as usize],
            sketch: sketch(capacity),
        }
    }

    fn list(&self, node: u32) -> usize {
        usize::from(self.places.get(node))
    }

    fn push(&mut self, list: usize, node: u32) {
        self.places.set(node, list as u8);
        self.lists.push(list, node);
    }

    fn estimate(&self, node: u32) -> u8 {
        self.sketch.estimate(self.hashes[node as usize])
    }

    /// Moves the oldest block out of the window. Returns the block evicted for that, if any.
    fn leave_window(&mut self) -> Option<u32> {
        let candidate = self.lists.pop(WINDOW)?;
        if self.lists.len(PROBATION) + self.lists.len(PROTECTED) < self.most_main {
            self.push(PROBATION, candidate);
            return None;
        }
        let from = if self.lists.len(PROBATION) > 0 { PROBATION } else { PROTECTED };
        match self.lists.oldest(from) {
            Some(victim) if self.estimate(candidate) > self.estimate(victim) => {
                self.lists.remove(from, victim);
                self.push(PROBATION, candidate);
                Some(victim)
            }
            _ => Some(candidate),
        }
    }
}

impl BlockPolicy for WTinyLfu {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::WTinyLfu
    }

    fn resident(&self) -> u32 {
        self.lists.len(WINDOW) + self.lists.len(PROBATION) + self.lists.len(PROTECTED)
    }

    fn hit(&mut self, Node(node): Node) {
        if !self.lists.holds(node) {
            return;
        }
        let list = self.list(node);
        if list == WINDOW {
            self.lists.renew(WINDOW, node);
            return;
        }
        self.sketch.add(self.hashes[node as usize]);
        self.lists.remove(list, node);
        self.push(PROTECTED, node);
        if self.lists.len(PROTECTED) > self.most_protected
            && let Some(cooled) = self.lists.pop(PROTECTED)
        {
            self.push(PROBATION, cooled);
        }
    }

    fn insert(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        let hash = key.hash();
        self.sketch.add(hash);
        self.hashes[node as usize] = hash;
        self.push(WINDOW, node);
        if self.lists.len(WINDOW) <= self.most_window {
            return None;
        }
        self.leave_window().map(Node)
    }

    /// Evicts from the main part, or from the window if that is empty. The block that the next
    /// insertion pushes out of the window then finds room, and is not compared with any other.
    fn evict(&mut self) -> Option<Node> {
        let node = [PROBATION, PROTECTED, WINDOW].into_iter().find_map(|list| self.lists.pop(list));
        node.map(Node)
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(self.list(node), node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.places.replace(from, to);
        self.hashes[to as usize] = self.hashes[from as usize];
    }

    fn state_bytes(&self) -> StateBytes {
        let hashes = self.hashes.capacity() * size_of::<u32>();
        StateBytes {
            resident: self.lists.bytes() + self.places.bytes() + hashes,
            ghosts: self.sketch.bytes(),
        }
    }
}
