//! Hints to the CPU about future memory accesses, without any other effect.

/// Bytes in a cache line, for the purpose of hints.
const LINE: usize = 64;

/// An address that may be accessed soon. It is never dereferenced, so it may outlive its target.
#[derive(Clone, Copy, Debug)]
pub struct Spot(usize);

impl Spot {
    /// Returns the address of `value`.
    pub fn of<T: ?Sized>(value: &T) -> Self {
        Spot(std::ptr::from_ref(value).cast::<u8>().addr())
    }

    /// Returns the address in a pointer.
    pub fn at(place: std::ptr::NonNull<u8>) -> Self {
        Spot(place.as_ptr().addr())
    }

    /// Returns the address `bytes` bytes further on.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Spot(self.0.wrapping_add(bytes))
    }
}

/// Starts to prefetch `bytes` bytes from `spot` on into the CPU's cache, without waiting for them.
#[inline]
pub fn fetch(spot: Spot, bytes: usize) {
    for line in 0..bytes.div_ceil(LINE) {
        fetch_line(spot.plus(line * LINE));
    }
}

#[inline]
fn fetch_line(spot: Spot) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and does not fault, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(spot.0));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = spot;
}

/// Like [`fetch`] of one line, for a line that will be written, as when a lock is taken: it is
/// removed from the caches of all other CPUs, so that the write does not have to wait for that.
#[inline]
pub fn fetch_to_write(spot: Spot) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and does not fault, whatever the address. CPUs of this
    // architecture without this instruction ignore it. The compiler's intrinsics for it require
    // newer CPUs.
    unsafe {
        core::arch::asm!(
            "prefetchw byte ptr [{}]",
            in(reg) spot.0,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = spot;
}

/// Copies like `copy_from_slice`, bypassing the CPU's caches where possible: for large data that is
/// not accessed soon. Not reading memory before overwriting it halves the traffic, and the caches
/// keep their content.
///
/// # Panics
/// The lengths differ.
pub fn copy_past_caches(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "what is copied is as long as its place");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (front, middle, _) = lines(into);
        let (first, rest) = from.split_at(front);
        let (whole, last) = rest.split_at(middle);
        let (start, rest) = into.split_at_mut(front);
        let (lines, end) = rest.split_at_mut(middle);
        start.copy_from_slice(first);
        stream(lines, whole);
        end.copy_from_slice(last);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    into.copy_from_slice(from);
}

/// Returns the bytes before the first whole line, in whole lines, and after them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn lines(bytes: &[u8]) -> (usize, usize, usize) {
    let front = bytes.as_ptr().align_offset(LINE).min(bytes.len());
    let middle = (bytes.len() - front) / LINE * LINE;
    (front, middle, bytes.len() - front - middle)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(into: &mut [u8], from: &[u8]) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    for (into, from) in into.chunks_exact_mut(LINE).zip(from.chunks_exact(LINE)) {
        let (into, from) = (into.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: both chunks are `LINE` bytes, four vectors of 16; `into` is aligned to `LINE`
        // because it is cut from the first aligned byte on in whole lines. SSE2 is part of x86-64.
        unsafe {
            for part in 0..LINE / 16 {
                _mm_stream_si128(into.add(part), _mm_loadu_si128(from.add(part)));
            }
        }
    }
    // SAFETY: part of x86-64. Later operations, such as releasing a lock, must not overtake the
    // copy: only this orders streaming stores.
    unsafe { _mm_sfence() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_past_the_caches_are_copies() {
        let source: Vec<u8> = (0..2000u32).map(|number| (number * 7 % 251) as u8).collect();
        for start in [0, 1, 15, 16, 63, 64, 65] {
            for len in [0, 1, 17, 63, 64, 65, 127, 128, 1000, 1500] {
                let mut into = vec![0xee; 2000];
                copy_past_caches(&mut into[start..start + len], &source[3..3 + len]);
                assert_eq!(into[start..start + len], source[3..3 + len], "{start} {len}");
                assert!(into[..start].iter().all(|&byte| byte == 0xee));
                assert!(into[start + len..].iter().all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn hints_may_point_anywhere() {
        fetch(Spot::of(&7u64), 4096);
        fetch(Spot::of::<[u8]>(&[]).plus(usize::MAX / 2), 64);
        let mut number = 7u64;
        fetch_to_write(Spot::of(&number));
        fetch_to_write(Spot::of(&number).plus(usize::MAX / 2));
        number += 1;
        assert_eq!(number, 8);
    }
}
