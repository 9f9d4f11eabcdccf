//! S3-FIFO without a list: which blocks of a log are worth keeping, in four bits of each.
//!
//! The cache device is a log of segments. A policy gives blocks up; what it gave up stays readable
//! until its segment is reclaimed, and what it keeps is reinserted to another segment then. So
//! segments of which little is kept are reclaimed, and a policy keeps fewer blocks than there is room
//! for: [`Shares`].
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction",
//! SOSP 2023) has a small queue for new blocks, a main queue for those that were used in it, and
//! ghosts of those that were not. Here the small queue is the log itself: new blocks lie in the
//! segments in the order in which they came, and when enough of them have come, the oldest such
//! segment is passed ([`Rank::leaves_small`]). The main queue is a clock that goes round the other
//! segments ([`Rank::passed`]), by their numbers: what it gives up lies together, so that less is reinserted.
//! The order of their ages would do that too, but miss more on loops. All that a block needs is a
//! rank: which of the two it is in, and how often it was used there.
//!
//! It differs from the policy of the paper (`exact::s3_fifo`) in three ways. A block that was given
//! up and is asked for before its segment is reclaimed enters the main queue, and costs no write. A
//! block of the small queue that is overwritten goes to the end of it, as its place in the log does.
//! The small queue is a thirty-second, not a tenth, because what was given up stays for a while anyway.

/// What speaks for keeping a block: 4 bits in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank(u8);

/// Uses that are counted.
const MOST_USES: u8 = 3;
/// Uses in the small queue that lead to the main one.
const PROMOTING_USES: u8 = 2;
const SMALL: u8 = 1;
const MAIN: u8 = SMALL + MOST_USES + 1;

impl Rank {
    /// Nothing.
    pub const EVICTABLE: Rank = Rank(0);
    /// The block is new.
    pub const SMALL: Rank = Rank(SMALL);
    /// The block has come back, and was not used since.
    pub const MAIN: Rank = Rank(MAIN);

    /// The rank that is stored as `bits`; unknown ones count as [`Rank::MAIN`].
    #[inline]
    pub fn from_bits(bits: u8) -> Self {
        if bits > MAIN + MOST_USES { Rank::MAIN } else { Rank(bits) }
    }

    /// What is stored: 0 to 15, and 0 only if the block is given up.
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether the block is to be kept.
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

    /// After a use.
    #[inline]
    #[must_use]
    pub fn used(self) -> Rank {
        match self {
            Rank::EVICTABLE => Rank::MAIN,
            rank if rank.uses() < MOST_USES => Rank(rank.0 + 1),
            rank => rank,
        }
    }

    /// At the end of the small queue. Others stay as they are.
    #[must_use]
    pub fn leaves_small(self) -> Rank {
        match self {
            rank if !rank.is_kept() || rank.is_main() => rank,
            rank if rank.uses() >= PROMOTING_USES => Rank::MAIN,
            _ => Rank::EVICTABLE,
        }
    }

    /// When the clock of the main queue passes. Others stay as they are.
    #[must_use]
    pub fn passed(self) -> Rank {
        match self {
            Rank::MAIN => Rank::EVICTABLE,
            rank if rank.is_main() => Rank(rank.0 - 1),
            rank => rank,
        }
    }

    /// When the block is reinserted to another segment: it has left the small queue's order.
    #[must_use]
    pub fn reinserted(self) -> Rank {
        if self.is_kept() && !self.is_main() { Rank::MAIN } else { self }
    }
}

/// How many blocks a cache in a log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// At most so many: of what lies in the log, less than all, so that there are always segments
    /// of which little is kept.
    pub kept: u64,
    /// In the small queue, if there are more in the main one.
    pub small: u64,
    /// Blocks that are remembered after they were given up.
    pub ghosts: u64,
}

impl Shares {
    /// For a log in which `room` blocks can live, of which a policy keeps `percent`.
    ///
    /// More would keep more, and reinsert more: see `docs/policies.md`.
    pub fn of(room: u64, percent: u64) -> Self {
        let kept = (room * percent / 100).max(1);
        Shares { kept, small: (kept / 32).max(1), ghosts: room.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_rises_by_use_and_falls_when_it_is_passed() {
        let mut rank = Rank::SMALL;
        assert_eq!(rank.leaves_small(), Rank::EVICTABLE);
        rank = rank.used();
        assert_eq!(rank.leaves_small(), Rank::EVICTABLE);
        rank = rank.used();
        assert_eq!(rank.leaves_small(), Rank::MAIN);
        assert_eq!(rank.passed(), rank, "the clock passes over the small queue");
        rank = rank.used().used();
        assert_eq!(rank, rank.used(), "more is not counted");
        assert_eq!(rank.reinserted(), Rank::MAIN);

        let mut rank = Rank::MAIN.used().used().used().used();
        assert_eq!(rank.leaves_small(), rank);
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
            for next in [rank, rank.used(), rank.passed(), rank.leaves_small(), rank.reinserted()] {
                assert!(next.bits() < 16);
                assert_eq!(Rank::from_bits(next.bits()), next);
            }
        }
    }

    #[test]
    fn even_the_smallest_cache_keeps_something() {
        assert_eq!(Shares::of(0, 75), Shares { kept: 1, small: 1, ghosts: 1 });
        assert_eq!(Shares::of(1000, 80), Shares { kept: 800, small: 25, ghosts: 1000 });
    }
}
