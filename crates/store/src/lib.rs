//! The content of the cache device: allocate, append, index, read, checkpoint, recover.
//!
//! - [`mod@format`]: formatting a cache device
//! - [`recover`]: opening it, after an orderly stop or a crash
//! - [`loader`]: loading the index while requests are served
//! - [`store`]: the state shared by all lanes: looking blocks up, removing them
//! - [`lane`]: a store as one lane uses it: appending versions of blocks, making them durable
//! - [`read`]: reading blocks back, verified; `hazard`: short reads without a pin
//! - [`latency`]: latency of the device
//! - [`index`] over [`table`]: slot and state of the newest version of each block
//! - [`segments`]: the states of all segments
//! - [`checkpoint`]: the image of the index from which recovery starts
//! - [`damage`]: volumes that may have lost data with records of the log
//! - [`ordered`]: the versions that origins of ordered volumes still have to receive, in order
//! - [`roots`]: reading superblock and volume table; [`meta`]: writing them
//! - [`check`]: verifying a cache device without writing to it
#![forbid(unsafe_code)]

mod appender;
mod changes;
pub mod check;
pub mod checkpoint;
mod chunks;
pub mod damage;
pub mod error;
pub mod format;
mod hazard;
pub mod health;
pub mod index;
pub mod lane;
pub mod latency;
mod layout;
pub mod loader;
mod loading;
mod log;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
mod marks;
pub mod meta;
pub mod options;
pub mod ordered;
mod ordering;
mod panic_guard;
pub mod planted;
pub mod read;
mod record;
pub mod recover;
mod replay;
mod retry;
pub mod room;
mod roots;
pub mod segments;
mod spaces;
pub mod store;
pub mod table;
pub mod team;

pub use checkpoint::source::CheckpointSource;
pub use damage::Damage;
pub use error::StoreError;
pub use format::{FormatOptions, format};
pub use index::{Address, Condition, FillTicket, Found, Walk};
pub use lane::StoreLane;
pub use meta::CLEAN_DISTRUSTED;
pub use options::StoreOptions;
pub use ordered::{Front, Horizon, OrderedVersion};
pub use panic_guard::PanicGuard;
pub use planted::PlantedBug;
pub use recover::RecoveryReport;
pub use roots::{Roots, read_roots, read_superblock};
pub use store::{
    Appended, Class, PayloadCheck, Pinned, ReadFailure, SpaceUse, Spaces, Store, Version,
    VersionId, VolumeSpace,
};
pub use table::{Check, Entry, RANK_UNKNOWN};
pub use team::Helper;
