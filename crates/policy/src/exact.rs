//! Block-based replacement: which block is evicted when another one enters.
//!
//! A policy identifies resident blocks by **node**, a dense number assigned by the caller (a slot
//! of the log, say), and blocks that are not resident by **key**. All arrays are allocated at
//! construction from the capacity; hit, insertion and removal take constant time (amortised where a
//! clock hand moves) and allocate nothing. Equal calls and an equal seed give equal answers.
//!
//! | policy | evicts first | bytes per block: resident + ghosts |
//! |---|---|---|
//! | [`lru`] | the block unused for longest | 8 |
//! | [`fifo`] | the first to arrive | 8 |
//! | [`random`] | any block | 0.13 |
//! | [`smq`] | the block that rose least; only blocks of hot regions enter | 10 + 5.5 |
//! | [`clock`] | the first to arrive of those unused since the hand passed | 8.13 |
//! | [`lfu`] | the least often used; in `lfu-r` frequencies decay | 10 |
//! | [`two_q`] | blocks seen once; if missed again in time they count as hot | 12.13 + 2.7 |
//! | [`arc`] | blocks seen once or often, whichever list helps less | 12.13 + 5.4 |
//! | [`lirs`] | blocks reused late or never | 16.25 + 5.4 |
//! | [`sieve`] | blocks unused since the hand passed; spared ones keep their place | 8.13 |
//! | [`s3_fifo`] | blocks not used twice on their way through a small queue | 12.5 + 4.8 |
//! | [`w_tinylfu`] | blocks seen less often than the one that wants to enter | 12.25 + 8 |
//!
//! Shared modules: `list`, `fields`, `ghost`; `levels` and `hotspot` belong to smq, `sketch` to
//! W-TinyLFU. To add a policy: a file with it and its naive model, a row of [`ReplacementKind`],
//! and in this file a line of the table above and of [`build`] and `naive_model`; the tests in
//! `tests.rs` then apply to it.

pub mod arc;
pub mod clock;
mod fields;
pub mod fifo;
mod ghost;
mod hotspot;
mod levels;
pub mod lfu;
pub mod lirs;
pub(crate) mod list;
pub mod lru;
pub mod random;
pub mod s3_fifo;
pub mod sieve;
mod sketch;
pub mod smq;
pub mod two_q;
pub mod w_tinylfu;

#[cfg(test)]
mod harness;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

use forebay_core::{OriginBlock, ReplacementKind, VolumeId};

use crate::replacement::Shares;

/// The number of a resident block, below `nodes` of [`build`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

/// Volume and block as one number. Neighbouring blocks of a volume have neighbouring keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

impl Key {
    /// Creates the key of a block. Keys are unique for block numbers below 2^48.
    pub fn new(volume: VolumeId, block: OriginBlock) -> Self {
        Key((u64::from(volume.0) << 48) ^ block.0)
    }

    /// Returns 64 well-mixed bits of the key.
    #[inline]
    pub fn spread(self) -> u64 {
        let spread = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread ^ (spread >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// Hashes the key, for structures where 8 bytes per key would be too many.
    fn hash(self) -> u32 {
        (self.spread() >> 32) as u32
    }
}

/// RAM used by a policy, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// RAM for resident blocks.
    pub resident: usize,
    /// RAM for ghosts and other state of blocks that are not resident.
    pub ghosts: usize,
}

impl StateBytes {
    /// Returns the sum of both.
    pub fn total(&self) -> usize {
        self.resident + self.ghosts
    }
}

/// A replacement policy of one cache.
///
/// The caller maps blocks to nodes. For each block requested it calls [`hit`](BlockPolicy::hit) if
/// the block is resident; otherwise [`admits`](BlockPolicy::admits), and if that returns true,
/// [`insert`](BlockPolicy::insert).
///
/// # Panics
/// Methods panic if a node is not below `nodes` of [`build`].
pub trait BlockPolicy: Send {
    /// Returns the kind of this policy.
    fn kind(&self) -> ReplacementKind;

    /// Returns the number of resident blocks; never more than the capacity.
    fn resident(&self) -> u32;

    /// Records that a resident block was read or written.
    fn hit(&mut self, node: Node);

    /// Returns whether a missed block may enter. Called once per miss, right before
    /// [`insert`](BlockPolicy::insert); a policy that admits only frequently requested blocks
    /// counts here. The default always admits.
    fn admits(&mut self, _key: Key) -> bool {
        true
    }

    /// Makes a block resident as `node`, which is free. Returns the evicted block: never the new
    /// one, and none while fewer blocks than the capacity are resident.
    fn insert(&mut self, node: Node, key: Key) -> Option<Node>;

    /// Records that a resident block was overwritten, which in a log moves it to the end. The
    /// default counts a use.
    fn overwritten(&mut self, node: Node) {
        self.hit(node);
    }

    /// Makes a block resident again that was evicted and is used while it is still readable, as
    /// [`insert`](BlockPolicy::insert) does. The default treats it like any other.
    fn returned(&mut self, node: Node, key: Key) -> Option<Node> {
        self.insert(node, key)
    }

    /// Evicts the block that the next insertion into a full cache would evict, as nearly as the
    /// policy can tell without the key of the new block. Returns `None` if no block is resident.
    /// For callers that keep blocks outside of the policy, because these must not be evicted for
    /// now, and so need room before the policy is full.
    fn evict(&mut self) -> Option<Node>;

    /// Removes a resident block that was invalidated. The policy does not remember it. A node that
    /// is not resident is ignored.
    fn remove(&mut self, node: Node);

    /// Moves a resident block to another node, which was free; the block keeps its place in all
    /// queues.
    fn moved(&mut self, from: Node, to: Node);

    /// Returns the RAM used. Does not change after construction.
    fn state_bytes(&self) -> StateBytes;
}

/// Builds the policy `kind` for a cache of at most `capacity` resident blocks with nodes
/// `0..nodes`. `seed` is for policies that draw random numbers.
///
/// A block enters before the evicted one frees its node, so `nodes` is raised to at least the
/// capacity plus one. The capacity is clamped to 1 to 2^30.
pub fn build(kind: ReplacementKind, capacity: u32, nodes: u32, seed: u64) -> Box<dyn BlockPolicy> {
    let capacity = capacity.clamp(1, 1 << 30);
    let nodes = nodes.clamp(capacity + 1, 1 << 31);
    match kind {
        ReplacementKind::Lru => Box::new(lru::Lru::new(capacity, nodes)),
        ReplacementKind::Fifo => Box::new(fifo::Fifo::new(capacity, nodes)),
        ReplacementKind::Random => Box::new(random::Random::new(capacity, nodes, seed)),
        ReplacementKind::Lfu => Box::new(lfu::Lfu::plain(capacity, nodes)),
        ReplacementKind::LfuR => Box::new(lfu::Lfu::ageing(capacity, nodes)),
        ReplacementKind::Smq => Box::new(smq::Smq::new(capacity, nodes)),
        ReplacementKind::Clock => Box::new(clock::Clock::new(capacity, nodes)),
        ReplacementKind::TwoQ => Box::new(two_q::TwoQ::new(capacity, nodes)),
        ReplacementKind::Arc => Box::new(arc::Arc::new(capacity, nodes)),
        ReplacementKind::Lirs => Box::new(lirs::Lirs::new(capacity, nodes)),
        ReplacementKind::Sieve => Box::new(sieve::Sieve::new(capacity, nodes)),
        ReplacementKind::S3Fifo => Box::new(s3_fifo::S3Fifo::new(capacity, nodes)),
        ReplacementKind::WTinyLfu => Box::new(w_tinylfu::WTinyLfu::new(capacity, nodes)),
    }
}

/// Builds the policy `kind` for a log with room for `room` blocks, of which it keeps a part
/// ([`Shares`]).
pub(crate) fn build_for_log(kind: ReplacementKind, room: u32, nodes: u32) -> Box<dyn BlockPolicy> {
    let shares = Shares::of(room.into(), kind);
    let kept = shares.kept.min(1 << 30) as u32;
    match kind {
        ReplacementKind::S3Fifo => Box::new(s3_fifo::S3Fifo::in_log(shares, nodes.max(kept + 1))),
        kind => build(kind, kept, nodes, 0),
    }
}

/// Returns the slow and short model of a policy, which evicts the same blocks. Policies with random
/// choices have no model.
#[cfg(test)]
fn naive_model(kind: ReplacementKind, capacity: usize) -> Option<Box<dyn naive::Naive>> {
    let line = |hits_count| Box::new(naive::NaiveLru { capacity, hits_count, line: Vec::new() });
    let per_epoch =
        (kind == ReplacementKind::LfuR).then_some(capacity as u64 * lfu::ACCESSES_PER_EPOCH);
    Some(match kind {
        ReplacementKind::Lru => line(true),
        ReplacementKind::Fifo => line(false),
        ReplacementKind::Random | ReplacementKind::Smq => return None,
        ReplacementKind::Lfu | ReplacementKind::LfuR => {
            Box::new(naive::Lfu { capacity, per_epoch, accesses: 0, line: Vec::new() })
        }
        ReplacementKind::Clock => Box::new(naive::NaiveClock { capacity, line: Vec::new() }),
        ReplacementKind::Sieve => Box::new(naive::Sieve { capacity, line: Vec::new(), hand: None }),
        ReplacementKind::TwoQ => Box::new(naive::TwoQ { capacity, ..Default::default() }),
        ReplacementKind::Arc => Box::new(naive::Arc { c: capacity, ..Default::default() }),
        ReplacementKind::Lirs => Box::new(naive::Lirs { capacity, ..Default::default() }),
        ReplacementKind::S3Fifo => Box::new(naive::S3Fifo { capacity, ..Default::default() }),
        ReplacementKind::WTinyLfu => Box::new(naive::WTinyLfu {
            sizes: w_tinylfu::sizes(capacity as u32),
            window: Vec::new(),
            probation: Vec::new(),
            protected: Vec::new(),
            sketch: w_tinylfu::sketch(capacity as u32),
        }),
    })
}
