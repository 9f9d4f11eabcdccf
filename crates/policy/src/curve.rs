//! Miss-ratio curves: the hit ratio of caches of all sizes, estimated while requests go by.
//!
//! Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS", FAST 2015:
//! the reuse distances within a sample of the blocks, scaled by the number of blocks that each
//! sampled one stands for, approximate the distances among all blocks. As in the paper, a sample
//! that grows too large is halved. Two things differ, each of which makes the error several times
//! smaller:
//! - Blocks are not sampled independently; one of each group of neighbours is: see [`Sample`].
//! - The paper corrects an excess or lack of sampled accesses at the smallest distance, because a
//!   sample either contains the few hot blocks or it does not. Here a table of all accesses shows
//!   how many were reuses after how short a time: see `recent`.
//!
//! The curve is that of an LRU cache that is empty at first and admits every miss; every block of a
//! request is one access, reads and writes alike. With a sample of all blocks it is exact.
//!
//! [`Estimator`] examines every access; [`Live`], for the data path, only those of the sample.
//!
//! - `sample`: chooses the sampled blocks
//! - `sampled`: state of the sampled blocks; `stack`: distances; `histogram`: counts by distance
//! - `recent`: rough reuse times of all accesses
//! - `live`: the curve of a running volume

mod histogram;
mod live;
mod recent;
mod sample;
mod sampled;
mod stack;
#[cfg(test)]
mod tests;

use std::ops::Range;

use forebay_core::{Op, OriginBlock, VolumeId};

use crate::exact::Key;

use histogram::Histogram;
use recent::{AGES, Recent};
use sampled::Sampled;
pub(crate) use sampled::WIDTH;

pub use live::{Live, LiveCurve};
pub use sample::Sample;

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Blocks are read.
    Read,
    /// Blocks are written.
    Write,
}

/// The accesses whose share is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Reads and writes.
    All,
    /// Reads. Writes matter only in that they bring blocks into the cache.
    Reads,
}

/// A share with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// 0 to 1.
    pub share: f64,
    /// The exact share is mostly within this distance: half the 95 % confidence interval of eight
    /// parts of the sample, each with a curve of its own (Student's t, over the root of their
    /// number). Errors common to all parts are not included. 0 if all blocks are sampled.
    pub error: f64,
}

/// See the module.
#[derive(Debug)]
pub struct Estimator {
    sampled: Sampled,
    recent: Recent,
    /// All accesses by age of the block.
    reads: [u64; AGES],
    writes: [u64; AGES],
}

impl Estimator {
    /// Creates an estimator that samples one of each `group` blocks, chosen by `seed`; the sample
    /// is halved whenever it has more than `most` blocks. Groups of 1 and no limit (`usize::MAX`)
    /// are exact.
    pub fn new(group: u32, most: usize, seed: u64) -> Self {
        Estimator {
            sampled: Sampled::new(group, most, seed),
            recent: Recent::new(),
            reads: [0; AGES],
            writes: [0; AGES],
        }
    }

    /// Returns the current sample.
    pub fn sample(&self) -> Sample {
        self.sampled.sample()
    }

    /// Counts a request for `blocks` of a volume. Only reads, writes and discards count.
    pub fn request(&mut self, op: Op, volume: VolumeId, blocks: Range<u64>) {
        let key = |block| Key::new(volume, OriginBlock(block));
        let keys = key(blocks.start)..key(blocks.end);
        match op {
            Op::Read => self.access(Access::Read, keys),
            Op::Write => self.access(Access::Write, keys),
            Op::Discard => self.discard(keys),
            _ => {}
        }
    }

    /// Counts reads or writes of blocks; the blocks of a request in ascending order.
    pub fn access(&mut self, access: Access, keys: Range<Key>) {
        let mut sampled = self.sample().of(keys.clone());
        let mut next = sampled.next();
        for key in (keys.start.0..keys.end.0).map(Key) {
            let age = self.recent.touch(key);
            let counts = match access {
                Access::Read => &mut self.reads,
                Access::Write => &mut self.writes,
            };
            if let Some(count) = counts.get_mut(age) {
                *count += 1;
            }
            if next == Some(key) {
                self.sampled.access(access, age, key);
                next = sampled.next();
            }
        }
    }

    /// Removes discarded blocks.
    pub fn discard(&mut self, keys: Range<Key>) {
        self.sampled.discard(keys);
    }

    /// Returns all accesses, sampled or not.
    pub fn accesses(&self, which: Which) -> u64 {
        match which {
            Which::All => self.reads.iter().chain(&self.writes).sum(),
            Which::Reads => self.reads.iter().sum(),
        }
    }

    /// Returns an estimate of the number of different blocks used.
    pub fn footprint(&self) -> u64 {
        self.sampled.footprint()
    }

    /// Returns the number of blocks in the sample.
    pub fn sampled_blocks(&self) -> usize {
        self.sampled.blocks()
    }

    /// Returns an estimate of the bytes allocated.
    pub fn bytes(&self) -> usize {
        self.sampled.bytes() + self.recent.bytes()
    }

    /// Returns the share of accesses that a cache of `blocks` blocks would have hit.
    pub fn hits(&self, which: Which, blocks: u64) -> Share {
        self.sampled.estimate(|part, unit| {
            let mut hits = self.hits_of(&part.reads, &self.reads, blocks, unit);
            if which == Which::All {
                hits += self.hits_of(&part.writes, &self.writes, blocks, unit);
            }
            (hits / self.accesses(which).max(1) as f64).clamp(0.0, 1.0)
        })
    }

    /// Returns how many of `all` accesses would have been hits. For each age, the sample gives the
    /// number of first uses, which never hit; the remaining accesses hit as often as the sampled
    /// ones.
    fn hits_of(&self, sampled: &[Histogram], all: &[u64], blocks: u64, unit: u64) -> f64 {
        let pairs = sampled.iter().zip(all).enumerate();
        let hits = pairs.map(|(age, (sampled, all))| {
            let again = sampled.accesses() - sampled.first();
            let all = (*all as f64 - sampled.first() * unit as f64).max(0.0);
            let share = if again > 0.0 {
                sampled.hits(blocks, unit) / again
            } else if age + 1 < AGES && blocks > 0 {
                // The table shows reuse after a short time, but the sample has no such accesses.
                1.0
            } else {
                0.0
            };
            share * all
        });
        hits.sum()
    }
}
