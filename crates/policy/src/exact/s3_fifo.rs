//! S3-FIFO: a small queue through which most one-time blocks leave again, a main queue in which
//! used blocks get further rounds, and ghosts of blocks evicted from the small queue, which enter
//! the main queue if they are missed again.
//!
//! Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.
//! The small queue is a tenth of the cache, ghosts cover nine tenths of it, a block needs two hits
//! in the small queue to get into the main queue, and hits are counted up to three.
//!
//! 12.5 bytes per block, and 4.8 for ghosts.
//!
//! [`S3Fifo::in_log`] uses the rule and the shares of the ranks in the log instead
//! ([`crate::replacement`]).

use super::fields::Fields;
use super::ghost::Ghosts;
use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};
use crate::replacement::{S3FifoParameters, Shares};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The only queue of ghosts: blocks evicted from the small queue.
const OUT: usize = 0;

/// Hits are counted up to this number.
const MOST_HITS: u8 = 3;
/// The mark's bit for a block in the main queue; the other bits count hits.
const IN_MAIN: u8 = 8;

/// See the module.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: u32,
    most_small: u32,
    most_ghosts: u32,
    rule: S3FifoParameters,
    lists: Lists,
    marks: Fields,
    hashes: Vec<u32>,
    ghosts: Ghosts,
}

impl S3Fifo {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        let most_ghosts = ((u64::from(capacity) * 9 / 10) as u32).max(1);
        S3Fifo::with(S3FifoParameters::PAPER, capacity, most_ghosts, nodes)
    }

    /// Makes the policy with the shares of the ranks, for the kept blocks of a log. `nodes`: more
    /// than those.
    pub(super) fn in_log(shares: Shares, nodes: u32) -> Self {
        let number = |blocks: u64| blocks.min(u64::from(nodes)) as u32;
        S3Fifo::with(S3FifoParameters::S3_FIFO, number(shares.kept), number(shares.room), nodes)
    }

    fn with(rule: S3FifoParameters, capacity: u32, most_ghosts: u32, nodes: u32) -> Self {
        S3Fifo {
            capacity,
            most_small: (capacity / rule.small as u32).max(1),
            most_ghosts,
            rule,
            lists: Lists::new(nodes, 2),
            marks: Fields::new(nodes, 4),
            hashes: vec![0; nodes as usize],
            ghosts: Ghosts::new(most_ghosts),
        }
    }

    fn hits(&self, node: u32) -> u8 {
        self.marks.get(node) & !IN_MAIN
    }

    fn list(&self, node: u32) -> usize {
        if self.marks.get(node) & IN_MAIN == 0 { SMALL } else { MAIN }
    }

    fn push_main(&mut self, node: u32, hits: u8) {
        self.marks.set(node, hits | IN_MAIN);
        self.lists.push(MAIN, node);
    }

    /// Evicts from the small queue. Returns `None` if all its blocks went to the main queue.
    fn evict_small(&mut self) -> Option<u32> {
        loop {
            let node = self.lists.pop(SMALL)?;
            if self.hits(node) < self.rule.promoting_uses {
                self.ghosts.insert(OUT, self.hashes[node as usize], 0);
                if self.ghosts.len(OUT) > self.most_ghosts {
                    self.ghosts.pop(OUT);
                }
                return Some(node);
            }
            self.push_main(node, 0);
        }
    }

    /// Amortised constant time: each round consumes a hit counted earlier.
    fn evict_main(&mut self) -> Option<u32> {
        loop {
            let node = self.lists.pop(MAIN)?;
            match self.hits(node) {
                0 => return Some(node),
                hits => self.push_main(node, hits - 1),
            }
        }
    }
}

impl BlockPolicy for S3Fifo {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::S3Fifo
    }

    fn resident(&self) -> u32 {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }

    fn hit(&mut self, Node(node): Node) {
        let mark = self.marks.get(node);
        if mark & !IN_MAIN < MOST_HITS {
            self.marks.set(node, mark + 1);
        }
    }

    fn insert(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        let hash = key.hash();
        let came_back = self.ghosts.take(hash).is_some();
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.hashes[node as usize] = hash;
        if came_back {
            self.push_main(node, 0);
        } else {
            self.marks.set(node, 0);
            self.lists.push(SMALL, node);
        }
        leaves
    }

    fn overwritten(&mut self, Node(node): Node) {
        self.hit(Node(node));
        if self.rule.renews && self.list(node) == SMALL {
            self.lists.renew(SMALL, node);
        }
    }

    fn returned(&mut self, Node(node): Node, key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.hashes[node as usize] = key.hash();
        self.push_main(node, 0);
        leaves
    }

    /// The small queue keeps its share even if the cache is not full.
    fn evict(&mut self) -> Option<Node> {
        while self.resident() > 0 {
            let small_is_short = self.lists.len(SMALL) < self.most_small;
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
            ghosts: self.ghosts.bytes(),
        }
    }
}
