//! I/O of one volume on one lane: the steps that requests and background work share. Each type
//! borrows a [`LaneVolume`](crate::lane::LaneVolume) and has the methods of one concern.
//!
//! - [`admission`]: which requests bypass the cache and which blocks enter it; ghosts
//! - [`streams`]: which requests belong to long sequential streams, and which of these bypass the
//!   cache
//! - [`policy`]: events for the replacement policy, and its answers
//! - [`space`]: free space in the log
//! - [`copies`]: reads of cached copies, retries, and unreadable copies
//! - [`origin`], [`first_write`]: writes to the origin, its syncs, and its samples
//! - [`writeback`]: writes dirty blocks to the origin, with neighbours merged
//! - [`commit`], [`notes`]: commits of the log, and notes in the ledger

pub(crate) mod admission;
pub(crate) mod commit;
pub(crate) mod copies;
pub(crate) mod counted;
pub(crate) mod first_write;
pub(crate) mod notes;
pub(crate) mod origin;
pub(crate) mod policy;
pub(crate) mod space;
pub(crate) mod streams;
pub(crate) mod writeback;
