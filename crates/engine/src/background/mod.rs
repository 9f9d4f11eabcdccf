//! Work beside the data path. Each part is a task on the lane that opened the cache.
//!
//! - [`writeback`]: dirty blocks to the origin, in the order of their addresses
//! - [`ordered`]: the same in the order of flushes, for volumes that want it
//! - [`reclaim`]: room in the log
//! - [`demote`]: what is not worth keeping any more when there is no room for all of it
//! - [`upkeep`]: commits and checkpoints by the clock

pub(crate) mod demote;
pub(crate) mod ordered;
mod pace;
pub(crate) mod reclaim;
pub(crate) mod upkeep;
pub(crate) mod watch;
pub(crate) mod writeback;
