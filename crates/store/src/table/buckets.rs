//! The memory of a table: buckets of eight words, each on a CPU cache line of its own. The words
//! are atomic, because some readers do not hold the table's lock; such a reader must detect whether
//! the words have changed meanwhile.

#[cfg(not(feature = "loom"))]
use std::alloc::{Layout as Memory, handle_alloc_error};
use std::mem::size_of;
use std::ops::Deref;

use forebay_core::sync::atomic::{AtomicU64, Ordering};
use forebay_device::hint::Spot;

use super::entry::Layout;
use super::first_lane;
use super::geometry::other_bucket;

/// Words in a bucket.
pub(super) const LANES: usize = 8;
pub(super) const BUCKET_BYTES: u64 = (LANES * size_of::<u64>()) as u64;

/// With the feature `loom`, the words are loom's atomics, and few.
#[cfg(feature = "loom")]
type BucketWords = std::sync::Arc<[AtomicU64]>;
#[cfg(not(feature = "loom"))]
type BucketWords = forebay_device::Words;

/// Eight words in a cache line; 0 is an unused word.
pub(super) type Bucket = [AtomicU64; LANES];

/// Buckets, in huge pages if there are many. The system provides their memory at the first write;
/// the allocator would write zeroes into memory with more alignment than its own. A clone refers to
/// the same buckets.
#[derive(Clone, Debug)]
pub(crate) struct Buckets(BucketWords);

impl Buckets {
    /// Returns `count` unused buckets. If there is no memory for them, the process ends, as for any
    /// allocation.
    #[cfg(not(feature = "loom"))]
    pub(super) fn unused(count: usize) -> Self {
        let words = BucketWords::new(count * LANES);
        Buckets(words.unwrap_or_else(|_| handle_alloc_error(Memory::new::<u64>())))
    }

    #[cfg(feature = "loom")]
    pub(super) fn unused(count: usize) -> Self {
        Buckets((0..count * LANES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the address of the first bucket.
    pub(crate) fn spot(&self) -> Spot {
        Spot::of(&self[..])
    }

    /// Finds the word of the key with this remainder and first bucket.
    #[inline]
    pub(super) fn find(&self, layout: Layout, remainder: u64, first: usize) -> Option<At> {
        let limit = layout.choice_bit();
        let tag = layout.tag(remainder);
        if let Some(lane) = first_lane(matching(&self[first], tag, limit)) {
            return Some(At { bucket: first, lane });
        }
        let second = other_bucket(remainder, first, self.len());
        let lane = first_lane(matching(&self[second], tag | limit, limit))?;
        Some(At { bucket: second, lane })
    }

    /// Returns a word.
    #[inline]
    pub(super) fn word(&self, at: At) -> u64 {
        // Relaxed: under the table's lock no other thread changes it, and without the lock the
        // reader checks the shard's version.
        self[at.bucket][at.lane].load(Ordering::Relaxed)
    }

    /// Changes a word. The caller holds the lock of the table.
    #[inline]
    pub(super) fn put(&self, at: At, word: u64) {
        // Relaxed: see `word`.
        self[at.bucket][at.lane].store(word, Ordering::Relaxed);
    }

    /// Changes all words; 0 must stay 0. The caller holds the lock of the table.
    pub(super) fn change_all(&self, change: impl Fn(u64) -> u64) {
        for word in self.iter().flatten() {
            let before = word.load(Ordering::Relaxed);
            // Skips pages that were never written, because they have no memory yet.
            if before != 0 {
                word.store(change(before), Ordering::Relaxed);
            }
        }
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        self.0.as_chunks().0
    }
}

/// The place of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) bucket: usize,
    pub(super) lane: usize,
}

/// Returns a bit for each lane whose word differs from `pattern` only in bits below the bit
/// `limit`.
#[inline]
pub(super) fn matching(bucket: &Bucket, pattern: u64, limit: u64) -> u32 {
    // No early exit: the position is random, so a branch on each lane would be mispredicted.
    let mut found = 0;
    for (lane, word) in bucket.iter().enumerate() {
        found |= u32::from((word.load(Ordering::Relaxed) ^ pattern) < limit) << lane;
    }
    found
}

/// Returns a bit for each unused lane.
#[inline]
pub(super) fn unused(bucket: &Bucket) -> u32 {
    matching(bucket, 0, 1)
}

#[cfg(all(test, not(any(miri, feature = "loom"))))]
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
        let buckets = Buckets::unused(count);
        assert_eq!(buckets.len(), count);
        assert_eq!(buckets.as_ptr().addr() as u64 % BUCKET_BYTES, 0);
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < count * LANES * 4, "{taken} bytes are written to");
        let last = At { bucket: count - 1, lane: LANES - 1 };
        buckets.put(last, 5);
        assert_eq!((buckets.word(last), unused(&buckets[count - 1])), (5, 0x7f));
        assert!(Buckets::unused(0).is_empty());
    }
}
