//! The data path and its background work.
//!
//! In the order in which a request meets it:
//! - [`api`]: what front ends and engine say to each other
//! - [`lane`]: one volume as one lane sees it; where requests enter and leave
//! - `plan`: what to do with a block, pure; the only branches on the mode
//! - `admission`: what may enter, and why what is missed is not there
//! - `read` and `fill`, `write`, `flush`, `discard`: one file for each kind of request, and one for
//!   what comes from the origin
//! - `append`: what a write brings to the log, block by block
//! - `bad`: dirty blocks that cannot be read back
//! - `copies`: cached copies read back, and what becomes of those that cannot be read
//! - `intent`: where a volume may be dirty, noted outside of the cache device
//! - `unavailable`: going on without the cache device
//! - `untouched`: what has to be durable before the origin is written to for the first time
//! - `ranges`: order among operations that reach the origin
//! - `brake`: turns of writes when nearly all of the cache is dirty
//! - `origin`: a lane's way to the origin, and how long it has not answered
//! - `patience`: waiting for an origin on behalf of an operator
//! - `strain`: how long requests and writeback take on the origin
//! - `curve`: what caches of other sizes would hit, from a few of the requests
//! - `occupancy`: who occupies what in a cache
//! - `replacement`: what the replacement policy is told, and asked
//! - `background`: writeback, reclaim, upkeep
//!
//! Beside the path: [`health`] and [`ledger`] for devices that fail or hang; [`cache`], [`volume`], [`settings`], [`stats`], and [`control`] for what an
//! operator does; `attach`, [`recognise`]
//! and `grow` for a volume that comes back to its origin.
#![forbid(unsafe_code)]

mod admission;
pub mod api;
mod append;
mod attach;
mod background;
mod bad;
mod brake;
pub mod cache;
pub mod control;
mod copies;
mod curve;
mod dirty;
mod discard;
pub mod engine;
pub mod error;
mod fill;
mod flush;
mod grow;
pub mod health;
mod intent;
pub mod lane;
pub mod ledger;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
mod memory;
mod occupancy;
mod origin;
mod patience;
mod plan;
mod ranges;
mod read;
pub mod recognise;
mod replacement;
mod samples;
pub mod settings;
pub mod stats;
mod strain;
mod unavailable;
mod untouched;
pub mod volume;
mod write;

pub use api::{Coming, Completion, CompletionSink, Exports, Extent, Request, Target};
pub use background::reclaim::segments_kept_free;
pub use cache::Cache;
pub use control::VolumeSpec;
pub use engine::{EngineLane, LaneContext};
pub use error::{EngineError, EngineErrorKind};
pub use health::{DeviceHealth, HUNG_AFTER};
pub use lane::LaneVolume;
pub use ledger::{Ledger, Note, Noted};
pub use occupancy::Occupancy;
pub use recognise::{Verdict, recognise};
pub use samples::Look;
pub use settings::VolumeSettings;
pub use volume::{Volume, VolumeState};
