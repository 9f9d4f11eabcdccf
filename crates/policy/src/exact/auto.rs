//! The policy `auto` for caches without a log: S3-FIFO with the rules of [`crate::auto`], chosen by
//! shadow caches of sampled blocks.
//!
//! A hit names no key, so a bit of the mark tells whether a block is sampled, and its hash stands
//! for its key in the shadows.
//!
//! 12.5 bytes per block, and 6.2 for ghosts at four million blocks; the shadows take at most 4 MB of that.

use forebay_core::ReplacementKind;

use crate::auto::{self, REACHES, Rule};
use crate::curve::{Access, Live};

use super::fields::Fields;
use super::ghost::Ghosts;
use super::list::Lists;
use super::{BlockPolicy, Key, Node, StateBytes};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The only queue of ghosts: blocks evicted from the small queue.
const OUT: usize = 0;

/// Hits are counted up to this number.
const MOST_HITS: u8 = 3;
/// The mark's bits: a count of hits, whether the block is sampled, whether it is in the main queue.
const HITS: u8 = 3;
const SAMPLED: u8 = 4;
const IN_MAIN: u8 = 8;

/// See the module.
#[derive(Debug)]
pub struct Auto {
    capacity: u32,
    lists: Lists,
    marks: Fields,
    hashes: Vec<u32>,
    ghosts: Ghosts,
    /// Blocks evicted from the small queue.
    given_up: u64,
    shadows: auto::Auto,
}

impl Auto {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Auto {
            capacity,
            lists: Lists::new(nodes, 2),
            marks: Fields::new(nodes, 4),
            hashes: vec![0; nodes as usize],
            ghosts: Ghosts::new(capacity.max(1)),
            given_up: 0,
            shadows: Auto::shadows(capacity),
        }
    }

    /// Makes the shadow caches of a cache with this capacity.
    pub(super) fn shadows(capacity: u32) -> auto::Auto {
        auto::Auto::new(capacity.into(), 100, Live::first_sample(0))
    }

    fn rule(&self) -> &'static Rule {
        self.shadows.rule()
    }

    fn list(&self, node: u32) -> usize {
        if self.marks.get(node) & IN_MAIN == 0 { SMALL } else { MAIN }
    }

    fn push_main(&mut self, node: u32, hits: u8) {
        let sampled = self.marks.get(node) & SAMPLED;
        self.marks.set(node, hits | sampled | IN_MAIN);
        self.lists.push(MAIN, node);
    }

    fn observe(&mut self, node: u32) {
        if self.marks.get(node) & SAMPLED != 0 {
            let hash = self.hashes[node as usize];
            self.shadows.access(Access::Read, Key(hash.into()));
        }
    }

    fn remember(&mut self, hash: u32) {
        self.given_up += 1;
        if !self.rule().remembers(self.given_up) {
            return;
        }
        let reach = u64::from(self.capacity) * u64::from(self.rule().reach) / u64::from(REACHES);
        self.ghosts.insert(OUT, hash, 0);
        while self.ghosts.len(OUT) > (reach as u32).max(1) {
            self.ghosts.pop(OUT);
        }
    }

    /// Evicts from the small queue. Returns `None` if all its blocks went to the main queue.
    fn evict_small(&mut self) -> Option<u32> {
        loop {
            let node = self.lists.pop(SMALL)?;
            if self.marks.get(node) & HITS < self.rule().promoting_uses {
                self.remember(self.hashes[node as usize]);
                return Some(node);
            }
            self.push_main(node, 0);
        }
    }

    /// Amortised constant time: each round consumes a hit counted earlier.
    fn evict_main(&mut self) -> Option<u32> {
        loop {
            let node = self.lists.pop(MAIN)?;
            match self.marks.get(node) & HITS {
                0 => return Some(node),
                hits => self.push_main(node, hits - 1),
            }
        }
    }
}

impl BlockPolicy for Auto {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Auto
    }

    fn resident(&self) -> u32 {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }

    fn hit(&mut self, Node(node): Node) {
        let mark = self.marks.get(node);
        if mark & HITS < MOST_HITS {
            self.marks.set(node, mark + 1);
        }
        self.observe(node);
    }

    fn insert(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        let hash = key.hash();
        let came_back = self.ghosts.take(hash).is_some();
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.hashes[node as usize] = hash;
        self.marks.set(node, if self.shadows.sample().has(key) { SAMPLED } else { 0 });
        if came_back {
            self.push_main(node, 0);
        } else {
            self.lists.push(SMALL, node);
        }
        self.observe(node);
        leaves
    }

    /// The small queue keeps its share even if the cache is not full.
    fn evict(&mut self) -> Option<Node> {
        let most_small = (u64::from(self.capacity) / self.rule().small).max(1);
        while self.resident() > 0 {
            let small_is_short = u64::from(self.lists.len(SMALL)) < most_small;
            let found = if small_is_short && self.lists.len(MAIN) > 0 {
                self.evict_main()
            } else {
                self.evict_small()
            };
            if found.is_some() {
                return found.map(Node);
            }
        }
        None
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.lists.remove(self.list(node), node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.marks.replace(from, to);
        self.hashes[to as usize] = self.hashes[from as usize];
    }

    fn state_bytes(&self) -> StateBytes {
        let hashes = self.hashes.capacity() * size_of::<u32>();
        StateBytes {
            resident: self.lists.bytes() + self.marks.bytes() + hashes,
            ghosts: self.ghosts.bytes() + self.shadows.most_bytes() as usize,
        }
    }
}
