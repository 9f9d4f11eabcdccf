//! Histogram of reuse distances, for a sample.

/// Counts of accesses by sampled distance.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    by_distance: Vec<f64>,
    /// Accesses to blocks never used before.
    first: f64,
}

impl Histogram {
    /// Counts an access; `None` for a first use.
    pub(super) fn add(&mut self, distance: Option<u32>) {
        let Some(distance) = distance else {
            self.first += 1.0;
            return;
        };
        let place = distance as usize;
        if place >= self.by_distance.len() {
            self.by_distance.resize(place + 1, 0.0);
        }
        if let Some(count) = self.by_distance.get_mut(place) {
            *count += 1.0;
        }
    }

    /// Merges pairs of distances and halves all counts: each distance and each access now stands
    /// for twice as many blocks.
    pub(super) fn halve(&mut self) {
        let pair = |pair: &[f64]| pair.iter().sum::<f64>() / 2.0;
        self.by_distance = self.by_distance.chunks(2).map(pair).collect();
        self.first /= 2.0;
    }

    /// Returns the accesses to blocks never used before.
    pub(super) fn first(&self) -> f64 {
        self.first
    }

    /// Returns all accesses.
    pub(super) fn accesses(&self) -> f64 {
        self.first + self.by_distance.iter().sum::<f64>()
    }

    /// Returns the accesses that hit in a cache of `blocks` blocks, if each distance stands for
    /// `unit` blocks. Accesses within one unit are taken as evenly spread.
    pub(super) fn hits(&self, blocks: u64, unit: u64) -> f64 {
        let whole = (blocks / unit) as usize;
        let part = (blocks % unit) as f64 / unit as f64;
        let sum: f64 = self.by_distance.iter().take(whole).sum();
        sum + self.by_distance.get(whole).map_or(0.0, |count| count * part)
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        self.by_distance.capacity() * size_of::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_those_of_smaller_distances() {
        let mut histogram = Histogram::default();
        for distance in [Some(0), Some(0), None, Some(3), Some(2)] {
            histogram.add(distance);
        }
        assert_eq!((histogram.accesses(), histogram.first()), (5.0, 1.0));
        let hits = |unit| [0, 1, 2, 3, 4, 9].map(|blocks| histogram.hits(blocks, unit));
        assert_eq!(hits(1), [0.0, 2.0, 2.0, 3.0, 4.0, 4.0]);
        assert_eq!(hits(2), [0.0, 1.0, 2.0, 2.0, 2.0, 4.0]);
        let before = histogram.hits(4, 1);
        histogram.halve();
        assert_eq!((histogram.accesses(), histogram.hits(4, 2)), (2.5, before / 2.0));
    }
}
