//! Replacement that decides on blocks: which block leaves when another one comes.
//!
//! A policy knows blocks by **node**, a dense number that the caller gives to each resident block
//! (a slot of the log, say), and by **key** while they are not resident. All arrays are made at
//! construction from the capacity; hit, insertion and removal take constant time (amortised where a
//! hand goes round) and allocate nothing. Equal calls and an equal seed give equal answers.
//!
//! | policy | leaves first | bytes for a block: resident + ghosts |
//! |---|---|---|
//! | [`lru`] | what was not used for longest | 8 |
//! | [`fifo`] | what came first | 8 |
//! | [`random`] | anything | 0.13 |
//! | [`smq`] | what rose least; only what is asked for a lot enters | 10 + 5.5 |
//! | [`clock`] | what came first and was not used since the hand passed | 8.13 |
//! | [`lfu`] | what was used least often; `lfu-r` forgets with time | 10 |
//! | [`two_q`] | what was seen once; again in time, and it counts as hot | 12.13 + 2.7 |
//! | [`arc`] | seen once or often, by which of the two would have helped | 12.13 + 5.4 |
//! | [`lirs`] | what was used again late, or not at all | 16.25 + 5.4 |
//! | [`sieve`] | what was not used since a hand passed that does not begin again | 8.13 |
//! | [`s3_fifo`] | what was not used twice on its way through a small queue | 12.5 + 4.8 |
//! | [`w_tinylfu`] | what was seen less often than what wants to enter | 12.25 + 8 |
//!
//! Shared by them: `list`, `fields`, `ghost`; `levels` and `hotspot` are smq's, `sketch` is
//! W-TinyLFU's. To add a policy: a file, a [`ReplacementKind`] and its line in [`build`]; the tests in
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
mod list;
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

/// The number of a resident block, below the `nodes` of [`build`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

/// Volume and block as one number. Neighbours on a volume are neighbours as keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

impl Key {
    /// The key of a block. Different blocks have different keys below 2^48 blocks.
    pub fn new(volume: VolumeId, block: OriginBlock) -> Self {
        Key((u64::from(volume.0) << 48) ^ block.0)
    }

    /// What is remembered of it where 8 bytes would be too many.
    fn hash(self) -> u32 {
        let spread = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((spread ^ (spread >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
    }
}

/// RAM that a policy takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// For resident blocks.
    pub resident: usize,
    /// For what it remembers of blocks that are not resident.
    pub ghosts: usize,
}

impl StateBytes {
    /// Both.
    pub fn total(&self) -> usize {
        self.resident + self.ghosts
    }
}

/// A replacement policy of one cache.
///
/// The caller keeps the map from blocks to nodes. A block that was asked for is either resident:
/// [`hit`](BlockPolicy::hit), or it is not: [`admits`](BlockPolicy::admits), and if so
/// [`insert`](BlockPolicy::insert).
///
/// # Panics
/// Methods panic if a node is not below the `nodes` of [`build`].
pub trait BlockPolicy: Send {
    /// Which policy this is.
    fn kind(&self) -> ReplacementKind;

    /// How many blocks are resident; never more than the capacity.
    fn resident(&self) -> u32;

    /// A resident block was read or written.
    fn hit(&mut self, node: Node);

    /// A block was asked for that is not resident: whether it may enter. Asked once for each miss,
    /// right before [`insert`](BlockPolicy::insert); a policy that only lets in what is asked for
    /// often counts here. The others always say yes.
    fn admits(&mut self, _key: Key) -> bool {
        true
    }

    /// A block becomes resident as `node`, which is free. Returns the block that leaves for it:
    /// never the new one, and none while fewer than the capacity are resident.
    fn insert(&mut self, node: Node, key: Key) -> Option<Node>;

    /// A resident block is gone for another reason: it was invalidated. The policy does not
    /// remember it. A node that is not resident is no error.
    fn remove(&mut self, node: Node);

    /// A resident block has another node now, which was free; in all queues it stays where it was.
    fn moved(&mut self, from: Node, to: Node);

    /// What it takes in RAM. Does not change after construction.
    fn state_bytes(&self) -> StateBytes;
}

/// The policy `kind` for a cache of at most `capacity` resident blocks, which have nodes in
/// `0..nodes`. `seed` is used by policies that draw lots.
///
/// A block enters before the one that leaves gives up its node, so there is at least one node more
/// than the capacity; less is taken as that. The capacity is at least 1 and at most 2^30.
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
