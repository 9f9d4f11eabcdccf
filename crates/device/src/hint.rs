//! What tells the CPU how memory is about to be used, and changes nothing else.

/// Bytes in a cache line, as far as hints are concerned.
const LINE: usize = 64;

/// Where something lies that somebody may want to look at soon. Nothing is ever read through it, so
/// it may outlive what it points to.
#[derive(Clone, Copy, Debug)]
pub struct Spot(usize);

impl Spot {
    /// The place of `value`.
    pub fn of<T: ?Sized>(value: &T) -> Self {
        Spot(std::ptr::from_ref(value).cast::<u8>().addr())
    }

    /// The place that a pointer points to.
    pub fn at(place: std::ptr::NonNull<u8>) -> Self {
        Spot(place.as_ptr().addr())
    }

    /// The spot so many bytes behind this one.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Spot(self.0.wrapping_add(bytes))
    }
}

/// Starts bringing `bytes` bytes from `spot` on into the CPU's cache, without waiting for them.
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

/// As [`fetch`] of one line, for somebody who is going to write it, as who takes a lock does: it
/// leaves the caches of all other CPUs, and nobody has to wait for that later.
#[inline]
pub fn fetch_to_write(spot: Spot) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and does not fault, whatever the address. A CPU of this
    // architecture that does not know this one does nothing. The compiler has no way to say it that
    // does not ask for newer CPUs.
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

/// Copies as `copy_from_slice` does, round the CPU's caches where it can: for much data that nobody
/// looks at soon. Memory that is not read before it is overwritten costs half the traffic, and what
/// is in the caches stays there.
///
/// # Panics
/// If the lengths differ.
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

/// Bytes before the first whole line, in whole lines, and after them.
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
    // SAFETY: part of x86-64. What follows, such as giving back a lock, must not overtake the
    // copy: streaming stores are ordered by this alone.
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
