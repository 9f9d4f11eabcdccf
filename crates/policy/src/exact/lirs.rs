//! LIRS: blocks whose last two uses were close together stay; the others share a hundredth of the
//! cache. The criterion is not the time of the last use but how many other blocks were used between
//! a block's last two uses.
//!
//! Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to
//! improve buffer cache performance", SIGMETRICS 2002, with its 1 % for resident HIR blocks. The
//! stack S is at most twice the capacity, as in libCacheSim; the paper has no limit.
//!
//! S is not stored as one stack. A block that is not LIR is in S as long as its last use is later
//! than that of the LIR block at the bottom, so S needs only a list of the LIR blocks in the order
//! of use and, for every block, the time of its last use. Ghosts are the non-resident HIR blocks of
//! S, so pruning S means forgetting the ghosts older than its bottom. Times are 32 bits of a count
//! of accesses; a block unused for 2^30 accesses counts as used that long ago.
//!
//! 16.25 bytes per block, and 5.4 for ghosts.

use super::fields::Fields;
use super::ghost::Ghosts;
use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// LIR blocks in the order of use: the oldest is the bottom of S.
const LIR: usize = 0;
/// The queue Q of resident HIR blocks.
const HIR: usize = 1;
/// The only queue of ghosts: non-resident HIR blocks of S.
const OUT: usize = 0;

/// Marks of a block: in [`LIR`] rather than [`HIR`]; demoted from LIR to HIR, and thus not in S.
const IS_LIR: u8 = 1;
const NOT_IN_S: u8 = 2;

/// The oldest age, in accesses, that a time can express.
const LONG_AGO: u32 = 1 << 30;

/// See the module.
#[derive(Debug)]
pub struct Lirs {
    capacity: u32,
    most_lir: u32,
    lists: Lists,
    marks: Fields,
    hashes: Vec<u32>,
    /// The time of the last use of each block: the low bits of [`Lirs::now`].
    used: Vec<u32>,
    now: u64,
    /// Time of the last use of the bottom of S; blocks used earlier are not in S.
    bottom: u64,
    /// The node whose time is checked next, before it becomes too old to express.
    refresh: u32,
    ghosts: Ghosts,
}

impl Lirs {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Lirs {
            capacity,
            most_lir: capacity - (capacity / 100).max(1),
            lists: Lists::new(nodes, 2),
            marks: Fields::new(nodes, 2),
            hashes: vec![0; nodes as usize],
            used: vec![0; nodes as usize],
            // The low bits wrap soon, so that every test covers it.
            now: u64::from(u32::MAX - 5000),
            bottom: 0,
            refresh: 0,
            ghosts: Ghosts::timed(capacity),
        }
    }

    fn is_lir(&self, node: u32) -> bool {
        self.marks.get(node) == IS_LIR
    }

    /// Returns the time of the last use.
    fn time(&self, node: u32) -> u64 {
        let age = (self.now as u32).wrapping_sub(self.used[node as usize]);
        self.now - u64::from(age)
    }

    /// Whether a block of Q is in S.
    fn in_s(&self, node: u32) -> bool {
        self.marks.get(node) != NOT_IN_S && self.time(node) > self.bottom
    }

    /// Starts an access, and checks the time of one node.
    fn tick(&mut self) {
        self.now += 1;
        let node = self.refresh;
        if (self.now as u32).wrapping_sub(self.used[node as usize]) > LONG_AGO {
            self.used[node as usize] = (self.now as u32).wrapping_sub(LONG_AGO);
        }
        self.refresh = if node as usize + 1 < self.used.len() { node + 1 } else { 0 };
    }

    fn push(&mut self, list: usize, node: u32) {
        self.marks.set(node, if list == LIR { IS_LIR } else { 0 });
        self.used[node as usize] = self.now as u32;
        self.lists.push(list, node);
    }

    /// Demotes the bottom of S to HIR if there are too many LIR blocks.
    fn demote(&mut self) {
        if self.lists.len(LIR) > self.most_lir
            && let Some(node) = self.lists.pop(LIR)
        {
            self.bottom = self.time(node);
            self.marks.set(node, NOT_IN_S);
            self.lists.push(HIR, node);
        }
    }

    /// Prunes S, so that its bottom is a LIR block.
    fn prune(&mut self) {
        if let Some(node) = self.lists.oldest(LIR) {
            self.bottom = self.time(node);
        }
        self.ghosts.forget_before(self.bottom);
    }
}

impl BlockPolicy for Lirs {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Lirs
    }

    fn resident(&self) -> u32 {
        self.lists.len(LIR) + self.lists.len(HIR)
    }

    fn hit(&mut self, Node(node): Node) {
        if !self.lists.holds(node) {
            return;
        }
        self.tick();
        if self.is_lir(node) {
            self.lists.remove(LIR, node);
            self.push(LIR, node);
        } else {
            let to = if self.in_s(node) { LIR } else { HIR };
            self.lists.remove(HIR, node);
            self.push(to, node);
            self.demote();
        }
        self.prune();
    }

    fn insert(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        self.tick();
        let hash = key.hash();
        let came_back = self.ghosts.take(hash).is_some();
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.hashes[node as usize] = hash;
        let room = self.lists.len(LIR) < self.most_lir;
        self.push(if came_back || room { LIR } else { HIR }, node);
        self.demote();
        self.prune();
        leaves
    }

    /// Evicts the oldest block of Q; a ghost remains if it was in S. Q can be empty only if the
    /// cache is not full. In this case the bottom of S is evicted, and then is no longer in S.
    fn evict(&mut self) -> Option<Node> {
        let Some(node) = self.lists.oldest(HIR) else {
            let bottom = self.lists.pop(LIR)?;
            self.prune();
            return Some(Node(bottom));
        };
        if self.in_s(node) {
            self.ghosts.insert(OUT, self.hashes[node as usize], self.time(node));
            let others = self.lists.len(LIR) + self.lists.len(HIR) - 1;
            if self.ghosts.len(OUT) + others > 2 * self.capacity {
                self.ghosts.pop(OUT);
            }
        }
        self.lists.remove(HIR, node);
        Some(Node(node))
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(if self.is_lir(node) { LIR } else { HIR }, node);
            self.prune();
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.marks.replace(from, to);
        self.hashes[to as usize] = self.hashes[from as usize];
        self.used[to as usize] = self.used[from as usize];
    }

    fn state_bytes(&self) -> StateBytes {
        let arrays = (self.hashes.capacity() + self.used.capacity()) * size_of::<u32>();
        StateBytes {
            resident: self.lists.bytes() + self.marks.bytes() + arrays,
            ghosts: self.ghosts.bytes(),
        }
    }
}
