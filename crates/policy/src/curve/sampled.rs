//! What is known of the sampled blocks: distances of the whole sample, and of parts of it by
//! themselves, which say how far it may be off.

use std::ops::Range;

use crate::exact::Key;

use super::histogram::Histogram;
use super::recent::AGES;
use super::sample::Sample;
use super::stack::Stack;
use super::{Access, Share};

/// Parts of the sample that are looked at by themselves, to see how much they differ.
const PARTS: usize = 8;

/// Standard errors on each side: nineteen of twenty, if errors were normal and the parts many.
const WIDTH: f64 = 2.36;

/// One sample with its curve.
#[derive(Clone, Debug)]
pub(super) struct Part {
    stack: Stack,
    /// By how long ago the block was used.
    pub(super) reads: [Histogram; AGES],
    pub(super) writes: [Histogram; AGES],
}

impl Part {
    fn new() -> Self {
        Part { stack: Stack::new(), reads: Default::default(), writes: Default::default() }
    }

    fn histograms(&self) -> impl Iterator<Item = &Histogram> {
        self.reads.iter().chain(&self.writes)
    }

    fn access(&mut self, access: Access, age: usize, key: Key) {
        let distance = self.stack.access(key);
        let histograms = match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        };
        if let Some(histogram) = histograms.get_mut(age) {
            histogram.add(distance);
        }
    }

    fn halve(&mut self, sample: &Sample) {
        self.stack.retain(|key| sample.has(key));
        self.reads.iter_mut().chain(&mut self.writes).for_each(Histogram::halve);
    }

    fn bytes(&self) -> usize {
        self.stack.bytes() + self.histograms().map(Histogram::bytes).sum::<usize>()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Sampled {
    sample: Sample,
    /// Blocks in the sample, at most.
    most: usize,
    whole: Part,
    /// Empty if all blocks are sampled for good.
    parts: Vec<Part>,
}

impl Sampled {
    /// See [`super::Estimator::new`].
    pub(super) fn new(group: u32, most: usize, seed: u64) -> Self {
        let parts = if group > 1 || most < usize::MAX { PARTS } else { 0 };
        Sampled {
            sample: Sample::new(group, seed),
            most: most.max(1),
            whole: Part::new(),
            parts: (0..parts).map(|_| Part::new()).collect(),
        }
    }

    /// Which blocks are sampled now.
    pub(super) fn sample(&self) -> Sample {
        self.sample
    }

    /// A block of the sample is read or written.
    pub(super) fn access(&mut self, access: Access, age: usize, key: Key) {
        // It may have been given up since the request began.
        if !self.sample.has(key) {
            return;
        }
        self.whole.access(access, age, key);
        let part = self.sample.part(key, PARTS as u64);
        if let Some(part) = self.parts.get_mut(part) {
            part.access(access, age, key);
        }
        while self.whole.stack.depth() > self.most && self.halve() {}
    }

    /// Goes on with half of the sample. Says no if nothing is left to halve.
    pub(super) fn halve(&mut self) -> bool {
        let halved = self.sample.halve();
        if halved {
            for part in [&mut self.whole].into_iter().chain(&mut self.parts) {
                part.halve(&self.sample);
            }
        }
        halved
    }

    /// Blocks are gone.
    pub(super) fn discard(&mut self, keys: Range<Key>) {
        let groups = keys.end.0.saturating_sub(keys.start.0) / self.sample.stands_for();
        let gone: Vec<Key> = if groups <= self.whole.stack.blocks() as u64 {
            self.sample.of(keys).collect()
        } else {
            let mut gone: Vec<Key> =
                self.whole.stack.keys().filter(|key| keys.contains(key)).collect();
            gone.sort_unstable();
            gone
        };
        for key in gone {
            self.whole.stack.discard(key);
            let part = self.sample.part(key, PARTS as u64);
            if let Some(part) = self.parts.get_mut(part) {
                part.stack.discard(key);
            }
        }
    }

    /// About how many different blocks were used.
    pub(super) fn footprint(&self) -> u64 {
        let first: f64 = self.whole.histograms().map(Histogram::first).sum();
        (first * self.sample.stands_for() as f64) as u64
    }

    /// How many blocks are in the sample.
    pub(super) fn blocks(&self) -> usize {
        self.whole.stack.blocks()
    }

    /// About what it takes in RAM.
    pub(super) fn bytes(&self) -> usize {
        self.whole.bytes() + self.parts.iter().map(Part::bytes).sum::<usize>()
    }

    /// What `share` says of the whole sample, and how much it differs between the parts. It is
    /// told for how many blocks a sampled one stands.
    pub(super) fn estimate(&self, share: impl Fn(&Part, u64) -> f64) -> Share {
        let unit = self.sample.stands_for();
        let number = self.parts.len() as f64;
        let shares: Vec<f64> =
            self.parts.iter().map(|part| share(part, unit * PARTS as u64)).collect();
        let mean = shares.iter().sum::<f64>() / number;
        let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
        let error =
            if unit == 1 { 0.0 } else { WIDTH * (squares / (number - 1.0) / number).sqrt() };
        Share { share: share(&self.whole, unit), error }
    }
}
