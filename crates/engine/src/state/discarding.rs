//! Zeroing of the origin: the size that is zeroed under one range lock, and the blocks being
//! zeroed.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::OriginBlock;
use forebay_device::DeviceOp;
use parking_lot::Mutex;

/// The number of bytes to zero under one range lock: its limits, and the first value. Other
/// requests to the range wait meanwhile.
const LEAST_PIECE: u64 = 1 << 20;
const FIRST_PIECE: u64 = 4 << 20;
const MOST_PIECE: u64 = 1 << 30;

/// Pieces that take longer become smaller; those that take much less become larger.
pub(crate) const LONG_PIECE: Duration = Duration::from_millis(50);

/// The method by which a range of the origin is zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroBy {
    /// The range is deallocated.
    Discard,
    /// The range stays allocated; this may take as long as writing it.
    WriteZeroes,
}

impl ZeroBy {
    /// Returns the operation for a range in bytes.
    pub(crate) fn op(self, range: &Range<u64>) -> DeviceOp {
        let (offset, len) = (range.start, range.end - range.start);
        match self {
            ZeroBy::Discard => DeviceOp::Discard { offset, len },
            ZeroBy::WriteZeroes => DeviceOp::WriteZeroes { offset, len },
        }
    }
}

/// See the module. Shared by the requests of all lanes.
pub(crate) struct Discarding {
    pieces: [AtomicU64; 2],
    /// Number of `ranges`, so that a look-up takes no lock if there are none.
    count: AtomicU64,
    ranges: Mutex<Vec<Range<OriginBlock>>>,
}

impl Default for Discarding {
    fn default() -> Self {
        let pieces = [FIRST_PIECE; 2].map(AtomicU64::new);
        Discarding { pieces, count: AtomicU64::new(0), ranges: Mutex::default() }
    }
}

impl Discarding {
    /// Returns the bytes of the next piece.
    pub(crate) fn piece(&self, by: ZeroBy) -> u64 {
        self.pieces[by as usize].load(Ordering::Relaxed)
    }

    /// Records how long a piece of `piece` bytes took.
    pub(crate) fn took(&self, by: ZeroBy, piece: u64, took: Duration) {
        let next = match took {
            took if took > LONG_PIECE => (piece / 2).max(LEAST_PIECE),
            took if took < LONG_PIECE / 8 => (piece * 2).min(MOST_PIECE),
            _ => piece,
        };
        self.pieces[by as usize].store(next, Ordering::Relaxed);
    }

    /// Records that blocks are being zeroed on the origin, until the result is dropped. A task that
    /// looks one of them up in the index later finds them here.
    pub(crate) fn begin(&self, blocks: Range<OriginBlock>) -> DiscardGuard<'_> {
        self.ranges.lock().push(blocks.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        DiscardGuard(self, blocks)
    }

    /// Returns whether a block is being zeroed, so that data written to the origin before may be
    /// gone.
    #[inline]
    pub(crate) fn concerns(&self, block: OriginBlock) -> bool {
        self.count.load(Ordering::SeqCst) > 0
            && self.ranges.lock().iter().any(|range| range.contains(&block))
    }
}

/// See [`Discarding::begin`].
pub(crate) struct DiscardGuard<'a>(&'a Discarding, Range<OriginBlock>);

impl Drop for DiscardGuard<'_> {
    fn drop(&mut self) {
        let mut ranges = self.0.ranges.lock();
        if let Some(at) = ranges.iter().position(|range| *range == self.1) {
            ranges.swap_remove(at);
            self.0.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size in MiB that pieces reach in the long run if zeroing 1 MiB takes `each`.
    fn settled(each: Duration) -> u64 {
        let discarding = Discarding::default();
        for _ in 0..20 {
            let piece = discarding.piece(ZeroBy::Discard);
            discarding.took(ZeroBy::Discard, piece, each * (piece >> 20) as u32);
        }
        assert_eq!(discarding.piece(ZeroBy::WriteZeroes), FIRST_PIECE);
        discarding.piece(ZeroBy::Discard) >> 20
    }

    #[test]
    fn pieces_grow_while_others_wait_only_briefly() {
        let [fast, slow, hopeless] = [1, 20, 5000].map(Duration::from_millis).map(settled);
        assert_eq!((fast, slow, hopeless), (8, 2, 1));
        assert_eq!(settled(Duration::from_nanos(10)), MOST_PIECE >> 20);
    }

    #[test]
    fn blocks_are_being_zeroed_until_the_piece_ends() {
        let discarding = Discarding::default();
        let concerned = |block| discarding.concerns(OriginBlock(block));
        assert!(!concerned(5));
        let one = discarding.begin(OriginBlock(5)..OriginBlock(7));
        let other = discarding.begin(OriginBlock(9)..OriginBlock(10));
        assert_eq!([4, 5, 6, 7, 9].map(concerned), [false, true, true, false, true]);
        drop(one);
        assert_eq!([5, 9].map(concerned), [false, true]);
        drop(other);
        assert!(!concerned(9));
    }
}
