//! Miss-ratio curves: what caches of all sizes would have hit, estimated while requests go by.
//!
//! Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS", FAST 2015: the
//! distances among a sample of the blocks, times what a sampled block stands for, are about the
//! distances among all of them. As there, half of a sample that becomes too large is given up. Two
//! things differ, each of which makes the error several times smaller:
//! - Blocks are not drawn each by itself, but one of each group of neighbours: see [`Sample`].
//! - The paper's correction puts what the sampled accesses are too many or too few down to the
//!   smallest distance, because it is the few hot blocks that a sample has or has not. Here it is
//!   known how many of all accesses came how soon after the one before: see `recent`.
//!
//! The curve is that of a cache that is empty at first, in which every block of a request is one
//! access, reads and writes alike, everything that was missed enters, and what was not used for
//! longest leaves. With a sample of all blocks it is exact.
//!
//! [`Estimator`] looks at every access; [`Live`] only at those of the sample, for who has no time.
//!
//! - `sample`: which blocks stand for all
//! - `sampled`: what is known of those; `stack`: distances; `histogram`: how often which came
//! - `recent`: what is known of all accesses
//! - `live`: what is known of a running volume

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

pub use live::{Live, LiveCurve};
pub use sample::Sample;

/// What is done to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Blocks are read.
    Read,
    /// Blocks are written.
    Write,
}

/// Accesses of which a share is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Reads and writes.
    All,
    /// Reads; writes count only in that they bring blocks into the cache.
    Reads,
}

/// A share, and about how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// 0 to 1.
    pub share: f64,
    /// The share of the exact curve is within this, mostly: so much do eight parts of the sample
    /// differ, each with a curve of its own (Student's t for 95 %, over the root of their number).
    /// It knows nothing of errors that all parts have in common. 0 if all blocks are sampled.
    pub error: f64,
}

/// See the module.
#[derive(Debug)]
pub struct Estimator {
    sampled: Sampled,
    recent: Recent,
    /// All accesses by the age of the block.
    reads: [u64; AGES],
    writes: [u64; AGES],
}

impl Estimator {
    /// Of each `group` blocks one is sampled, which one says `seed`; half as many whenever the
    /// sample has more than `most` blocks. Groups of 1 and no limit (`usize::MAX`) are exact.
    pub fn new(group: u32, most: usize, seed: u64) -> Self {
        Estimator {
            sampled: Sampled::new(group, most, seed),
            recent: Recent::new(),
            reads: [0; AGES],
            writes: [0; AGES],
        }
    }

    /// Which blocks are sampled now.
    pub fn sample(&self) -> Sample {
        self.sampled.sample()
    }

    /// A request for blocks of a volume; one that neither reads nor writes nor discards counts for
    /// nothing.
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

    /// Blocks are read or written, those of one request in their order.
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

    /// Blocks are gone.
    pub fn discard(&mut self, keys: Range<Key>) {
        self.sampled.discard(keys);
    }

    /// Accesses so far, all of them, sampled or not.
    pub fn accesses(&self, which: Which) -> u64 {
        match which {
            Which::All => self.reads.iter().chain(&self.writes).sum(),
            Which::Reads => self.reads.iter().sum(),
        }
    }

    /// About how many different blocks were used.
    pub fn footprint(&self) -> u64 {
        self.sampled.footprint()
    }

    /// How many blocks are in the sample.
    pub fn sampled_blocks(&self) -> usize {
        self.sampled.blocks()
    }

    /// About what it takes in RAM.
    pub fn bytes(&self) -> usize {
        self.sampled.bytes() + self.recent.bytes()
    }

    /// Which share of the accesses a cache of so many blocks would have hit.
    pub fn hits(&self, which: Which, blocks: u64) -> Share {
        self.sampled.estimate(|part, unit| {
            let mut hits = self.hits_of(&part.reads, &self.reads, blocks, unit);
            if which == Which::All {
                hits += self.hits_of(&part.writes, &self.writes, blocks, unit);
            }
            (hits / self.accesses(which).max(1) as f64).clamp(0.0, 1.0)
        })
    }

    /// How many of all accesses would have been hits. Of each age, those to new blocks are as many
    /// as the sample says, and never hits; all others, of which the number follows, are hits as
    /// often as the sampled ones.
    fn hits_of(&self, sampled: &[Histogram], all: &[u64], blocks: u64, unit: u64) -> f64 {
        let pairs = sampled.iter().zip(all).enumerate();
        let hits = pairs.map(|(age, (sampled, all))| {
            let again = sampled.accesses() - sampled.first();
            let all = (*all as f64 - sampled.first() * unit as f64).max(0.0);
            let share = if again > 0.0 {
                sampled.hits(blocks, unit) / again
            } else if age + 1 < AGES && blocks > 0 {
                // Used shortly before, says the table; the sample has none of those.
                1.0
            } else {
                0.0
            };
            share * all
        });
        hits.sum()
    }
}
