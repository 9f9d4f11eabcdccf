//! The RAM tier: blocks in RAM in front of a cache, or of a disk without one.
//!
//! The tier serves the requests of [`forebay_engine::BlockService`] and sends them on to another
//! service of the same kind, the lower tier. It has an index and a replacement policy of its own,
//! updates blocks in place, and knows nothing of segments. Its content is lost with the process.
//!
//! - [`options`]: size, block size and policy, and how writes are deferred
//! - `block`: blocks, regions, and the parts of a request
//! - `index`: the frame of each block of a shard
//! - `contents`: the content of a frame, and the states of its sectors
//! - `guard`: whether a copy is certain to be current
//! - `offer`: blocks that RAM evicts, for the lower tier
//! - `shard`: a part of the blocks, under one lock
//! - `counts`: counts of a tier
//! - [`tier`]: all blocks of a volume, shared by its lanes
//! - [`watch`]: counts and miss-ratio curve of client requests
//! - `schedule`: when deferred data is written down
//! - [`write_down`]: writes deferred data to the lower tier
//! - [`prefetch`]: reads blocks so that they are cached before a client asks for them
//! - [`volume`]: the volume on one lane, in the form that front ends use
//!
//! A write goes to the lower tier before it is acknowledged, so a crash loses nothing here. If
//! writes are deferred, a crash loses writes that neither a flush nor FUA has covered, like a disk
//! with a volatile write cache.
#![forbid(unsafe_code)]

pub mod block;
mod contents;
mod counts;
mod guard;
mod index;
mod offer;
pub mod options;
pub mod prefetch;
mod schedule;
mod shard;
pub mod tier;
pub mod volume;
pub mod watch;
pub mod write_down;

pub use block::RamBlock;
pub use counts::TierCounts;
pub use options::{Deferral, TierOptions};
pub use tier::Tier;
pub use volume::RamVolume;
pub use watch::Traffic;
