//! The RAM image of a segment that is being filled.
//!
//! Several lanes fill and read it at the same time without a lock. A byte goes through three
//! states: free, claimed by one [`Claim`] (which alone may access it), published (which any
//! lane may read and none may change). States are kept in units of 512 bytes in two bitmaps, so a
//! step of a 4 KiB cell is one atomic operation.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use forebay_core::sync::atomic::{AtomicU64, Ordering};

use crate::hint::{Spot, fetch_to_write};
use crate::memory::{PAGE, Pages};

/// Bytes that change state together.
pub const CLAIM_UNIT: usize = 512;

/// The RAM image of a segment.
pub struct LogBuffer {
    pages: Pages,
    /// One bit per unit, lowest first; set once the unit is claimed.
    claimed: Box<[AtomicU64]>,
    /// One bit per unit; set once the unit is complete and never changes again. Implies the bit in
    /// `claimed`.
    published: Box<[AtomicU64]>,
}

/// Returns the words of a bitmap that cover `units`, with the bits in each.
fn words(units: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let mut next = units.start;
    std::iter::from_fn(move || {
        if next >= units.end {
            return None;
        }
        let (word, bit) = (next / 64, next % 64);
        let count = (units.end - next).min(64 - bit);
        next += count;
        let ones = if count == 64 { u64::MAX } else { (1 << count) - 1 };
        Some((word, ones << bit))
    })
}

impl LogBuffer {
    /// Creates an image of `len` bytes, a multiple of 4096, all free.
    ///
    /// # Panics
    /// `len` is 0 or no multiple of 4096, or the system has no memory.
    pub fn new(len: usize) -> Arc<Self> {
        assert!(len > 0 && len.is_multiple_of(PAGE), "a log buffer of {len} bytes");
        let pages = match Pages::new(len) {
            Ok(pages) => pages,
            Err(error) => panic!("no memory for a log buffer of {len} bytes: {error}"),
        };
        let bitmap = || (0..(len / CLAIM_UNIT).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(LogBuffer { pages, claimed: bitmap(), published: bitmap() })
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a log buffer always has bytes")]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Claims the exclusive right to write `range`, which has not been claimed since the last
    /// [`LogBuffer::reset`]. `None` if a part of it has, or `range` is empty, not in whole units of
    /// 512 bytes, or not inside the buffer. Overlapping claims made at the same moment may all
    /// fail.
    pub fn claim(self: &Arc<Self>, range: Range<usize>) -> Option<Claim> {
        let aligned =
            range.start.is_multiple_of(CLAIM_UNIT) && range.end.is_multiple_of(CLAIM_UNIT);
        if !aligned || range.start >= range.end || range.end > self.len() {
            return None;
        }
        let units = range.start / CLAIM_UNIT..range.end / CLAIM_UNIT;
        for (word, bits) in words(units.clone()) {
            // Relaxed: a thread that finds a bit clear is the first to access these bytes since
            // `reset`, which had exclusive access; there is nothing to synchronise with.
            let before = self.claimed[word].fetch_or(bits, Ordering::Relaxed);
            if before & bits != 0 {
                self.claimed[word].fetch_and(before | !bits, Ordering::Relaxed);
                for (earlier, bits) in words(units.clone()).take_while(|&(other, _)| other < word) {
                    self.claimed[earlier].fetch_and(!bits, Ordering::Relaxed);
                }
                return None;
            }
        }
        self.expect(range.end..range.end + range.len());
        Some(Claim { buffer: self.clone(), range })
    }

    /// Prefetches the lines behind a claim, where the lane will probably continue. Otherwise
    /// publishing a cell would wait for all of its lines.
    fn expect(&self, range: Range<usize>) {
        const MOST: usize = 4096;
        let end = range.end.min(self.len()).min(range.start + MOST);
        for line in (range.start..end).step_by(64) {
            fetch_to_write(Spot::at(self.pages.start()).plus(line));
        }
    }

    /// Returns the bytes in `range` (of any alignment) if all of them are published and inside the
    /// buffer.
    pub fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        if range.is_empty() {
            return Some(&[]);
        }
        let units = range.start / CLAIM_UNIT..range.end.div_ceil(CLAIM_UNIT);
        for (word, bits) in words(units) {
            if self.published[word].load(Ordering::Acquire) & bits != bits {
                return None;
            }
        }
        // SAFETY: the range is inside the mapping, which lives as long as `self`. Published bytes
        // are not written any more: their claim ended when it was published (`Acquire` above pairs
        // with `Release` there), no second claim of them can be made while their bits in `claimed`
        // are set, and clearing those takes `&mut self`.
        Some(unsafe {
            std::slice::from_raw_parts(self.pages.start().as_ptr().add(range.start), range.len())
        })
    }

    /// Makes all bytes free again; they keep their content until they are claimed.
    pub fn reset(&mut self) {
        for word in self.claimed.iter_mut().chain(self.published.iter_mut()) {
            *word = AtomicU64::new(0);
        }
    }
}

impl fmt::Debug for LogBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogBuffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The exclusive right to write some bytes of a log buffer. If it is dropped unpublished, the bytes
/// stay unreadable and cannot be claimed again before the buffer is reset.
///
/// The initial content is unspecified.
#[must_use = "bytes that are claimed and not published are lost until the buffer is reset"]
pub struct Claim {
    buffer: Arc<LogBuffer>,
    range: Range<usize>,
}

impl Claim {
    /// Returns the range of these bytes in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the buffer that contains these bytes.
    pub fn buffer(&self) -> &Arc<LogBuffer> {
        &self.buffer
    }

    /// Makes the bytes readable for everyone, and final.
    pub fn publish(self) {
        let units = self.range.start / CLAIM_UNIT..self.range.end / CLAIM_UNIT;
        for (word, bits) in words(units) {
            self.buffer.published[word].fetch_or(bits, Ordering::Release);
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `claim` checked that the range is inside the mapping.
        unsafe { self.buffer.pages.start().as_ptr().add(self.range.start) }
    }
}

impl Deref for Claim {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised (mappings start as zeroes), alive as long as `buffer`,
        // and this claim alone may touch them: it set their bits in `claimed`, and they are not
        // published while it exists.
        unsafe { std::slice::from_raw_parts(self.start(), self.range.len()) }
    }
}

impl DerefMut for Claim {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the claim is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.range.len()) }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("range", &self.range).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what threads share is tried with threads")]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LEN: usize = 64 << 10;

    #[test]
    fn every_range_of_a_small_bitmap_is_covered_exactly() {
        // Miri is slow; two words and their border are enough.
        let count = if cfg!(miri) { 68 } else { 140 };
        for start in if cfg!(miri) { 60 } else { 0 }..count {
            for end in start..count {
                let mut bits = [0u64; 3];
                for (word, mask) in words(start..end) {
                    assert_eq!(bits[word], 0);
                    bits[word] = mask;
                }
                for bit in 0..count {
                    let set = bits[bit / 64] >> (bit % 64) & 1 == 1;
                    assert_eq!(set, (start..end).contains(&bit));
                }
            }
        }
    }

    #[test]
    fn only_whole_units_inside_the_buffer_can_be_claimed() {
        let buffer = LogBuffer::new(LEN);
        #[expect(clippy::reversed_empty_ranges, reason = "that is the test")]
        let bad = [0..0, 0..100, 100..512, 512..0, LEN..LEN + 512, LEN - 512..LEN + 512];
        for range in bad {
            assert!(buffer.claim(range.clone()).is_none(), "{range:?}");
        }
        assert!(buffer.claim(0..LEN).is_some());
    }

    #[test]
    fn a_failed_claim_leaves_nothing_behind() {
        for taken in [0..512, 30 << 10..34 << 10, LEN - 512..LEN] {
            let buffer = LogBuffer::new(LEN);
            let claim = buffer.claim(taken.clone()).expect("free");
            assert!(buffer.claim(0..LEN).is_none());
            for unit in (0..LEN).step_by(CLAIM_UNIT) {
                let free = !taken.contains(&unit);
                assert_eq!(buffer.claim(unit..unit + CLAIM_UNIT).is_some(), free, "{unit}");
            }
            drop(claim);
        }
    }

    #[test]
    fn bytes_are_readable_from_publication_until_reset() {
        let mut buffer = LogBuffer::new(LEN);
        let mut claim = buffer.claim(512..1536).expect("free");
        claim.fill(7);
        assert_eq!(claim.range(), 512..1536);
        assert!(buffer.get(512..1536).is_none());
        claim.publish();
        for range in [512..1536, 600..601, 1535..1536, 1000..1030, 5..5] {
            let bytes = buffer.get(range.clone()).unwrap_or_else(|| panic!("{range:?}"));
            assert!(bytes.len() == range.len() && bytes.iter().all(|&byte| byte == 7));
        }
        #[expect(clippy::reversed_empty_ranges, reason = "that is the test")]
        let bad = [511..513, 1535..1537, 0..LEN, 9..8, LEN..LEN + 1];
        for range in bad {
            assert!(buffer.get(range.clone()).is_none(), "{range:?}");
        }
        drop(buffer.claim(2048..2560).expect("free"));
        assert!(buffer.get(2048..2560).is_none() && buffer.claim(2048..2560).is_none());

        Arc::get_mut(&mut buffer).expect("no claims").reset();
        assert!(buffer.get(512..1536).is_none());
        assert!(buffer.claim(0..LEN).is_some());
    }

    #[test]
    fn threads_share_a_buffer_cell_by_cell() {
        let cells = if cfg!(miri) { 16 } else { 64 };
        let buffer = LogBuffer::new(cells * 4096);
        let won = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 1..=3u8 {
                let (buffer, won) = (&buffer, &won);
                scope.spawn(move || {
                    for cell in 0..cells {
                        let range = cell * 4096..(cell + 1) * 4096;
                        if let Some(mut claim) = buffer.claim(range.clone()) {
                            claim.fill(thread);
                            claim.publish();
                            won.fetch_add(1, Ordering::Relaxed);
                        } else if let Some(bytes) = buffer.get(range) {
                            let owner = bytes[0];
                            assert!(owner != 0 && bytes.iter().all(|&byte| byte == owner));
                        }
                    }
                });
            }
        });
        // Claims of equal ranges within one word cannot make each other fail.
        assert_eq!(won.into_inner(), cells);
        assert!(buffer.get(0..cells * 4096).is_some());
    }
}
