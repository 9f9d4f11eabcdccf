//! Streams that a client spreads over connections on several lanes: one table for all of them.
//!
//! No lane sees neighbouring requests of such a stream, and those of several connections arrive in
//! any order. The table therefore has one word for each region of the volume: the end of the stream
//! in it, its length, and how many bytes are missing so far. The rules:
//!
//! - A request near a stream's end continues the stream. In front of it, it leaves a hole; behind
//!   it, it fills one.
//! - The length of a stream is halved if it has too many holes or accesses the same place twice. So
//!   random requests to a small area, all near the end of some stream, never add up to a long one.
//!
//! Requests that change the table write to memory that lanes share. Lanes therefore pass on only
//! requests that cannot be answered at once, and those of at least [`SharedStreams::LEAST`] bytes.
//! Lanes update the table without a lock; of two requests to one region at the same moment, one may
//! be lost.

use std::sync::atomic::{AtomicU64, Ordering};

/// Regions have 2^22 bytes.
const REGION_SHIFT: u32 = 22;
const SLOTS: usize = 4096;
/// Lengths and distances are in units of 2^9 bytes, runs in units of 2^12.
const UNIT_SHIFT: u32 = 9;
const RUN_SHIFT: u32 = 12;
/// Most holes of a stream, and largest distance of a request from its end, in lengths of the
/// request.
const NEAR: u64 = 16;
/// The same in bytes.
const NEAREST: u64 = 1 << 20;
/// Minimum length in bytes of another stream in the same slot that is halved instead of forgotten.
const WORTH_KEEPING: u64 = 1 << 20;

/// The stream of one region, unpacked from a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegionStream {
    /// Distinguishes regions that share a slot.
    tag: u64,
    /// End of the stream in the region, in bytes.
    end: u64,
    /// Bytes accessed.
    run: u64,
    /// Bytes before the end that were skipped.
    holes: u64,
}

const TAG_BITS: u32 = 14;
const END_BITS: u32 = REGION_SHIFT - UNIT_SHIFT;
const HOLE_BITS: u32 = 13;
const RUN_BITS: u32 = 24;

impl RegionStream {
    /// Unpacks a word; `None` if it is empty.
    fn unpack(word: u64) -> Option<Self> {
        let field = |shift: u32, bits: u32| (word >> shift) & ((1 << bits) - 1);
        (word != 0).then(|| RegionStream {
            tag: field(0, TAG_BITS),
            end: field(TAG_BITS, END_BITS) << UNIT_SHIFT,
            holes: field(TAG_BITS + END_BITS, HOLE_BITS) << UNIT_SHIFT,
            run: field(TAG_BITS + END_BITS + HOLE_BITS, RUN_BITS) << RUN_SHIFT,
        })
    }

    fn pack(self) -> u64 {
        let field = |value: u64, bits: u32| value.min((1 << bits) - 1);
        field(self.tag, TAG_BITS)
            | field(self.end >> UNIT_SHIFT, END_BITS) << TAG_BITS
            | field(self.holes >> UNIT_SHIFT, HOLE_BITS) << (TAG_BITS + END_BITS)
            | field(self.run >> RUN_SHIFT, RUN_BITS) << (TAG_BITS + END_BITS + HOLE_BITS)
    }
}

/// The streams of one volume. 32 KiB of memory.
pub struct SharedStreams(Box<[AtomicU64]>);

impl Default for SharedStreams {
    fn default() -> Self {
        SharedStreams((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

/// Returns the slot and the tag of a region. Tags are not 0, so no stream packs to an empty word.
fn place(is_write: bool, region: u64) -> (usize, u64) {
    let hash = (region * 2 + u64::from(is_write) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let tag = (hash >> 38) & ((1 << TAG_BITS) - 1);
    ((hash >> 52) as usize % SLOTS, tag.max(1))
}

impl SharedStreams {
    /// Requests of at least this many bytes are worth a write to shared memory, even if they can be
    /// answered at once.
    pub const LEAST: u64 = 16 << 10;

    /// Records a request for `len` bytes at `offset`. Returns how many bytes of its stream came
    /// before it; 0 if it continues none.
    pub fn observe(&self, is_write: bool, offset: u64, len: u64) -> u64 {
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else { return 0 };
        let near = len.saturating_mul(NEAR).min(NEAREST.max(len.saturating_mul(2)));
        let region = offset >> REGION_SHIFT;
        let before = offset.saturating_sub(near) >> REGION_SHIFT;
        let behind = offset.saturating_add(near) >> REGION_SHIFT;
        for (number, candidate) in [region, before, behind].into_iter().enumerate() {
            if number > 0 && candidate == region {
                continue;
            }
            let (slot, tag) = place(is_write, candidate);
            let word = &self.0[slot];
            let found = RegionStream::unpack(word.load(Ordering::Relaxed));
            let Some(stream) = found.filter(|stream| stream.tag == tag) else { continue };
            let at = (candidate << REGION_SHIFT) + stream.end;
            if at.abs_diff(offset) <= near {
                return self.go_on(is_write, (word, at, stream), offset..end, near);
            }
        }
        self.start(is_write, end, len);
        0
    }

    /// Continues a stream that ends `at`.
    fn go_on(
        &self,
        is_write: bool,
        (word, at, mut stream): (&AtomicU64, u64, RegionStream),
        request: std::ops::Range<u64>,
        near: u64,
    ) -> u64 {
        let len = request.end - request.start;
        let before = stream.run;
        let is_late = request.start < at;
        let is_real = if is_late {
            let fills = stream.holes >= len;
            stream.holes = stream.holes.saturating_sub(len);
            fills
        } else {
            stream.holes += request.start - at;
            stream.holes <= near.saturating_mul(2)
        };
        if is_real {
            stream.run = before.saturating_add(len);
        } else {
            (stream.run, stream.holes) = (before / 2, 0);
        }
        let end = at.max(request.end);
        let (slot, tag) = place(is_write, end >> REGION_SHIFT);
        let next = &self.0[slot];
        if !std::ptr::eq(next, word) {
            word.store(0, Ordering::Relaxed);
        }
        (stream.tag, stream.end) = (tag, end & ((1 << REGION_SHIFT) - 1));
        next.store(stream.pack(), Ordering::Relaxed);
        if is_real { before } else { 0 }
    }

    fn start(&self, is_write: bool, end: u64, len: u64) {
        let (slot, tag) = place(is_write, end >> REGION_SHIFT);
        let word = &self.0[slot];
        let new = match RegionStream::unpack(word.load(Ordering::Relaxed)) {
            Some(other) if other.run >= WORTH_KEEPING => {
                RegionStream { run: other.run / 2, ..other }
            }
            _ => RegionStream { tag, end: end & ((1 << REGION_SHIFT) - 1), run: len, holes: 0 },
        };
        word.store(new.pack(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Returns the share of a stream's bytes after the first 4 MiB that are recognised as part of a
    /// stream, if its requests arrive in the order that `shuffle` gives each window.
    fn found(len: u64, window: usize, noise: u64, seed: u64) -> f64 {
        let table = SharedStreams::default();
        let mut rng = fastrand::Rng::with_seed(seed);
        let (base, total) = (3 << 30, 64 * MIB);
        let mut order: Vec<u64> = (0..total / len).collect();
        order.chunks_mut(window).for_each(|chunk| rng.shuffle(chunk));
        let (mut long, mut all) = (0u32, 0u32);
        for number in order {
            let run = table.observe(false, base + number * len, len);
            for _ in 0..noise {
                let at = (1 << 41) + rng.u64(0..1 << 28) * 4 * KIB;
                assert!(table.observe(rng.bool(), at, 4 * KIB) < 4 * MIB);
            }
            if number * len >= 4 * MIB {
                (long, all) = (long + u32::from(run >= 4 * MIB), all + 1);
            }
        }
        f64::from(long) / f64::from(all)
    }

    #[test]
    fn words_hold_streams() {
        let stream = RegionStream { tag: 77, end: 3 * MIB + 512, run: 9 << 30, holes: 65 * KIB };
        assert_eq!(RegionStream::unpack(stream.pack()), Some(stream));
        assert_eq!(RegionStream::unpack(0), None);
        let most = RegionStream { run: u64::MAX, holes: u64::MAX, ..stream };
        let most = RegionStream::unpack(most.pack()).expect("not empty");
        assert!(most.run > 1 << 35 && most.holes > 4 * MIB - KIB);
    }

    #[test]
    fn streams_over_a_few_connections_are_found_in_any_order() {
        for (len, window) in [(128 * KIB, 4), (128 * KIB, 8), (4 * KIB, 8), (4 * KIB, 16), (MIB, 2)]
        {
            let share = found(len, window, 0, 1);
            assert!(share > 0.9, "{len} in windows of {window}: {share}");
        }
    }

    #[test]
    fn streams_are_found_among_random_requests() {
        for (len, noise) in [(128 * KIB, 10), (128 * KIB, 30), (4 * KIB, 1)] {
            let share = found(len, 8, noise, 2);
            assert!(share > 0.6, "{len} with {noise} random requests each: {share}");
        }
    }

    #[test]
    fn requests_of_a_single_order_are_counted_exactly() {
        let table = SharedStreams::default();
        for number in 0..10_000 {
            assert_eq!(table.observe(true, number * 4096, 4096), number * 4096);
            assert_eq!(table.observe(false, number * 4096, 4096), number * 4096);
        }
    }

    #[test]
    fn random_requests_to_any_area_are_no_stream() {
        for area in [64 * KIB, MIB, 8 * MIB, 100 * MIB, 1 << 40] {
            for len in [512, 4 * KIB, 64 * KIB, 256 * KIB] {
                let table = SharedStreams::default();
                let mut rng = fastrand::Rng::with_seed(area ^ len);
                let places = (area / len).max(1);
                let runs = (0..20_000).map(|_| table.observe(false, rng.u64(0..places) * len, len));
                let long = runs.filter(|run| *run >= 4 * MIB).count();
                assert!(long < 20, "{long} of {len} in {area}");
            }
        }
    }

    #[test]
    fn a_loop_over_a_small_range_is_no_stream() {
        let table = SharedStreams::default();
        let mut longest = 0;
        for _ in 0..100 {
            for number in 0..256 {
                longest = longest.max(table.observe(false, number * 4096, 4096));
            }
        }
        assert!(longest < 4 * MIB, "{longest}");
    }

    #[test]
    fn requests_at_the_end_of_all_addresses_do_no_harm() {
        let table = SharedStreams::default();
        for offset in [u64::MAX, u64::MAX - 4096, u64::MAX - 1, 0] {
            table.observe(true, offset, 4096);
            table.observe(true, offset, u64::MAX);
            table.observe(false, offset, 0);
        }
    }
}
