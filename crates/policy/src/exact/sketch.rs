//! Approximate recent frequencies of keys: a count-min sketch of 4-bit counters.
//!
//! Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its
//! applications", Journal of Algorithms 55(1), 2005. A key has four counters, all in one CPU cache
//! line; the smallest of them is the estimate, and only the smallest are incremented (conservative
//! update). After every `period` additions all counters are halved, a few lines per addition, so
//! that no single one stalls.

/// Counters of 4 bits: four rows of two words each.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct SketchLine([u64; 8]);

/// Counters per key of capacity.
const COUNTERS_PER_KEY: u32 = 16;

/// Counters in a line.
const COUNTERS_PER_LINE: u32 = 128;

/// The largest count.
pub(super) const MOST: u8 = 15;

/// Lines halved per addition while a halving is in progress.
const HALVED_AT_ONCE: usize = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Sketch {
    lines: Vec<SketchLine>,
    /// Number of additions until the next halving, and between two halvings.
    left: u64,
    period: u64,
    /// Lines still to be halved.
    behind: usize,
}

impl Sketch {
    /// Creates a sketch for `keys` keys, at least 1, whose counters are halved after every `period`
    /// additions; `period` is at least the number of lines.
    pub(super) fn new(keys: u32, period: u64) -> Self {
        let lines = (u64::from(keys) * u64::from(COUNTERS_PER_KEY))
            .div_ceil(u64::from(COUNTERS_PER_LINE))
            .max(1) as usize;
        let period = period.max(lines as u64);
        Sketch { lines: vec![SketchLine([0; 8]); lines], left: period, period, behind: 0 }
    }

    fn line(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.lines.len() as u64) >> 32) as usize
    }

    /// Returns, for each row, the word of the line and the bit position in it.
    fn places(hash: u32) -> [(usize, u32); 4] {
        let mixed = hash.wrapping_mul(0x9e37_79b9) ^ (hash >> 15);
        let mixed = mixed.wrapping_mul(0x85eb_ca6b);
        [0, 1, 2, 3].map(|row: usize| {
            let bits = mixed >> (7 + 6 * row) & 31;
            (2 * row + (bits & 1) as usize, (bits >> 1) * 4)
        })
    }

    /// Returns an upper bound of how often a key was added.
    pub(super) fn estimate(&self, hash: u32) -> u8 {
        let SketchLine(words) = &self.lines[self.line(hash)];
        let counts = Self::places(hash).map(|(word, shift)| (words[word] >> shift & 15) as u8);
        counts.into_iter().fold(MOST, u8::min)
    }

    /// Counts a key.
    pub(super) fn add(&mut self, hash: u32) {
        let count = u64::from(self.estimate(hash));
        if count < u64::from(MOST) {
            let line = self.line(hash);
            for (word, shift) in Self::places(hash) {
                let word = &mut self.lines[line].0[word];
                if *word >> shift & 15 == count {
                    *word += 1 << shift;
                }
            }
        }
        self.left -= 1;
        if self.left == 0 {
            self.left = self.period;
            self.behind = self.lines.len();
        }
        for _ in 0..HALVED_AT_ONCE.min(self.behind) {
            self.behind -= 1;
            for word in &mut self.lines[self.behind].0 {
                *word = *word >> 1 & 0x7777_7777_7777_7777;
            }
        }
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<SketchLine>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::Key;

    fn hash(key: u64) -> u32 {
        Key(key).hash()
    }

    #[test]
    fn counts_are_never_too_small_and_rarely_too_large() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut sketch = Sketch::new(1000, u64::MAX);
        let mut counts = vec![0u8; 2000];
        for _ in 0..4000 {
            let key = (random.f64() * random.f64() * 2000.0) as usize;
            sketch.add(hash(key as u64));
            counts[key] = (counts[key] + 1).min(MOST);
        }
        let mut too_large = 0;
        for (key, count) in counts.iter().enumerate() {
            let estimate = sketch.estimate(hash(key as u64));
            assert!(estimate >= *count, "{key}: {estimate} for {count}");
            too_large += u32::from(estimate > *count);
        }
        assert!(too_large < 60, "{too_large} of 2000");
    }

    #[test]
    fn counts_are_halved_again_and_again() {
        let mut sketch = Sketch::new(64, 1000);
        for _ in 0..20 {
            sketch.add(hash(1));
        }
        assert_eq!(sketch.estimate(hash(1)), MOST);
        let mut seen = Vec::new();
        for key in 0..4000 {
            sketch.add(hash(1000 + key % 3));
            seen.push(sketch.estimate(hash(1)));
        }
        seen.dedup();
        assert_eq!(seen, [15, 7, 3, 1, 0]);
    }
}
