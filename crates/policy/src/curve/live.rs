//! The curve of a volume that is in use: nothing may take long.
//!
//! Whoever serves requests asks [`Sample::touches`] for each of them, which is a hash for each group
//! of blocks, and counts blocks. Only the few requests that touch the sample come here. So it is not
//! known how soon all other blocks are used again, as it is to [`super::Estimator`]. What is known
//! instead is the number of all accesses: misses are those of the sample, times what a sampled
//! block stands for, and all other accesses are hits. A block that is used all the time is missed
//! once whether the sample has it or not, and so it does little harm if it has not, or has.
//!
//! What is seen is put aside, and gone through some hundred at a time: in between, what is needed for
//! it is in no CPU cache, and one by one each would take ten times as long.
//!
//! Two things bound the effort: the sample is halved when it has more than [`Live::MOST`] blocks, and
//! when more than [`Live::MOST_PER_SECOND`] accesses to it come within a second.

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
    /// Accesses to the sample, not gone through yet.
    aside: Vec<(Access, Key)>,
    /// When the present second began, and how many accesses came since.
    second: (Nanos, usize),
}

impl Live {
    /// Blocks of a group at first.
    const GROUP: u32 = 64;

    /// Accesses that are put aside before they are gone through.
    const ASIDE: usize = 256;

    /// Blocks in the sample, at most. With all that is known of them they take 1.2 MB.
    pub const MOST: usize = 8 << 10;

    /// Accesses to the sample in a second, at most, but for the second in which they become more.
    pub const MOST_PER_SECOND: usize = 4 << 10;

    /// What one with this seed samples at first. Later it is some of that.
    pub const fn first_sample(seed: u64) -> Sample {
        Sample::new(Self::GROUP, seed)
    }

    /// One that has seen nothing; `seed` says which blocks it will sample.
    pub fn new(seed: u64) -> Self {
        Live {
            sampled: Sampled::new(Self::GROUP, Self::MOST, seed),
            aside: Vec::new(),
            second: (Nanos(0), 0),
        }
    }

    /// Which blocks are sampled now.
    pub fn sample(&self) -> Sample {
        self.sampled.sample()
    }

    /// A request reads or writes these blocks, those of the sample among them. Says whether it is
    /// time to [`Live::settle`].
    #[must_use]
    pub fn access(&mut self, access: Access, keys: Range<Key>) -> bool {
        self.aside.extend(self.sampled.sample().of(keys).map(|key| (access, key)));
        self.aside.len() >= Self::ASIDE
    }

    /// Goes through what was put aside, and sees to it that it does not become too much.
    pub fn settle(&mut self, now: Nanos) {
        self.second.1 += self.aside.len();
        self.go_through();
        if now.since(self.second.0) >= Duration::from_secs(1) {
            self.second = (now, 0);
        } else if self.second.1 > Self::MOST_PER_SECOND {
            self.second = (now, 0);
            self.sampled.halve();
        }
    }

    fn go_through(&mut self) {
        for (access, key) in self.aside.drain(..) {
            // All in one class of age: how soon blocks are used again is not known of all.
            self.sampled.access(access, 0, key);
        }
    }

    /// Blocks are gone.
    pub fn discard(&mut self, keys: Range<Key>) {
        self.go_through();
        self.sampled.discard(keys);
    }

    /// The curve of so many blocks read and written, each as often as it was, sampled or not.
    pub fn into_curve(mut self, reads: u64, writes: u64) -> LiveCurve {
        self.go_through();
        LiveCurve { sampled: self.sampled, reads, writes }
    }
}

/// What a [`Live`] has found.
#[derive(Clone, Debug)]
pub struct LiveCurve {
    sampled: Sampled,
    reads: u64,
    writes: u64,
}

impl LiveCurve {
    /// Which blocks are sampled.
    pub fn sample(&self) -> Sample {
        self.sampled.sample()
    }

    /// Accesses so far, all of them, sampled or not.
    pub fn accesses(&self, which: Which) -> u64 {
        match which {
            Which::All => self.reads + self.writes,
            Which::Reads => self.reads,
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
        self.sampled.bytes()
    }

    /// Which share of the accesses a cache of so many blocks would have hit.
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
