//! Which segment is reclaimed next, and which of its blocks are carried on.
//!
//! The cache device is a log of segments. Blocks leave the cache when their segment is reclaimed:
//! its clean live blocks are evicted unless the policy keeps them, in which case they are appended
//! again (reinserted); its dirty blocks are carried on or written back, whatever the policy says. A
//! policy thus answers two questions, [`Replacement::choose_victim`] and [`Replacement::keep`], and
//! says once what a hit does to a block's age class ([`HitRule`]).
//!
//! Ages are in [`age`]: a 4-bit class per block in the index and a clock that all lanes share.
//!
//! What is reinserted is best appended to an open segment of its own: blocks that proved hot then
//! stay together, and their segments are left alone from then on.
//!
//! To add a policy: a file beside [`lru`], a variant of [`ReplacementKind`], and its line in
//! [`build`] and [`HitRule::of`].

pub mod age;
pub mod fifo;
pub mod lru;
pub mod random;

#[cfg(test)]
mod simulation;

use forebay_core::{ReplacementKind, SegmentId};

pub use age::{Age, EpochClock};
pub use fifo::Fifo;
pub use lru::Lru;
pub use random::Random;

/// What a policy may know about a segment that could be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Which segment.
    pub id: SegmentId,
    /// Blocks that fit into it. The same for all segments, and at least 1.
    pub capacity_blocks: u32,
    /// Blocks in it that the index still points to, clean and dirty.
    pub live_blocks: u32,
    /// Live blocks that are dirty.
    pub dirty_blocks: u32,
    /// How much its blocks were used lately: 1 for each hit that moved a block of it to another age
    /// class, and less by [`SegmentInfo::cooled`] whenever the [`EpochClock`] advances. 0 where
    /// that is not counted; LRU then has only the order of the log to go by, and reinserts more.
    pub touched_blocks: u32,
    /// Place of the segment in the log: larger the later it was opened.
    pub sequence_opened: u64,
}

impl SegmentInfo {
    /// What is left of a count of touches after an epoch: an eighth is taken off, rounded up, so
    /// that it reaches back over about one cacheful of blocks used and comes down to 0.
    pub fn cooled(touched_blocks: u32) -> u32 {
        touched_blocks - touched_blocks.div_ceil(8)
    }
}

/// What a hit does to the age class of a block. Fetched once; cheap enough for every hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitRule {
    /// The bits of the class that are taken from the clock: all or none.
    from_clock: u8,
}

impl HitRule {
    /// The class becomes that of the present epoch.
    pub const REFRESH: HitRule = HitRule { from_clock: 0x0f };
    /// The class stays as it is.
    pub const LEAVE: HitRule = HitRule { from_clock: 0 };

    /// The rule of a policy.
    pub fn of(kind: ReplacementKind) -> Self {
        match kind {
            ReplacementKind::Lru => HitRule::REFRESH,
            ReplacementKind::Fifo | ReplacementKind::Random => HitRule::LEAVE,
        }
    }

    /// The class of a block after a hit, given the class that it has and that of the present epoch.
    ///
    /// Only if it differs is there anything to write to the index, a block to count in
    /// [`EpochClock::tick`], and one in [`SegmentInfo::touched_blocks`]: at most once per block and
    /// epoch.
    #[inline]
    pub fn on_hit(self, current: Age, now: Age) -> Age {
        Age::from_bits((now.bits() & self.from_clock) | (current.bits() & !self.from_clock))
    }
}

/// How many blocks may still be reinserted: at most one for every eight blocks appended.
///
/// What is appended by a reinsertion counts as appended too, so that reinsertion is at most 12.5 %
/// of everything that is written to the log, and the cache device wears at most a seventh faster
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReinsertBudget {
    /// In eighths of a block.
    eighths: u64,
    limit: u64,
}

impl ReinsertBudget {
    /// Blocks that are appended for each that may be reinserted.
    pub const APPENDED_PER_REINSERTED: u64 = 8;

    /// An empty budget that saves up for `capacity_blocks / 16` reinsertions at most, and one at
    /// least: enough for a few segments full of blocks worth keeping, and no more than a short
    /// burst.
    pub fn new(capacity_blocks: u64) -> Self {
        let most = (capacity_blocks / 16).max(1);
        ReinsertBudget { eighths: 0, limit: most.saturating_mul(Self::APPENDED_PER_REINSERTED) }
    }

    /// `blocks` blocks were appended to the log, for whatever reason.
    pub fn appended(&mut self, blocks: u64) {
        self.eighths = self.eighths.saturating_add(blocks).min(self.limit);
    }

    /// Blocks that may be reinserted now.
    pub fn available(&self) -> u64 {
        self.eighths / Self::APPENDED_PER_REINSERTED
    }

    /// Takes one block out of the budget; false if it is used up.
    pub fn take(&mut self) -> bool {
        let enough = self.eighths >= Self::APPENDED_PER_REINSERTED;
        if enough {
            self.eighths -= Self::APPENDED_PER_REINSERTED;
        }
        enough
    }
}

/// A replacement policy. One instance per cache, used by whoever reclaims.
pub trait Replacement: Send {
    /// Which policy this is.
    fn kind(&self) -> ReplacementKind;

    /// What a hit does to a block's age class.
    fn hit_rule(&self) -> HitRule {
        HitRule::of(self.kind())
    }

    /// The segment to reclaim next, `None` only if there are no candidates. Every policy takes a
    /// segment without live blocks at once, the first in the list. Looks at each candidate once and
    /// allocates nothing.
    ///
    /// Candidates are closed segments that may be reclaimed now: the caller leaves out those that
    /// it cannot free, for example because their dirty blocks must be written back first and are
    /// too many.
    fn choose_victim(&mut self, candidates: &[SegmentInfo]) -> Option<SegmentId>;

    /// Whether a clean live block of the victim is carried on rather than evicted; asked once for
    /// each.
    ///
    /// The budget pays for each `true`; without any left the answer is `false`.
    fn keep(&mut self, age: Age, now: Age, budget: &mut ReinsertBudget) -> bool;
}

/// The policy `kind` for a cache of `capacity_blocks` blocks; `seed` is used by policies that draw
/// lots.
///
/// The capacity is for policies with lists or ghosts to size; none of the present ones has any.
pub fn build(kind: ReplacementKind, _capacity_blocks: u64, seed: u64) -> Box<dyn Replacement> {
    match kind {
        ReplacementKind::Lru => Box::new(Lru),
        ReplacementKind::Fifo => Box::new(Fifo),
        ReplacementKind::Random => Box::new(Random::new(fastrand::Rng::with_seed(seed))),
    }
}

/// A segment that costs nothing to reclaim.
fn entirely_dead(candidates: &[SegmentInfo]) -> Option<SegmentId> {
    candidates.iter().find(|segment| segment.live_blocks == 0).map(|segment| segment.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(id: u32, sequence_opened: u64, live_blocks: u32) -> SegmentInfo {
        SegmentInfo {
            id: SegmentId(id),
            capacity_blocks: 64,
            live_blocks,
            dirty_blocks: 0,
            touched_blocks: 0,
            sequence_opened,
        }
    }

    #[test]
    fn no_candidates_no_victim_and_a_dead_segment_at_once() {
        for &kind in ReplacementKind::ALL {
            let mut policy = build(kind, 1000, 1);
            assert_eq!(policy.kind(), kind);
            assert_eq!(policy.choose_victim(&[]), None);
            assert_eq!(policy.choose_victim(&[segment(9, 1, 64)]), Some(SegmentId(9)));
            for dead in 0..5u32 {
                let candidates: Vec<SegmentInfo> = (0..5)
                    .map(|id| segment(id, u64::from(id), if id == dead { 0 } else { 1 }))
                    .collect();
                assert_eq!(policy.choose_victim(&candidates), Some(SegmentId(dead)), "{kind}");
            }
        }
    }

    #[test]
    fn only_lru_refreshes_on_a_hit() {
        for current in 0..16 {
            for now in 0..16 {
                let (current, now) = (Age::from_bits(current), Age::from_bits(now));
                assert_eq!(HitRule::of(ReplacementKind::Lru).on_hit(current, now), now);
                assert_eq!(HitRule::of(ReplacementKind::Fifo).on_hit(current, now), current);
                assert_eq!(HitRule::of(ReplacementKind::Random).on_hit(current, now), current);
            }
        }
    }

    #[test]
    fn fifo_takes_the_oldest_whatever_it_holds() {
        let candidates = [segment(1, 30, 1), segment(2, 10, 64), segment(3, 20, 2)];
        assert_eq!(Fifo.choose_victim(&candidates), Some(SegmentId(2)));
    }

    #[test]
    fn random_is_uniform_and_repeatable() {
        let candidates: Vec<SegmentInfo> = (0..8).map(|id| segment(id, 1, 64)).collect();
        let draw = |seed| {
            let mut policy = build(ReplacementKind::Random, 1000, seed);
            (0..8000)
                .map(|_| policy.choose_victim(&candidates).expect("some").0)
                .collect::<Vec<_>>()
        };
        let draws = draw(7);
        assert_eq!(draws, draw(7));
        assert_ne!(draws, draw(8));
        for id in 0..8 {
            let count = draws.iter().filter(|&&drawn| drawn == id).count();
            assert!((850..1150).contains(&count), "segment {id} was drawn {count} times");
        }
    }

    #[test]
    fn fifo_and_random_keep_nothing() {
        let mut budget = ReinsertBudget::new(1 << 20);
        budget.appended(1 << 20);
        for kind in [ReplacementKind::Fifo, ReplacementKind::Random] {
            for age in 0..16 {
                let now = Age::from_bits(1);
                assert!(!build(kind, 1000, 1).keep(Age::from_bits(age), now, &mut budget));
            }
        }
    }

    #[test]
    fn the_budget_is_an_eighth() {
        let mut budget = ReinsertBudget::new(1600);
        assert!(!budget.take());
        let (mut appended, mut reinserted) = (0, 0);
        for _ in 0..1000 {
            budget.appended(3);
            appended += 3;
            while budget.take() {
                reinserted += 1;
                budget.appended(1);
                appended += 1;
            }
            assert!(reinserted * 8 <= appended);
        }
        assert!(reinserted * 8 + 8 > appended);
        budget.appended(u64::MAX);
        assert_eq!(budget.available(), 100);
    }
}
