//! Predicted results of other settings: shadow caches that simulate them on a sample of the blocks.
//!
//! Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature
//! Simulations", ATC 2017: a cache of a hundredth of the size, for a hundredth of the blocks,
//! misses about as large a share of the accesses. The curve ([`crate::curve`]) needs no simulation
//! for LRU; the effect of another policy or admission rule can only be simulated.
//!
//! Each shadow has the real policies ([`crate::exact`]) and the real rule of admission, for the
//! cache device and perhaps for RAM in front of it. Its log has no segments: blocks leave one by
//! one, and writes of reclaim are not predicted. It writes back all dirty blocks beyond the real
//! cache's number.
//!
//! All shadows see the same accesses, so the differences between them are more exact than the
//! shares. As for the curve, shares are corrected by the known number of all accesses: accesses
//! that are not missed are hits.
//!
//! - `shadow`: one shadow cache; `level`: one of its tiers

mod ghosts;
mod level;
mod shadow;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use forebay_core::{Admission, Mode, Nanos, ReplacementKind};

use crate::curve::{Access, Sample, Share, WIDTH};
use crate::exact::Key;

use level::{Blocks, MOST_LEVELS};
use shadow::{PARTS, Sampled, Shadow};

/// The settings that a shadow simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The replacement policy of the cache.
    pub policy: ReplacementKind,
    /// Admission: which missed blocks enter the cache.
    pub admission: Admission,
    /// Size of the RAM tier in blocks of the cache; 0 if there is none.
    pub ram: u64,
    /// The replacement policy of the RAM tier.
    pub ram_policy: ReplacementKind,
}

/// A cache with its present settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Size of the cache in blocks.
    pub capacity: u64,
    /// Number of blocks of the whole cache device: admission remembers as many absent ones, or a
    /// multiple.
    pub cells: u64,
    /// Mode: how reads and writes are treated.
    pub mode: Mode,
    /// The present settings, with which the others are compared.
    pub now: Rules,
}

impl Setup {
    /// Returns the simulated settings: the present ones; then, with all else unchanged, each other
    /// admission rule, some other policies, and other sizes of RAM.
    pub fn simulated(&self) -> Vec<Rules> {
        let now = self.now;
        let mut all = vec![now];
        let times = [0, 1, 2, 4].into_iter().filter_map(Admission::from_times);
        all.extend(times.map(|admission| Rules { admission, ..now }));
        all.extend(POLICIES.map(|policy| Rules { policy, ..now }));
        // Round sizes that an operator can type.
        let part = |of: u64| (self.capacity / of).next_power_of_two();
        let ram = match now.ram {
            0 => [part(64), part(16), part(4)],
            ram => [0, ram / 2, ram * 2],
        };
        all.extend(ram.map(|ram| Rules { ram, ..now }));
        let mut unique = Vec::new();
        all.into_iter().for_each(|rules| {
            if !unique.contains(&rules) {
                unique.push(rules);
            }
        });
        unique
    }
}

/// The policies that are simulated in addition to the present one. `smq` is not among them, because
/// it uses regions of neighbouring blocks, and a sample has hardly any.
const POLICIES: [ReplacementKind; 4] = [
    ReplacementKind::Lru,
    ReplacementKind::S3Fifo,
    ReplacementKind::Arc,
    ReplacementKind::WTinyLfu,
];

/// Scaling of sizes to the sample.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Capacity of the cache, in blocks.
    capacity: u64,
    /// Cells of the cache device.
    cells: u64,
    stands_for: u64,
}

impl Scale {
    fn of_setup(setup: &Setup, sample: &Sample) -> Self {
        let Setup { capacity, cells, .. } = *setup;
        Scale { capacity, cells, stands_for: sample.stands_for() }
    }

    /// Returns the size of a shadow's tier that represents a tier of `blocks` blocks.
    fn of(self, blocks: u64) -> u32 {
        let scaled = (blocks + self.stands_for / 2) / self.stands_for;
        scaled.clamp(1, 2 * WhatIf::MOST) as u32
    }
}

/// The predicted result of one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The settings.
    pub rules: Rules,
    /// Share of the blocks read that RAM or the cache would have answered.
    pub reads: Share,
    /// Share of the blocks read that RAM would have answered.
    pub ram: f64,
    /// Share of the blocks read or written that RAM or the cache would have had.
    pub all: Share,
    /// Blocks written to the cache device, without those that reclaim reinserts.
    pub written: u64,
    /// The difference of `reads.share` to that of the present settings, and likewise for
    /// `all.share`. The errors are those of the differences.
    pub reads_gain: Share,
    /// See `reads_gain`.
    pub all_gain: Share,
}

/// See the module.
pub struct WhatIf {
    setup: Setup,
    sample: Sample,
    blocks: Blocks,
    shadows: Vec<Shadow>,
    /// Start of the current second, and the accesses since.
    second: (Nanos, u64),
    /// Blocks read and written before the simulation began.
    before: (u64, u64),
}

impl std::fmt::Debug for WhatIf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WhatIf").field("setup", &self.setup).finish_non_exhaustive()
    }
}

impl WhatIf {
    /// Largest tier of a shadow that represents the whole cache, in blocks. The sample is thinned
    /// until tiers are that small.
    pub const MOST: u64 = 2 << 10;

    /// Maximum number of accesses per second, as for the curve.
    pub const MOST_PER_SECOND: u64 = crate::curve::Live::MOST_PER_SECOND as u64;

    /// Makes empty shadows, for a subset of the sample `first`. `reads` and `writes` count all
    /// blocks accessed so far.
    pub fn new(setup: Setup, first: Sample, reads: u64, writes: u64) -> Self {
        let mut sample = first;
        while setup.capacity / sample.stands_for() > WhatIf::MOST {
            let Some(thinner) = sample.halved() else { break };
            sample = thinner;
        }
        let scale = Scale::of_setup(&setup, &sample);
        let (mut shadows, mut number) = (Vec::new(), 0);
        for rules in setup.simulated() {
            let (shadow, next) = Shadow::new(number, rules, setup.mode, scale);
            if next > MOST_LEVELS {
                break;
            }
            shadows.push(shadow);
            number = next;
        }
        let (second, before) = ((Nanos(0), 0), (reads, writes));
        WhatIf { setup, sample, blocks: Blocks::default(), shadows, second, before }
    }

    /// Returns the setup with which the simulation began.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// Returns the sample.
    pub fn sample(&self) -> Sample {
        self.sample
    }

    fn scale(&self) -> Scale {
        Scale::of_setup(&self.setup, &self.sample)
    }

    /// Passes a read or write of a block to the shadows, if it is in the sample.
    pub fn access(&mut self, access: Access, Key(key): Key) {
        if !self.sample.has(Key(key)) {
            return;
        }
        self.second.1 += 1;
        let block = self.blocks.number(key);
        self.blocks.hold(block);
        let part = self.sample.part(Key(key), PARTS as u64);
        let stands_for = self.sample.stands_for();
        for shadow in &mut self.shadows {
            shadow.access(&mut self.blocks, Sampled { access, block, key, part, stands_for });
        }
        self.blocks.release(block);
    }

    /// Tells the shadows that the read or write that was just passed to them has bypassed the
    /// cache.
    pub fn bypassed(&mut self, access: Access, Key(key): Key) {
        let Some(block) = self.blocks.numbers.get(&key).copied() else { return };
        let part = self.sample.part(Key(key), PARTS as u64);
        let stands_for = self.sample.stands_for();
        self.blocks.hold(block);
        for shadow in &mut self.shadows {
            shadow.bypassed(&mut self.blocks, Sampled { access, block, key, part, stands_for });
        }
        self.blocks.release(block);
    }

    /// Removes blocks that were discarded.
    pub fn remove(&mut self, keys: Range<Key>) {
        for block in self.blocks.inside(keys.start.0..keys.end.0) {
            self.blocks.hold(block);
            self.shadows.iter_mut().for_each(|shadow| shadow.remove(&mut self.blocks, block));
            self.blocks.release(block);
        }
    }

    /// Thins the sample if accesses come too fast. Must be called after some accesses.
    pub fn settle(&mut self, now: Nanos) {
        let seconds = now.since(self.second.0).max(Duration::from_secs(1)).as_secs_f64();
        if self.second.1 as f64 > WhatIf::MOST_PER_SECOND as f64 * seconds {
            self.thin();
        } else if seconds <= 1.0 {
            return;
        }
        self.second = (now, 0);
    }

    /// Sets the number of dirty blocks in the cache, so that the same part of the shadows may be
    /// dirty.
    pub fn set_dirty(&mut self, dirty: u64) {
        let scale = self.scale();
        let most = if dirty > 0 { scale.of(dirty.min(scale.capacity)) } else { 0 };
        self.shadows.iter_mut().for_each(|shadow| shadow.set_most_dirty(most));
    }

    fn thin(&mut self) {
        let Some(sample) = self.sample.halved() else { return };
        self.sample = sample;
        let scale = self.scale();
        for shadow in &mut self.shadows {
            shadow.thin(&mut self.blocks, scale, |key| sample.has(Key(key)));
        }
    }

    /// Returns the predicted result of each setting, the present one first; `reads` and `writes`
    /// count all blocks accessed so far.
    pub fn predictions(&self, reads: u64, writes: u64) -> Vec<Prediction> {
        let totals = Totals {
            reads: reads.saturating_sub(self.before.0),
            writes: writes.saturating_sub(self.before.1),
            has_writes: !matches!(self.setup.mode, Mode::Writearound | Mode::Passthrough),
        };
        let Some(now) = self.shadows.first() else { return Vec::new() };
        self.shadows.iter().map(|shadow| totals.of(shadow, now)).collect()
    }

    /// Returns the numbers of blocks read and written since the simulation began, given all
    /// accessed so far.
    pub fn accesses(&self, reads: u64, writes: u64) -> (u64, u64) {
        (reads.saturating_sub(self.before.0), writes.saturating_sub(self.before.1))
    }

    /// Returns an upper bound of the allocated bytes for any requests, assuming that no two shadows
    /// share a block.
    pub fn most_bytes(&mut self) -> u64 {
        let scale = self.scale();
        let sizes = self.shadows.iter_mut().map(|shadow| shadow.size(scale));
        let (bytes, blocks) = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        bytes as u64 + blocks * Blocks::bytes_of_block() as u64
    }
}

/// All accesses, sampled or not.
struct Totals {
    reads: u64,
    writes: u64,
    /// Whether writes go to the cache device at all.
    has_writes: bool,
}

impl Totals {
    fn of(&self, shadow: &Shadow, now: &Shadow) -> Prediction {
        let all = self.reads + self.writes;
        let reads = |of: &Shadow, part: Option<usize>| {
            missed(of, part, |counts| counts.missed_reads) / self.reads.max(1) as f64
        };
        let both = |of: &Shadow, part: Option<usize>| {
            missed(of, part, |counts| counts.missed_reads + counts.missed_writes)
                / all.max(1) as f64
        };
        let share = |of: &dyn Fn(&Shadow, Option<usize>) -> f64| Share {
            share: (1.0 - of(shadow, None)).clamp(0.0, 1.0),
            error: error(|part| of(shadow, Some(part))),
        };
        let gain = |of: &dyn Fn(&Shadow, Option<usize>) -> f64| Share {
            share: of(now, None) - of(shadow, None),
            error: error(|part| of(now, Some(part)) - of(shadow, Some(part))),
        };
        let sum = |count: fn(&shadow::ShadowCounts) -> u64| missed(shadow, None, count);
        let written = match self.has_writes {
            true => (self.writes as f64 - sum(|counts| counts.refused_writes)).max(0.0),
            false => 0.0,
        };
        let ram = match shadow.rules.ram {
            0 => 0.0,
            _ => 1.0 - sum(|counts| counts.missed_in_ram) / self.reads.max(1) as f64,
        };
        Prediction {
            rules: shadow.rules,
            reads: share(&reads),
            ram: ram.clamp(0.0, 1.0),
            all: share(&both),
            written: (written + sum(|counts| counts.fills)) as u64,
            reads_gain: gain(&reads),
            all_gain: gain(&both),
        }
    }
}

/// Returns the sum of a count over all parts, or the scaled count of one part.
fn missed(shadow: &Shadow, part: Option<usize>, count: fn(&shadow::ShadowCounts) -> u64) -> f64 {
    match part {
        None => shadow.counts.iter().map(count).sum::<u64>() as f64,
        Some(part) => {
            shadow.counts.get(part).map_or(0.0, |counts| (count(counts) * PARTS as u64) as f64)
        }
    }
}

/// Returns half the confidence interval of a mean over the parts, see [`Share`].
fn error(of: impl Fn(usize) -> f64) -> f64 {
    let values: Vec<f64> = (0..PARTS).map(of).collect();
    let number = PARTS as f64;
    let mean = values.iter().sum::<f64>() / number;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    WIDTH * (squares / (number - 1.0) / number).sqrt()
}
