//! Samples of the origin that the cache has not written to since they were taken. `io::first_write`
//! is the step before the first write to each of them.
//!
//! After a crash the untouched samples show whether an external writer changed the origin. A sample
//! therefore durably stops being untouched before the cache itself writes there, and that write
//! waits for it. This happens once per sample, so at most 128 times from a volume's start to its
//! stop. All other writes cost a search among at most 128 places, or nothing once all samples are
//! touched.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_format::volume::Samples;
use forebay_format::volume::samples::{SAMPLE_BYTES, sample_places};
use forebay_lane::Gate;

/// One bit for each of up to 128 samples.
#[derive(Default)]
pub(crate) struct Bits([AtomicU64; 2]);

impl Bits {
    pub(crate) fn get(&self) -> u128 {
        let [low, high] = &self.0;
        u128::from(high.load(Ordering::SeqCst)) << 64 | u128::from(low.load(Ordering::SeqCst))
    }

    pub(crate) fn add(&self, bits: u128) {
        self.0[0].fetch_or(bits as u64, Ordering::SeqCst);
        self.0[1].fetch_or((bits >> 64) as u64, Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, bits: u128) {
        self.0[0].fetch_and(!bits as u64, Ordering::SeqCst);
        self.0[1].fetch_and((!bits >> 64) as u64, Ordering::SeqCst);
    }
}

/// The untouched samples of one origin.
pub(crate) struct Untouched {
    /// The samples' offsets, ascending.
    places: Vec<u64>,
    /// Samples that the cache device still lists as untouched.
    pub(crate) untouched: Bits,
    /// Samples that tasks are about to write to.
    pub(crate) wanted: Bits,
    /// Whether the samples were given up, although the cache device may still list some as
    /// untouched.
    pub(crate) given_up: AtomicBool,
    pub(crate) gate: Gate,
}

impl Untouched {
    /// Returns the samples in the record of a volume of `size` bytes.
    pub(crate) fn new(samples: Option<&Samples>, size: u64) -> Self {
        let untouched = Bits::default();
        untouched.add(samples.map_or(0, |samples| samples.untouched));
        let places = sample_places(size);
        let (wanted, given_up) = (Bits::default(), AtomicBool::new(false));
        Untouched { places, untouched, wanted, given_up, gate: Gate::default() }
    }

    /// Returns the untouched samples that overlap a byte range.
    #[inline]
    pub(crate) fn within(&self, range: &Range<u64>) -> u128 {
        let untouched = self.untouched.get();
        if untouched == 0 {
            return 0;
        }
        let first = self.places.partition_point(|place| place + SAMPLE_BYTES <= range.start);
        let end = self.places.partition_point(|place| *place < range.end);
        if first >= end {
            return 0;
        }
        // At most 128 places, so that both shifts stay below 128.
        untouched & (u128::MAX << first) & (u128::MAX >> (128 - end.min(128)))
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::volume::SampleCheck;

    use super::*;

    #[test]
    fn a_range_touches_exactly_the_samples_that_it_overlaps() {
        let size = 64 << 20;
        let places = sample_places(size);
        let (by, checks) = (SampleCheck::Digest, vec![0; places.len()]);
        let all = Samples { by, checks, untouched: u128::MAX >> (128 - places.len()) };
        let untouched = Untouched::new(Some(&all), size);
        let expected = |range: &Range<u64>| {
            let inside = |place: &u64| *place < range.end && range.start < place + SAMPLE_BYTES;
            let numbers = places.iter().enumerate().filter(|(_, place)| inside(place));
            numbers.fold(0u128, |bits, (number, _)| bits | 1 << number)
        };
        let last = places.last().copied().expect("there are some");
        for start in [0, 512, 4095, 4096, (256 << 10) - 512, 256 << 10, 1 << 20, last - 512, last] {
            for len in [512, 4096, 4608, 1 << 20, size - start] {
                let range = start..(start + len).min(size);
                assert_eq!(untouched.within(&range), expected(&range), "{range:?}");
            }
        }
        untouched.untouched.remove(1 | 1 << 70);
        assert_eq!(untouched.within(&(0..size)), all.untouched & !(1 | 1 << 70));
        assert_eq!(untouched.within(&(0..4096)), 0);
        assert_eq!(Untouched::new(None, size).within(&(0..size)), 0);
    }
}
