//! The curve of a volume in use, where every step must be cheap.
//!
//! For each request the caller counts blocks and asks [`Sample::touches`], which costs one hash per
//! group of blocks. Only the few requests that touch the sample come here, so the reuse times of
//! all other blocks are unknown, unlike in [`super::Estimator`]. Instead the number of all accesses
//! is known: the misses are those of the sample, times the number of blocks that a sampled block
//! stands for, and all other accesses are hits. A block that is used all the time is missed once,
//! sampled or not, so it distorts the curve little either way.
//!
//! Accesses are buffered and processed some hundred at a time. One at a time each would take ten
//! times as long, because the data structures have left the CPU caches in between.
//!
//! Two limits bound the effort: the sample is halved when it has more than [`Live::MOST`] blocks,
//! and when more than [`Live::MOST_PER_SECOND`] accesses to it arrive within a second.

use std::ops::Range;
use std::time::Duration;

use forebay_core::Nanos;

use crate::exact::Key;

use super::histogram::Histogram;
use super::sample::Sample;
use super::sampled::Sampled;
use super::{Access, Share, Which};

/// See the module.
#[derive(Clone, Debug)]
pub struct Live {
    sampled: Sampled,
    /// Accesses to the sample that are not processed yet.
    aside: Vec<(Access, Key)>,
    /// Start of the current second, and the accesses since.
    second: (Nanos, usize),
}

impl Live {
    /// Initial group size, in blocks.
    const GROUP: u32 = 64;

    /// Accesses buffered before they are processed.
    const ASIDE: usize = 256;

    /// Maximum number of blocks in the sample. With their bookkeeping they take 1.2 MB.
    pub const MOST: usize = 8 << 10;

    /// Maximum number of accesses to the sample per second, except in the second in which the limit
    /// is first exceeded.
    pub const MOST_PER_SECOND: usize = 4 << 10;

    /// Returns the initial sample of a [`Live`] with this seed. Later samples are subsets of it.
    pub const fn first_sample(seed: u64) -> Sample {
        Sample::new(Self::GROUP, seed)
    }

    /// Creates an empty estimator; `seed` determines the sampled blocks.
    pub fn new(seed: u64) -> Self {
        Live {
            sampled: Sampled::new(Self::GROUP, Self::MOST, seed),
            aside: Vec::new(),
            second: (Nanos(0), 0),
        }
    }

    /// Returns the current sample.
    pub fn sample(&self) -> Sample {
        self.sampled.sample()
    }

    /// Buffers the sampled blocks of a request that reads or writes `keys`. Returns whether it is
    /// time to call [`Live::settle`].
    #[must_use]
    pub fn access(&mut self, access: Access, keys: Range<Key>) -> bool {
        self.aside.extend(self.sampled.sample().of(keys).map(|key| (access, key)));
        self.aside.len() >= Self::ASIDE
    }

    /// Processes the buffered accesses, and halves the sample if they come too fast.
    pub fn settle(&mut self, now: Nanos) {
        self.second.1 += self.aside.len();
        self.go_through();
        let seconds = now.since(self.second.0).max(Duration::from_secs(1)).as_secs_f64();
        if self.second.1 as f64 > Self::MOST_PER_SECOND as f64 * seconds {
            self.sampled.halve();
        } else if seconds <= 1.0 {
            return;
        }
        self.second = (now, 0);
    }

    fn go_through(&mut self) {
        for (access, key) in self.aside.drain(..) {
            // All in one age class: reuse times are known only for sampled blocks.
            self.sampled.access(access, 0, key);
        }
    }

    /// Removes discarded blocks.
    pub fn discard(&mut self, keys: Range<Key>) {
        self.go_through();
        self.sampled.discard(keys);
    }

    /// Finishes the curve; `reads` and `writes` count all blocks accessed, sampled or not.
    pub fn into_curve(mut self, reads: u64, writes: u64) -> LiveCurve {
        self.go_through();
        LiveCurve { sampled: self.sampled, reads, writes }
    }
}

/// The curve of a [`Live`].
#[derive(Clone, Debug)]
pub struct LiveCurve {
    sampled: Sampled,
    reads: u64,
    writes: u64,
}

impl LiveCurve {
    /// Returns the sample.
    pub fn sample(&self) -> Sample {
        self.sampled.sample()
    }

    /// Returns all accesses, sampled or not.
    pub fn accesses(&self, which: Which) -> u64 {
        match which {
            Which::All => self.reads + self.writes,
            Which::Reads => self.reads,
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
        self.sampled.bytes()
    }

    /// Returns the share of accesses that a cache of `blocks` blocks would have hit.
    pub fn hits(&self, which: Which, blocks: u64) -> Share {
        let all = self.accesses(which);
        if all == 0 || blocks == 0 {
            return Share { share: 0.0, error: 0.0 };
        }
        self.sampled.estimate(|part, unit| {
            let missed = |of: &[Histogram]| -> f64 {
                of.iter().map(|ages| ages.accesses() - ages.hits(blocks, unit)).sum()
            };
            let writes = if which == Which::All { missed(&part.writes) } else { 0.0 };
            let missed = (missed(&part.reads) + writes) * unit as f64;
            (1.0 - missed / all as f64).clamp(0.0, 1.0)
        })
    }
}
