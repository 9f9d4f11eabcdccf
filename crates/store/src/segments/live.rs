//! Counts of the index entries that point into each segment.
//!
//! Every write changes two of these numbers: that of the segment to which it is appended, and that
//! of the segment with the version that it replaces. Each lane therefore has counters of its own,
//! and only the sum over all lanes is meaningful.

use std::cell::Cell;

use forebay_core::sync::atomic::{AtomicU64, Ordering};
use forebay_lane::turns;

/// Index entries that point into a segment. A segment has at most 2^19 cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Number of entries.
    pub blocks: u32,
    /// Number of dirty entries.
    pub dirty: u32,
    /// Number of entries with a rank above 0: the replacement policy still wants to keep them.
    pub kept: u32,
}

impl Live {
    const BITS: u32 = 21;
    pub(super) const DIRTY: u64 = 1 << Live::BITS;
    pub(super) const KEPT: u64 = 1 << (2 * Live::BITS);

    #[inline]
    pub(super) fn packed(self) -> u64 {
        u64::from(self.blocks)
            + u64::from(self.dirty) * Live::DIRTY
            + u64::from(self.kept) * Live::KEPT
    }

    /// Decodes a sum. While an entry that one lane has added is removed by another, a number may be
    /// seen below 0; it counts as 0.
    pub(super) fn unpacked(packed: u64) -> Self {
        let mut rest = packed as i64;
        let mut next = |bits: u32| {
            let number = rest << (64 - bits) >> (64 - bits);
            rest = (rest - number) >> bits;
            number.max(0) as u32
        };
        Live { blocks: next(Live::BITS), dirty: next(Live::BITS), kept: next(Live::BITS + 1) }
    }

    /// Returns the counts of one entry.
    #[inline]
    pub fn one(dirty: bool, rank: u8) -> Self {
        Live { blocks: 1, dirty: dirty.into(), kept: (rank > 0).into() }
    }
}

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// Assigns this thread to the lane with this number for counting. Several threads may share a lane.
pub(crate) fn counts_as(lane: u16) {
    LANE.set(lane.into());
}

/// The counts of all segments, packed by [`Live`] so that one atomic operation updates all counts
/// of a segment.
///
/// The sum of a segment is read from one lane after the other. From a segment without a RAM image
/// entries are only removed, so the sum read is never below the true one: a segment that seems
/// empty is empty (invariant 8). Entries that are loaded after a start are added to such segments
/// as well, but none is reclaimed meanwhile.
pub(super) struct LiveCounts(Box<[Box<[AtomicU64]>]>);

impl LiveCounts {
    pub(super) fn new(segments: u32, lanes: usize) -> Self {
        let counts = || (0..segments).map(|_| AtomicU64::new(0)).collect();
        LiveCounts((0..lanes.max(1)).map(|_| counts()).collect())
    }

    /// Makes counts like [`LiveCounts::new`]. Other tasks of the lane run meanwhile.
    pub(super) async fn in_turns(segments: u32, lanes: usize) -> Self {
        let mut all = Vec::new();
        for _ in 0..lanes.max(1) {
            all.push(turns::filled(segments as usize, |_| AtomicU64::new(0)).await.into());
        }
        LiveCounts(all.into())
    }

    pub(super) fn lanes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes_for(segments: u32, lanes: usize) -> u64 {
        u64::from(segments) * lanes.max(1) as u64 * size_of::<AtomicU64>() as u64
    }

    #[inline]
    fn own(&self, segment: usize) -> &AtomicU64 {
        &self.0[LANE.get() % self.0.len()][segment]
    }

    #[inline]
    pub(super) fn add(&self, segment: usize, packed: u64, order: Ordering) {
        self.own(segment).fetch_add(packed, order);
    }

    #[inline]
    pub(super) fn sub(&self, segment: usize, packed: u64, order: Ordering) {
        self.own(segment).fetch_sub(packed, order);
    }

    pub(super) fn set(&self, segment: usize, live: Live) {
        for (lane, counts) in self.0.iter().enumerate() {
            counts[segment].store(if lane == 0 { live.packed() } else { 0 }, Ordering::Relaxed);
        }
    }

    pub(super) fn of(&self, segment: usize, order: Ordering) -> Live {
        let lanes = self.0.iter().map(|counts| counts[segment].load(order));
        Live::unpacked(lanes.fold(0, u64::wrapping_add))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn only_the_sum_of_the_lanes_means_anything() {
        let counts = LiveCounts::new(2, 2);
        let on = |lane: u16| {
            counts_as(lane);
            &counts
        };
        let of = || counts.of(1, Ordering::SeqCst);
        on(0).add(1, Live { blocks: 3, dirty: 2, kept: 1 }.packed(), Ordering::Relaxed);
        on(1).sub(1, Live::one(true, 1).packed(), Ordering::SeqCst);
        assert_eq!(of(), Live { blocks: 2, dirty: 1, kept: 0 });
        // A reader sees this between the two steps of another lane.
        on(1).sub(1, Live::DIRTY * 2 + Live::KEPT, Ordering::Relaxed);
        assert_eq!(of(), Live { blocks: 2, dirty: 0, kept: 0 });
        on(0).add(1, Live::DIRTY * 3 + Live::KEPT * 2, Ordering::Relaxed);
        assert_eq!(of(), Live { blocks: 2, dirty: 2, kept: 1 });
        on(0).sub(1, 3, Ordering::SeqCst);
        assert_eq!(of(), Live { blocks: 0, dirty: 2, kept: 1 });
        counts.set(1, Live { blocks: 9, dirty: 8, kept: 7 });
        assert_eq!(
            (of(), counts.of(0, Ordering::SeqCst)),
            (Live { blocks: 9, dirty: 8, kept: 7 }, Live::default())
        );
    }
}
