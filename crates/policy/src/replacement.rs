//! S3-FIFO without lists: which blocks of a log are worth keeping, in four bits per block.
//!
//! The cache device is a log of segments. A block that the policy demotes stays readable until its
//! segment is reclaimed; blocks that it keeps are then reinserted into another segment. So segments
//! with few kept blocks are the cheapest to reclaim, and the policy keeps fewer blocks than the log
//! can hold: [`Shares`].
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction",
//! SOSP 2023) has a small queue for new blocks, a main queue for blocks used in the small one, and
//! ghosts of the unused ones ([`crate::GhostGroups`]). Here the small queue is the log itself: new
//! blocks lie in the segments in the order of arrival, and once enough have arrived, the oldest of
//! these segments is processed ([`Rank::leaves_small`]). The main queue is a clock that passes over
//! the other segments ([`Rank::passed`]) by number: the blocks it demotes lie together, so that
//! fewer blocks are reinserted. Order of age would do that too, but miss more on loops. A block
//! needs only a rank: its queue, and how often it was used there.
//!
//! The size of the small queue and the condition for promotion are [`S3FifoParameters`]. The
//! following is [`S3FifoParameters::S3_FIFO`]; there is another one while demoted blocks come
//! singly.
//!
//! It differs from the policy of the paper (`exact::s3_fifo`) in three ways. A demoted block that
//! is requested before its segment is reclaimed enters the main queue, at no write. A block of the
//! small queue that is overwritten moves to the end of it, as its place in the log does. The small
//! queue is a thirty-second of the kept blocks, not a tenth, because demoted blocks stay for a
//! while anyway.

use forebay_core::ReplacementKind;

/// A block's queue and uses, in 4 bits of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank(u8);

/// Uses are counted up to this number.
const MOST_USES: u8 = 3;
const SMALL: u8 = 1;
const MAIN: u8 = SMALL + MOST_USES + 1;

impl Rank {
    /// Demoted: may be evicted.
    pub const EVICTABLE: Rank = Rank(0);
    /// New, in the small queue.
    pub const SMALL: Rank = Rank(SMALL);
    /// In the main queue, unused since.
    pub const MAIN: Rank = Rank(MAIN);

    /// Decodes stored bits; unknown values become [`Rank::MAIN`].
    #[inline]
    pub fn from_bits(bits: u8) -> Self {
        if bits > MAIN + MOST_USES { Rank::MAIN } else { Rank(bits) }
    }

    /// Encodes the rank: 0 to 15, and 0 only if the block is demoted.
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether the policy keeps the block, so that reclaim reinserts it.
    #[inline]
    pub fn is_kept(self) -> bool {
        self.0 != 0
    }

    /// Whether the block is in the main queue.
    #[inline]
    pub fn is_main(self) -> bool {
        self.0 >= MAIN
    }

    fn uses(self) -> u8 {
        match self.0 {
            0 => 0,
            bits if bits < MAIN => bits - SMALL,
            bits => bits - MAIN,
        }
    }

    /// Returns the rank after a use.
    #[inline]
    #[must_use]
    pub fn used(self) -> Rank {
        match self {
            Rank::EVICTABLE => Rank::MAIN,
            rank if rank.uses() < MOST_USES => Rank(rank.0 + 1),
            rank => rank,
        }
    }

    /// Returns the rank after the end of the small queue, where `promoting_uses` uses promote a
    /// block; unchanged for blocks not in it.
    #[must_use]
    pub fn leaves_small(self, promoting_uses: u8) -> Rank {
        match self {
            rank if !rank.is_kept() || rank.is_main() => rank,
            rank if rank.uses() >= promoting_uses => Rank::MAIN,
            _ => Rank::EVICTABLE,
        }
    }

    /// Returns the rank after the main queue's clock has passed; unchanged for blocks not in it.
    #[must_use]
    pub fn passed(self) -> Rank {
        match self {
            Rank::MAIN => Rank::EVICTABLE,
            rank if rank.is_main() => Rank(rank.0 - 1),
            rank => rank,
        }
    }

    /// Returns the rank after reinsertion into another segment: the block has left the order of the
    /// small queue.
    #[must_use]
    pub fn reinserted(self) -> Rank {
        if self.is_kept() && !self.is_main() { Rank::MAIN } else { self }
    }
}

/// Parameters of S3-FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3FifoParameters {
    /// Divisor for the size of the small queue: 32 for a thirty-second of the kept blocks.
    pub small: u64,
    /// Uses in the small queue that promote a block to the main queue.
    pub promoting_uses: u8,
    /// Whether a block of the small queue that is overwritten moves to the end of it, as its place
    /// in a log does.
    pub renews: bool,
}

impl S3FifoParameters {
    /// The rule of the paper, for caches without a log.
    pub const PAPER: S3FifoParameters =
        S3FifoParameters { small: 10, promoting_uses: 2, renews: false };

    /// The rule of the log.
    pub const S3_FIFO: S3FifoParameters =
        S3FifoParameters { small: 32, promoting_uses: 2, renews: true };

    /// The rule of the log while demoted blocks have few neighbours among the ghosts. Ghosts then
    /// reach back over fewer blocks, so blocks get more time in the small queue. And each use is
    /// then a request of its own, so one use is enough for promotion.
    pub const S3_FIFO_OF_SINGLE_BLOCKS: S3FifoParameters =
        S3FifoParameters { small: 4, promoting_uses: 1, renews: true };
}

/// Returns the percentage of the blocks which fit in the log that a policy keeps.
///
/// With a higher percentage, reclaimed segments are fuller and more is reinserted, see
/// `docs/notebook/policies.md`. Policies with lists should hit as well as in a cache without a log.
/// Random replacement evicts blocks evenly over all segments, so with a higher share reclaim would
/// gain little from any of them.
pub fn kept_percent(kind: ReplacementKind) -> u64 {
    match kind {
        ReplacementKind::S3Fifo => 88,
        ReplacementKind::Random => 60,
        _ => 90,
    }
}

/// Number of blocks that a cache in a log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Maximum number of kept blocks. Fewer than the log holds, so that some segments always have
    /// few kept blocks.
    pub kept: u64,
    /// Blocks that fit in the log; at least 1.
    pub room: u64,
}

impl Shares {
    /// Computes the shares of a policy for a log of `room` blocks.
    pub fn of(room: u64, kind: ReplacementKind) -> Self {
        Shares::with(room, kept_percent(kind))
    }

    fn with(room: u64, percent: u64) -> Self {
        Shares { kept: (room * percent / 100).max(1), room: room.max(1) }
    }

    /// Returns the share of the small queue, `1 / part` of the kept blocks. While the queue has
    /// more blocks, they are demoted first.
    pub fn small(&self, part: u64) -> u64 {
        (self.kept / part.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_rises_by_use_and_falls_when_it_is_passed() {
        let mut rank = Rank::SMALL;
        assert_eq!(rank.leaves_small(2), Rank::EVICTABLE);
        rank = rank.used();
        assert_eq!(rank.leaves_small(2), Rank::EVICTABLE);
        rank = rank.used();
        assert_eq!(rank.leaves_small(2), Rank::MAIN);
        assert_eq!(rank.passed(), rank, "the clock passes over the small queue");
        rank = rank.used().used();
        assert_eq!(rank, rank.used(), "more is not counted");
        assert_eq!(rank.reinserted(), Rank::MAIN);

        let mut rank = Rank::MAIN.used().used().used().used();
        assert_eq!(rank.leaves_small(2), rank);
        for _ in 0..MOST_USES {
            rank = rank.passed();
            assert!(rank.is_main());
        }
        assert_eq!(rank, Rank::MAIN);
        assert_eq!(rank.passed(), Rank::EVICTABLE);
        assert_eq!(Rank::EVICTABLE.passed(), Rank::EVICTABLE);
        assert_eq!(Rank::EVICTABLE.used(), Rank::MAIN);
        assert_eq!(Rank::EVICTABLE.reinserted(), Rank::EVICTABLE);
    }

    #[test]
    fn every_rank_fits_into_four_bits_and_comes_back() {
        for bits in 0..16 {
            let rank = Rank::from_bits(bits);
            assert_eq!(rank.is_kept(), bits != 0);
            for next in [rank, rank.used(), rank.passed(), rank.leaves_small(2), rank.reinserted()]
            {
                assert!(next.bits() < 16);
                assert_eq!(Rank::from_bits(next.bits()), next);
            }
        }
    }

    #[test]
    fn even_the_smallest_cache_keeps_something() {
        assert_eq!(Shares::with(0, 75), Shares { kept: 1, room: 1 });
        let shares = Shares::with(1000, 80);
        assert_eq!(shares, Shares { kept: 800, room: 1000 });
        assert_eq!((shares.small(32), shares.small(0), shares.small(10_000)), (25, 800, 1));
    }
}
