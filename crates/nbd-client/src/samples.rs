//! Samples of an export's content, by which the client checks that a server that comes back still
//! has the same export.
//!
//! A sample is a hash of a page that this client has not written to, so the page must be unchanged.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a sample.
pub(crate) const PAGE: u64 = 4096;
/// Maximum number of samples.
const COUNT: u64 = 32;

struct OriginSample {
    offset: u64,
    hash: OnceLock<u64>,
    /// Whether this client may have written to the sample.
    touched: AtomicBool,
}

/// See the module.
pub(crate) struct Samples(Box<[OriginSample]>);

impl Samples {
    /// Plans samples, spread evenly over `size` bytes. [`Samples::compare`] takes them.
    pub(crate) fn plan(size: u64) -> Self {
        let pages = size / PAGE;
        let count = pages.min(COUNT);
        let sample = |number| OriginSample {
            offset: (u128::from(pages) * u128::from(number) / u128::from(count)) as u64 * PAGE,
            hash: OnceLock::new(),
            touched: AtomicBool::new(false),
        };
        Samples((0..count).map(sample).collect())
    }

    /// Marks a range as changed by this client. Must be called before the request is sent.
    pub(crate) fn touch(&self, range: Range<u64>) {
        let first = self.0.partition_point(|sample| sample.offset + PAGE <= range.start);
        for sample in self.0.iter().skip(first).take_while(|sample| sample.offset < range.end) {
            sample.touched.store(true, Ordering::SeqCst);
        }
    }

    /// Returns the numbers and offsets of the samples that can be compared.
    pub(crate) fn untouched(&self) -> impl Iterator<Item = (usize, u64)> {
        let untouched = |sample: &OriginSample| !sample.touched.load(Ordering::SeqCst);
        let samples = self.0.iter().enumerate().filter(move |(_, sample)| untouched(sample));
        samples.map(|(number, sample)| (number, sample.offset))
    }

    /// Compares a page that was read with its sample, or takes the sample if there is none yet.
    /// Returns `false` if the page was changed by another program.
    pub(crate) fn compare(&self, number: usize, page: &[u8]) -> bool {
        let Some(sample) = self.0.get(number) else { return true };
        let mut hasher = DefaultHasher::new();
        page.hash(&mut hasher);
        let found = hasher.finish();
        // The page may contain a write of this client that began meanwhile.
        sample.touched.load(Ordering::SeqCst) || *sample.hash.get_or_init(|| found) == found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_tell_changed_pages_from_written_ones() {
        let samples = Samples::plan(64 * PAGE + 512);
        let offsets: Vec<u64> = samples.untouched().map(|(_, offset)| offset).collect();
        assert_eq!(offsets, (0..32).map(|n| n * 2 * PAGE).collect::<Vec<_>>());
        let (one, other) = ([1; PAGE as usize], [2; PAGE as usize]);
        for number in 0..32 {
            assert!(samples.compare(number, &one), "taken");
            assert!(samples.compare(number, &one) && !samples.compare(number, &other));
        }
        for (range, left) in [
            (PAGE..2 * PAGE, 32),
            (PAGE..2 * PAGE + 1, 31),
            (3 * PAGE - 1..4 * PAGE, 31),
            (5 * PAGE - 1..6 * PAGE + 512, 29),
            (0..0, 29),
            (0..64 * PAGE, 0),
        ] {
            samples.touch(range.clone());
            assert_eq!(samples.untouched().count(), left, "{range:?}");
        }
        assert!(samples.compare(3, &other), "written by this client");
        assert_eq!(Samples::plan(512).untouched().count(), 0);
        assert_eq!(Samples::plan(3 * PAGE).untouched().count(), 3);
    }
}
