//! smq: the stochastic multi-queue of dm-cache, for blocks of 4 KiB. It admits few blocks: only
//! those of hot regions.
//!
//! The Linux kernel's documentation, `admin-guide/device-mapper/cache-policies.rst`, describes its
//! parts, which are implemented here: a multi-queue without hit counts, in which a hit block
//! changes places with the least recently used one of the level above (`levels`); levels of equal
//! length; a hotspot queue of larger regions, a quarter as many as the cache has blocks, which
//! decides on admission, and whose entries move faster when it performs badly (`hotspot`).
//!
//! Choices that the documentation leaves open, or that small blocks require:
//! - A period, in which each block rises at most once, is counted in accesses, not in seconds: one
//!   per block of capacity, or one per region.
//! - While the cache is not full, every block enters. Then a block enters if its region is in the
//!   top levels of the hotspot queue: up to half of the levels if the cache hits half of the
//!   accesses, fewer the better or the worse it does, and half or a quarter of that if the hotspot
//!   queue is fair or poor.
//! - A new block enters at the top level. Clean and dirty blocks share one queue; writeback is
//!   decided elsewhere.
//!
//! In exchange for a higher miss ratio it writes little to the cache device: on the traces of
//! `docs/notebook/policies.md` less than a fifth of the other policies' writes. 10 bytes per block,
//! and 5.5 for regions.

use super::hotspot::{Hotspot, Quality};
use super::levels::{LEVELS, Levels};
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// The level at which blocks enter.
const TOP: usize = LEVELS - 1;

/// See the module.
#[derive(Debug)]
pub struct Smq {
    capacity: u32,
    blocks: Levels,
    hotspot: Hotspot,
    /// Hits in this period.
    hits: u64,
    misses: u64,
    /// Blocks of regions at this level and above may enter.
    entrance: usize,
}

impl Smq {
    pub(super) fn new(capacity: u32, nodes: u32) -> Self {
        Smq {
            capacity,
            blocks: Levels::new(nodes),
            hotspot: Hotspot::new(capacity),
            hits: 0,
            misses: 0,
            entrance: TOP,
        }
    }

    /// Counts an access.
    fn count(&mut self, hit: bool) {
        self.blocks.balance();
        self.hits += u64::from(hit);
        self.misses += u64::from(!hit);
        if self.hits + self.misses >= u64::from(self.capacity) {
            self.blocks.new_period();
            self.entrance = entrance(self.hits, self.misses, self.hotspot.quality());
            (self.hits, self.misses) = (0, 0);
        }
    }
}

/// Returns the lowest level of the hotspot queue whose blocks may enter, after a period with these
/// hits and misses.
fn entrance(hits: u64, misses: u64, quality: Quality) -> usize {
    let rarer = hits.min(misses).saturating_mul(2);
    let levels = (rarer * (LEVELS as u64 / 2) / (hits + misses).max(1)) as usize;
    let levels = match quality {
        Quality::Good => levels,
        Quality::Fair => levels / 2,
        Quality::Poor => levels / 4,
    };
    LEVELS - levels.max(1)
}

impl BlockPolicy for Smq {
    fn kind(&self) -> ReplacementKind {
        ReplacementKind::Smq
    }

    fn resident(&self) -> u32 {
        self.blocks.len()
    }

    fn hit(&mut self, Node(node): Node) {
        if self.blocks.holds(node) {
            self.count(true);
            self.blocks.hit(node, 1);
        }
    }

    fn admits(&mut self, key: Key) -> bool {
        self.count(false);
        let level = self.hotspot.miss(key);
        level >= self.entrance || self.blocks.len() < self.capacity
    }

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.blocks.push(TOP, node);
        leaves
    }

    fn evict(&mut self) -> Option<Node> {
        self.blocks.pop().map(Node)
    }

    fn remove(&mut self, Node(node): Node) {
        if self.blocks.holds(node) {
            self.blocks.remove(node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.blocks.replace(from, to);
    }

    fn state_bytes(&self) -> StateBytes {
        StateBytes { resident: self.blocks.bytes(), ghosts: self.hotspot.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::harness::{AccessOutcome, Cache};
    use super::*;

    #[test]
    fn a_cache_that_does_middling_takes_most() {
        assert_eq!(entrance(0, 100, Quality::Good), TOP);
        assert_eq!(entrance(100, 0, Quality::Good), TOP);
        assert_eq!(entrance(50, 50, Quality::Good), LEVELS / 2);
        assert_eq!(entrance(25, 75, Quality::Good), LEVELS * 3 / 4);
        assert_eq!(entrance(50, 50, Quality::Fair), LEVELS * 3 / 4);
        assert_eq!(entrance(50, 50, Quality::Poor), LEVELS * 7 / 8);
        assert_eq!(entrance(0, 0, Quality::Poor), TOP);
    }

    /// In a full cache of hit blocks, a scan is kept out and a region that is requested repeatedly
    /// is admitted.
    #[test]
    fn scans_stay_outside_and_hot_regions_come_in() {
        let mut cache = Cache::new(ReplacementKind::Smq, 1000, 1);
        for _ in 0..10 {
            for key in 0..1000 {
                cache.access(key);
            }
        }
        let mut entered = 0;
        for key in 100_000..200_000 {
            entered += u32::from(cache.access(key) != AccessOutcome::Refused);
            cache.access(key % 1000);
        }
        assert!(entered < 5000, "{entered} of 100,000 entered");
        let mut entered = 0;
        for round in 0..20_000 {
            let key = 1_000_000 + round % 160;
            entered += u32::from(matches!(cache.access(key), AccessOutcome::Miss(_)));
            cache.access(round % 1000);
        }
        assert!(entered >= 160, "{entered} blocks of ten hot regions entered");
    }
}
