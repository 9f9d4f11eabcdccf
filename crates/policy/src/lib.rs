//! Decisions only: what goes round the cache, what leaves it, and what is written back when.
//!
//! Nothing here does I/O, reads a clock or draws randomness of its own: time is handed in as
//! [`forebay_core::Nanos`], randomness as a seeded [`fastrand::Rng`]. The same calls in the same
//! order give the same answers, which is what lets the simulator replay a run.
//!
//! - [`sequential`]: how far a stream has run, for the sequential cut-off
//! - [`admission`]: whether a block may enter, one file for each rule
//! - [`replacement`]: which blocks of a log are worth keeping, in four bits of each
//! - [`curve`]: what caches of all sizes would hit, from a sample of the blocks
//! - [`exact`]: which block leaves, with lists of blocks
//! - [`writeback`]: when dirty blocks are written back, and how urgently
//! - [`rate`]: how fast they are written back while clients use the same origin
//! - [`throttle`]: how much clients are slowed down when nearly all of the cache is dirty
//! - [`sweep`]: in which order they are written back
#![forbid(unsafe_code)]

pub mod admission;
pub mod curve;
pub mod exact;
pub mod rate;
pub mod replacement;
pub mod sequential;
pub mod sweep;
pub mod throttle;
pub mod writeback;

pub use admission::{Ghost, LatencyMean, Past, Recall, WriteBudget, admits};
pub use rate::{Bucket, Load, RateControl};
pub use replacement::{Rank, Shares};
pub use sequential::SequentialCutoff;
pub use sweep::{DirtyMap, Merge, Run, SweepPlanner, Window, next_run};
pub use writeback::{Decision, DirtyState, Pacer, Trigger, Urgency};
