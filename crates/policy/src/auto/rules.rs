//! The rules that shadow caches compare.

use crate::hash::mix;

/// [`Rule::promoting_uses`] that no block reaches.
pub const NEVER: u8 = u8::MAX;

/// [`Rule::reach`] of a rule for which all ghosts count.
pub use crate::ghost_groups::REACHES;

/// Parameters of the rank policy.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name in reports; stable.
    pub name: &'static str,
    /// The small queue has this part of the kept blocks: 32 is a thirty-second.
    pub small: u64,
    /// Uses in the small queue that promote a block to the main queue.
    pub promoting_uses: u8,
    /// One in so many blocks demoted from the small queue becomes a ghost. Ghosts then reach back
    /// that many times as far, and a loop larger than the cache leaves the main queue in place.
    pub ghost_of: u64,
    /// Ghosts count while at most this many of [`REACHES`] parts of all ghosts are younger.
    pub reach: u8,
}

impl Rule {
    /// The rule of the policy `s3-fifo`.
    pub const S3_FIFO: Rule =
        Rule { name: "s3-fifo", small: 32, promoting_uses: 2, ghost_of: 1, reach: REACHES };

    /// The rule of the policy `s3-fifo` while demoted blocks have few neighbours among the ghosts. Those then reach
    /// back over fewer blocks, so blocks get more time in the small queue; and where each use is a request of its own, one is
    /// as good as two.
    pub const S3_FIFO_OF_SINGLE_BLOCKS: Rule =
        Rule { small: 4, promoting_uses: 1, ..Rule::S3_FIFO };

    /// Whether the demoted block with this consecutive number becomes a ghost. Numbers are hashed,
    /// so that no loop meets the same ones in every round.
    #[inline]
    pub fn remembers(&self, number: u64) -> bool {
        self.ghost_of <= 1 || mix(number).is_multiple_of(self.ghost_of)
    }
}

/// The rules of `auto`; the first is in force at the beginning. Several uses in short succession
/// often belong together, so in most of these rules only a block that comes back after it left the
/// small queue gets into the main queue.
pub const RULES: [Rule; 9] = [
    Rule { name: "return-8", small: 8, promoting_uses: NEVER, ghost_of: 1, reach: REACHES },
    Rule { name: "return-4", small: 4, promoting_uses: NEVER, ghost_of: 1, reach: REACHES },
    Rule { name: "return-32", small: 32, promoting_uses: NEVER, ghost_of: 1, reach: REACHES },
    Rule::S3_FIFO,
    // Close to LRU: blocks get most of the cache to be used again in.
    Rule { name: "recent", small: 2, promoting_uses: 1, ghost_of: 1, reach: REACHES },
    Rule { name: "sparse-8", small: 32, promoting_uses: NEVER, ghost_of: 8, reach: REACHES },
    Rule { name: "near", small: 32, promoting_uses: NEVER, ghost_of: 1, reach: 16 },
    Rule { name: "sparse-2", small: 32, promoting_uses: NEVER, ghost_of: 2, reach: REACHES },
    Rule { name: "eager", small: 32, promoting_uses: 1, ghost_of: 1, reach: 24 },
];
