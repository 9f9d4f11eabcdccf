//! Work in addition to the data path. Each part is a task on the lane that opened the cache, except
//! [`watch`] and [`load`], which run on every lane.
//!
//! - [`writeback`]: writes dirty blocks to the origin in address order
//! - [`ordered`]: writes them in the order of flushes, for volumes with ordered writeback
//! - [`reclaim`]: frees segments of the log
//! - [`live`]: finds the live blocks of a segment
//! - [`demote`]: marks blocks as evictable when the cache holds more than the policy's share
//! - [`shares`]: keeps volumes within their shares of the cache
//! - [`upkeep`]: periodic commits, checkpoints and origin syncs
//! - [`load`]: loads the index after a start
//! - [`watch`]: checks whether the cache device answers

pub(crate) mod demote;
pub(crate) mod live;
pub(crate) mod load;
pub(crate) mod ordered;
mod pace;
pub(crate) mod reclaim;
pub(crate) mod shares;
pub(crate) mod upkeep;
pub(crate) mod watch;
pub(crate) mod writeback;
