//! Reuse distances of the sampled blocks: of the whole sample, and of parts of it separately, which
//! show how far the estimate may be off.

use std::ops::Range;

use crate::exact::Key;

use super::histogram::Histogram;
use super::recent::AGES;
use super::sample::Sample;
use super::stack::Stack;
use super::{Access, Share};

/// Parts of the sample that have curves of their own, to see how much they differ.
const PARTS: usize = 8;

/// Half-width of the interval in standard errors: Student's t for 95 % and eight parts.
pub(crate) const WIDTH: f64 = 2.36;

/// A sample, or a part of one, with its curve.
#[derive(Clone, Debug)]
pub(super) struct SampleCurve {
    stack: Stack,
    /// Histograms of reads, by age of the block at the access.
    pub(super) reads: [Histogram; AGES],
    pub(super) writes: [Histogram; AGES],
}

impl SampleCurve {
    fn new() -> Self {
        SampleCurve { stack: Stack::new(), reads: Default::default(), writes: Default::default() }
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
    /// Maximum number of blocks in the sample.
    most: usize,
    whole: SampleCurve,
    /// Empty if all blocks are sampled and the sample is never halved.
    parts: Vec<SampleCurve>,
}

impl Sampled {
    /// See [`super::Estimator::new`].
    pub(super) fn new(group: u32, most: usize, seed: u64) -> Self {
        let parts = if group > 1 || most < usize::MAX { PARTS } else { 0 };
        Sampled {
            sample: Sample::new(group, seed),
            most: most.max(1),
            whole: SampleCurve::new(),
            parts: (0..parts).map(|_| SampleCurve::new()).collect(),
        }
    }

    /// Returns the current sample.
    pub(super) fn sample(&self) -> Sample {
        self.sample
    }

    /// Counts a read or write of a sampled block.
    pub(super) fn access(&mut self, access: Access, age: usize, key: Key) {
        // The sample may have been halved since the request began.
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

    /// Halves the sample. Returns `false` if it cannot be halved further.
    pub(super) fn halve(&mut self) -> bool {
        let halved = self.sample.halve();
        if halved {
            for part in [&mut self.whole].into_iter().chain(&mut self.parts) {
                part.halve(&self.sample);
            }
        }
        halved
    }

    /// Removes discarded blocks.
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

    /// Returns an estimate of the number of different blocks used.
    pub(super) fn footprint(&self) -> u64 {
        let first: f64 = self.whole.histograms().map(Histogram::first).sum();
        (first * self.sample.stands_for() as f64) as u64
    }

    /// Returns the number of blocks in the sample.
    pub(super) fn blocks(&self) -> usize {
        self.whole.stack.blocks()
    }

    /// Returns an estimate of the bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.whole.bytes() + self.parts.iter().map(SampleCurve::bytes).sum::<usize>()
    }

    /// Computes `share` for the whole sample, and its error from the differences between the parts.
    /// `share` receives a part and the number of blocks that a sampled block in it stands for.
    pub(super) fn estimate(&self, share: impl Fn(&SampleCurve, u64) -> f64) -> Share {
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
