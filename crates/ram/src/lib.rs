//! The RAM tier: blocks in RAM in front of a cache, or of a disk without one.
//!
//! The tier serves the requests of [`forebay_engine::BlockService`] and sends them on to another
//! service of the same kind, the lower tier. It has an index and a replacement policy of its own,
//! updates blocks in place, and knows nothing of segments. Its content is lost with the process.
//!
//! - [`options`]: size, block size and policy
//! - `index`: which frame of a shard holds which block
//! - `shard`: a part of the blocks, under one lock
//! - [`tier`]: all blocks of a volume, shared by its lanes
//! - [`volume`]: the volume on one lane, as front ends see it
//!
//! Writes go to the lower tier before they are acknowledged, so a crash loses nothing here.
#![forbid(unsafe_code)]

mod index;
pub mod options;
mod shard;
pub mod tier;
pub mod volume;

pub use options::{RamBlock, TierOptions};
pub use tier::{Tier, TierCounts};
pub use volume::RamVolume;
