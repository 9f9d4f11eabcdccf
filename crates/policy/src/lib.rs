//! Decisions only: bypass, admission, eviction, and when to write back.
//!
//! Nothing here does I/O, reads a clock or draws randomness of its own: the caller provides time as
//! [`forebay_core::Nanos`] and randomness as a seeded [`fastrand::Rng`]. The same calls in the same
//! order give the same answers, so the simulator can replay a run.
//!
//! - [`sequential`]: length of sequential streams, for the sequential cut-off
//! - [`admission`]: whether a block may enter, one file per rule
//! - [`replacement`]: S3-FIFO for a log, in four bits per block
//! - [`GhostGroups`]: ghosts of the blocks that the ranks demote
//! - [`curve`]: miss-ratio curves for caches of all sizes, from a sample of the blocks
//! - [`whatif`]: shadow caches that predict the results of other settings
//! - [`exact`]: block-based policies, with lists of blocks
//! - [`writeback`]: when dirty blocks are written back, and how urgently
//! - [`rate`]: the rate of writeback while clients use the same origin
//! - [`throttle`]: throttling of clients when nearly all of the cache is dirty
//! - [`sweep`]: the order of writeback
#![forbid(unsafe_code)]

pub mod admission;
mod chunked;
pub mod curve;
pub mod exact;
mod ghost_groups;
mod hash;
pub mod rate;
pub mod replacement;
pub mod sequential;
pub mod sweep;
mod table;
pub mod throttle;
pub mod whatif;
pub mod writeback;

pub use admission::{Ghost, LatencyMean, Past, Recall, WriteBudget, admits};
pub use ghost_groups::GhostGroups;
pub use rate::{Load, RateControl, TokenBucket};
pub use replacement::{Rank, S3FifoParameters, Shares};
pub use sequential::{Route, SequentialCutoff, SharedStreams, StreamRoute};
pub use sweep::{DirtyMap, Merge, Run, SweepPlanner, SweepWindow, next_run};
pub use writeback::{AWAKE_FOR, Decision, DirtyState, Pacer, Trigger, Urgency};
