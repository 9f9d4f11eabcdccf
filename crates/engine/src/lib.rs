//! The data path and its background work, in layers. A layer imports only from the layers below it;
//! `tidy` checks that.
//!
//! - `control`: an operator's commands: open a cache, attach volumes to it, [recognise] and grow
//!   their origins, change settings, stop, delete
//! - `background`: writeback, ordered writeback, reclaim, commits and checkpoints
//! - `serve`: dispatches requests from front ends and completes them
//! - `path`: one file for each kind of request, and their common steps: append, fill, throttling of
//!   writers
//! - `io`: the steps that requests and background work share: cached copies, the origin, admission,
//!   commits
//! - `lane`: a volume and a cache as seen from one lane
//! - `state`: shared by lanes: the cache, its volumes and their parts
//! - `plan` (pure): chooses the step for a block; the only branches on the mode
//! - `tags`: tags by which a front end finds its requests in flight
//! - [`api`], `front_end`, [`settings`], [`stats`], `error`: the interface to other crates
#![forbid(unsafe_code)]

pub mod api;
mod background;
mod control;
mod error;
mod front_end;
mod io;
mod lane;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
mod path;
mod plan;
mod serve;
pub mod settings;
mod state;
pub mod stats;
mod tags;

pub use api::{
    BlockService, Coming, Completion, CompletionSink, Exports, Extent, Request, StateExtent,
};
pub use control::VolumeSpec;
pub use control::displaced;
pub use control::recognise::{OriginCheck, Sign, Verdict, recognise};
pub use control::rename::Naming;
pub use control::samples::SampledOrigin;
pub use control::sectors::check_sectors;
pub use control::table::TableChange;
pub use control::verify::OnVerify;
pub use error::{Cause, EngineError, EngineErrorKind, LedgerError, Obstacle, WritebackError};
pub use forebay_settings::Settings;
pub use front_end::{
    Client, DescriptorStore, ExportError, ExportErrorKind, ExportedDevice, FrontEnd, HandedOver,
    LaneFrontEnd,
};
pub use lane::LaneVolume;
pub use lane::engine::{EngineLane, LaneContext};
pub use serve::limited::LimitedVolume;
pub use settings::settings_of;
pub use state::cache::Cache;
pub use state::curve::{FIRST, VolumeCurve, Watch};
pub use state::health::{DeviceHealth, HUNG_AFTER};
pub use state::ledger::{Ledger, Note, Noted};
pub use state::occupancy::Occupancy;
pub use state::pins::BlockSet;
pub use state::recording::Recorded;
pub use state::replacement::segments_kept_free;
pub use state::volume::recording::Recording;
pub use state::volume::{Volume, VolumeState};
pub use stats::rest::{RESTS_AFTER, Rest};
pub use tags::Tags;
