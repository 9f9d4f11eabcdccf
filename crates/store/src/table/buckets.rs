//! The memory of a table: buckets of eight words, each on a CPU cache line of its own.

use std::alloc::{Layout, handle_alloc_error};
use std::mem::size_of;
use std::ops::{Deref, DerefMut};

use forebay_device::Area;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Words in a bucket.
pub(super) const LANES: usize = 8;
pub(super) const BUCKET_BYTES: u64 = size_of::<Bucket>() as u64;

/// Eight words in a cache line; 0 is an unused word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(super) struct Bucket(pub(super) [u64; LANES]);

/// Buckets, in huge pages if there are many. The system gives their memory when it is first written
/// to; the allocator would write zeroes into memory with more alignment than its own.
#[derive(Debug)]
pub(super) struct Buckets {
    area: Area,
    count: usize,
}

impl Buckets {
    /// Returns `count` unused buckets. Without the memory for them, the process ends as for any
    /// allocation.
    pub(super) fn unused(count: usize) -> Self {
        let area = Area::new(count * size_of::<Bucket>());
        let area = area.unwrap_or_else(|_| handle_alloc_error(Layout::new::<Bucket>()));
        Buckets { area, count }
    }

    /// Returns the number of buckets.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        // An area begins with a page, so neither can fail.
        let all = <[Bucket]>::ref_from_prefix_with_elems(&self.area, self.count);
        all.map(|(buckets, _)| buckets).unwrap_or_default()
    }
}

impl DerefMut for Buckets {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Bucket] {
        let all = <[Bucket]>::mut_from_prefix_with_elems(&mut self.area, self.count);
        all.map(|(buckets, _)| buckets).unwrap_or_default()
    }
}

impl Bucket {
    /// Returns a bit for each lane whose word differs from `pattern` only in bits below the bit
    /// `limit`.
    #[inline]
    pub(super) fn matching(&self, pattern: u64, limit: u64) -> u32 {
        // No early exit: the position is random, so a branch on each lane would be mispredicted.
        let mut found = 0;
        for (lane, word) in self.0.iter().enumerate() {
            found |= u32::from((word ^ pattern) < limit) << lane;
        }
        found
    }

    /// Returns a bit for each unused lane.
    #[inline]
    pub(super) fn unused(&self) -> u32 {
        self.matching(0, 1)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages: usize = status.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("pages");
        pages * 4096
    }

    #[test]
    fn buckets_are_lines_and_take_memory_when_they_are_written_to() {
        let (before, count) = (resident_bytes(), 1 << 22);
        let mut buckets = Buckets::unused(count);
        assert_eq!((buckets.len(), buckets[..].len()), (count, count));
        assert_eq!(buckets.as_ptr().addr() as u64 % BUCKET_BYTES, 0);
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < count * LANES * 4, "{taken} bytes are written to");
        buckets[count - 1].0[LANES - 1] = 5;
        assert_eq!(buckets[count - 1], Bucket([0, 0, 0, 0, 0, 0, 0, 5]));
        assert!(Buckets::unused(0).is_empty());
    }
}
