//! The hotspot queue of `smq`: the regions of volumes that are missed most often.
//!
//! A region is 16 blocks. The queue holds a quarter as many regions as the cache has blocks, in
//! levels of equal length: a region that is missed rises, and the oldest region of the level above
//! sinks in exchange. The number of levels it rises depends on how well the queue performs. 5.5
//! bytes per block of the cache.

use super::Key;
use super::levels::{LEVELS, Levels};

/// Base-two logarithm of the blocks in a region.
const REGION_SHIFT: u32 = 4;

/// End of a chain.
const NONE: u32 = u32::MAX;

/// Quality of the queue's predictions of future misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quality {
    Poor,
    Fair,
    Good,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hotspot {
    levels: Levels,
    /// Hashes of the keys of the regions.
    hashes: Vec<u32>,
    /// For each bucket its first region; for each region the next one in its bucket.
    heads: Vec<u32>,
    nexts: Vec<u32>,
    used: u32,
    /// Misses in this period: those in regions at a high level, and all others.
    hits: u64,
    misses: u64,
    left: u64,
    quality: Quality,
}

impl Hotspot {
    pub(super) fn new(capacity: u32) -> Self {
        let regions = (capacity / 4).max(16);
        Hotspot {
            levels: Levels::new(regions),
            hashes: vec![0; regions as usize],
            heads: vec![NONE; regions as usize],
            nexts: vec![NONE; regions as usize],
            used: 0,
            hits: 0,
            misses: 0,
            left: u64::from(regions),
            quality: Quality::Poor,
        }
    }

    pub(super) fn quality(&self) -> Quality {
        self.quality
    }

    fn bucket(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.heads.len() as u64) >> 32) as usize
    }

    fn find(&self, hash: u32) -> Option<u32> {
        let mut at = self.heads[self.bucket(hash)];
        while at != NONE && self.hashes[at as usize] != hash {
            at = self.nexts[at as usize];
        }
        (at != NONE).then_some(at)
    }

    fn unchain(&mut self, region: u32) {
        let bucket = self.bucket(self.hashes[region as usize]);
        let next = self.nexts[region as usize];
        if self.heads[bucket] == region {
            self.heads[bucket] = next;
            return;
        }
        let mut at = self.heads[bucket];
        while at != NONE {
            if self.nexts[at as usize] == region {
                self.nexts[at as usize] = next;
                return;
            }
            at = self.nexts[at as usize];
        }
    }

    /// Notes a miss. Returns the level of the block's region.
    pub(super) fn miss(&mut self, key: Key) -> usize {
        self.levels.balance();
        self.left -= 1;
        if self.left == 0 {
            self.left = self.hashes.len() as u64;
            self.judge();
        }
        let hash = Key(key.0 >> REGION_SHIFT).hash();
        if let Some(region) = self.find(hash) {
            let level = self.levels.level(region);
            if level >= LEVELS * 3 / 4 {
                self.hits += 1;
            } else {
                self.misses += 1;
            }
            let rise = match self.quality {
                Quality::Poor => 4,
                Quality::Fair => 2,
                Quality::Good => 1,
            };
            return self.levels.hit(region, rise);
        }
        self.misses += 1;
        let region = if (self.used as usize) < self.hashes.len() {
            self.used += 1;
            self.used - 1
        } else {
            // All regions are in use, so there is a lowest one.
            let Some(lowest) = self.levels.pop() else { return 0 };
            self.unchain(lowest);
            lowest
        };
        let bucket = self.bucket(hash);
        self.hashes[region as usize] = hash;
        self.nexts[region as usize] = std::mem::replace(&mut self.heads[bucket], region);
        self.levels.push(0, region);
        0
    }

    /// Ends a period, and rates it.
    fn judge(&mut self) {
        self.levels.new_period();
        let all = self.hits + self.misses;
        self.quality = match self.hits {
            hits if hits * 16 < all => Quality::Poor,
            hits if hits * 8 < all => Quality::Fair,
            _ => Quality::Good,
        };
        (self.hits, self.misses) = (0, 0);
    }

    pub(super) fn bytes(&self) -> usize {
        let arrays = self.hashes.capacity() + self.heads.capacity() + self.nexts.capacity();
        self.levels.bytes() + arrays * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_by_any_block_until_it_is_crowded_out() {
        let mut hotspot = Hotspot::new(400);
        assert_eq!(hotspot.miss(Key(16)), 0);
        hotspot.levels.new_period();
        assert!(hotspot.miss(Key(31)) > 0, "the same region");
        hotspot.levels.new_period();
        assert_eq!(hotspot.miss(Key(32)), 0, "the next region");
        assert_eq!(hotspot.used, 2);
        // Exactly the regions in use are chained.
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            hotspot.miss(Key(random.u64(0..1 << 20)));
            let mut chained = 0;
            for head in &hotspot.heads {
                let mut at = *head;
                while at != NONE {
                    chained += 1;
                    at = hotspot.nexts[at as usize];
                }
            }
            assert_eq!(chained, hotspot.used);
        }
        assert_eq!((hotspot.used, hotspot.levels.len()), (100, 100));
    }

    #[test]
    fn few_hot_regions_make_it_good_and_many_cold_ones_poor() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut hotspot = Hotspot::new(4000);
        for step in 0..100_000u64 {
            let hot = random.bool();
            let region = if hot { random.u64(0..20) } else { 1000 + step };
            hotspot.miss(Key(region << REGION_SHIFT));
        }
        assert_eq!(hotspot.quality(), Quality::Good);
        for step in 0..10_000u64 {
            hotspot.miss(Key((1 << 40) + (step << REGION_SHIFT)));
        }
        assert_eq!(hotspot.quality(), Quality::Poor);
    }
}
