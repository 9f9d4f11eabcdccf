//! Large zeroed memory as atomic words, for structures that are read without a lock.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::memory::Area;

/// Atomic words, all 0 at first, in huge pages if there are many. They use no RAM before they are
/// accessed. A clone refers to the same words.
#[derive(Clone)]
pub struct Words {
    /// Stored beside the area, so that an access touches no other cache line than that of the word.
    start: NonNull<AtomicU64>,
    count: usize,
    _area: Arc<Area>,
}

// SAFETY: all access goes through `deref`, to atomics, which threads may share.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Makes `count` words.
    ///
    /// # Errors
    /// The system has not enough address space.
    pub fn new(count: usize) -> io::Result<Self> {
        let bytes = count.checked_mul(size_of::<AtomicU64>());
        let area = Area::new(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        let start = area.start().map_or(NonNull::dangling(), NonNull::cast);
        Ok(Words { start, count, _area: Arc::new(area) })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the area starts with a page, has room for these words, was zeroed when it was
        // made, lives as long as this clone, and is accessed only as these atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn clones_share_words_that_start_as_zeroes() {
        for count in [1, 511, 513, 1 << 16] {
            let words = Words::new(count).expect("memory");
            let clone = words.clone();
            assert_eq!((words.len(), clone[count - 1].load(Ordering::Relaxed)), (count, 0));
            words[count - 1].store(7, Ordering::Relaxed);
            drop(words);
            assert_eq!(clone[count - 1].load(Ordering::Relaxed), 7);
        }
        assert!(Words::new(0).expect("nothing").is_empty());
        assert!(Words::new(usize::MAX).is_err() && Words::new(usize::MAX / 8).is_err());
    }
}
