//! Policy `auto`: chooses the rules of the rank policy ([`crate::replacement`]) by shadow caches.
//!
//! S3-FIFO with ranks has a few parameters: the share of the small queue, the uses that promote a
//! block out of it, and which ghosts bring a block back into the main queue. No values are the best
//! for all workloads, so there is a short table of them, [`RULES`]. For each row a shadow cache
//! simulates the cache on a sample of the blocks, one in 64 or fewer, and at that share of the size.
//! The [`Chooser`] compares their misses, and the cache follows the rule of the best.
//!
//! A change of the rule changes what happens to blocks from then on. Nothing is evicted for it, and
//! no block needs more state than its rank. The policies with lists are not in the set: in the log
//! they miss no less than the best of these rules, and write a quarter more
//! (`docs/decisions/0029-rules-that-shadows-choose.md`).
//!
//! - `rules`: the table of rules
//! - `shadows`: the caches that are simulated
//! - `chooser`: compares them

mod chooser;
mod rules;
mod shadows;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::curve::{Access, Sample};
use crate::exact::Key;

use chooser::Chooser;
use shadows::Shadows;

pub use rules::{NEVER, REACHES, RULES, Rule};

/// Shadow caches and the choice among their rules.
#[derive(Debug)]
pub struct Auto {
    sample: Sample,
    shadows: Shadows,
    chooser: Chooser,
}

impl Auto {
    /// Largest shadow cache, in blocks. The sample is thinned until the shadows are that small:
    /// from 256 MiB on it is sparser than one block in 64.
    pub const MOST: u64 = 1 << 10;

    /// Makes shadows of a cache with space for `room` blocks, of which it keeps `percent`. Demoted
    /// blocks stay in the others. `first` is thinned as needed.
    pub fn new(room: u64, percent: u64, first: Sample) -> Self {
        let mut sample = first;
        while room / sample.stands_for() > Auto::MOST {
            let Some(thinner) = sample.halved() else { break };
            sample = thinner;
        }
        // Not more than `MOST` even if the sample cannot be thinned any more.
        let own = (room / sample.stands_for()).clamp(1, Auto::MOST) as u32;
        Auto { sample, shadows: Shadows::new(own, percent), chooser: Chooser::new(u64::from(own)) }
    }

    /// Returns the sample: a subset of the one given to [`Auto::new`].
    pub fn sample(&self) -> Sample {
        self.sample
    }

    /// Notes an access to a sampled block. Keys only have to be unique.
    pub fn access(&mut self, access: Access, key: Key) {
        let hits = self.shadows.access(access, key);
        self.chooser.compare(hits);
    }

    /// Removes discarded blocks.
    pub fn discard(&mut self, keys: Range<Key>) {
        self.shadows.discard(keys);
    }

    /// Returns the number of the rule in force, in [`RULES`].
    pub fn chosen(&self) -> usize {
        self.chooser.chosen()
    }

    /// Returns the rule in force.
    pub fn rule(&self) -> &'static Rule {
        RULES.get(self.chosen()).unwrap_or(&Rule::S3_FIFO)
    }

    /// Returns how often the rule was changed.
    pub fn changes(&self) -> u64 {
        self.chooser.changes()
    }

    /// Returns a bound for the allocated bytes, for any requests: at most 4 MB.
    pub fn most_bytes(&self) -> u64 {
        self.shadows.most_bytes()
    }

    /// Returns an estimate of the allocated bytes.
    pub fn bytes(&self) -> u64 {
        self.shadows.bytes()
    }
}
