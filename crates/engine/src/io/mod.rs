//! I/O of one volume on one lane: the steps of which requests and background work are made. Each type
//! borrows a [`LaneVolume`](crate::lane::LaneVolume) and has the methods of one concern.
//!
//! - [`admission`]: which requests bypass the cache and which blocks enter it; ghosts
//! - [`policy`]: what the replacement policy is told and asked
//! - [`space`]: free space in the log
//! - [`copies`]: cached copies, read back
//! - [`origin`], [`first_write`]: writes to the origin, and its syncs
//! - [`writeback`]: dirty blocks to the origin, neighbours merged
//! - [`commit`], [`notes`]: durability of the log; notes in the ledger

pub(crate) mod admission;
pub(crate) mod commit;
pub(crate) mod copies;
pub(crate) mod first_write;
pub(crate) mod notes;
pub(crate) mod origin;
pub(crate) mod policy;
pub(crate) mod space;
pub(crate) mod writeback;
