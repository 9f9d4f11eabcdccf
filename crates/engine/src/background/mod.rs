//! Work beside the data path. Each part is a task on the lane that opened the cache.
//!
//! - [`writeback`]: dirty blocks to the origin, in the order of their addresses
//! - [`reclaim`]: room in the log
//! - [`upkeep`]: commits and checkpoints by the clock, ages for the replacement policy

pub(crate) mod give_up;
pub(crate) mod reclaim;
pub(crate) mod upkeep;
pub(crate) mod writeback;
