//! What the cache device holds: allocate, append, index, read, checkpoint, recover.
//!
//! - [`format`]: making a cache device
//! - [`recover`]: opening it, whatever the last user was doing when it stopped
//! - [`store`]: what all lanes share: looking blocks up, forgetting them
//! - [`lane`]: one lane's way to it: appending versions of blocks, making them durable
//! - [`read`]: reading them back, verified; `hazard`: short reads without a pin
//! - [`latency`]: how long the device takes
//! - [`index`] over [`table`]: where the newest version of each block is
//! - [`segments`]: which part of the device is in use
//! - [`checkpoint`]: the image of the index from which recovery starts
//! - [`damage`]: what volumes may have lost with records of the log
//! - [`ordered`]: what the origins of ordered volumes still have to get, and in which order
//! - [`roots`]: reading superblock and volume table; [`meta`]: writing them
//! - [`check`]: verifying a cache device without writing to it
#![forbid(unsafe_code)]

mod appender;
pub mod check;
pub mod checkpoint;
pub mod damage;
pub mod error;
pub mod format;
mod hazard;
pub mod health;
pub mod index;
pub mod lane;
pub mod latency;
mod layout;
mod log;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
pub mod meta;
pub mod options;
pub mod ordered;
mod panic_guard;
pub mod planted;
pub mod read;
mod record;
pub mod recover;
mod replay;
mod retry;
pub mod roots;
pub mod segments;
pub mod store;
pub mod table;

pub use checkpoint::source::CheckpointSource;
pub use damage::Damage;
pub use error::StoreError;
pub use format::{FormatOptions, format};
pub use index::{Address, Condition, FillTicket, Found};
pub use lane::StoreLane;
pub use meta::CLEAN_DISTRUSTED;
pub use options::StoreOptions;
pub use ordered::{Front, Horizon, OrderedVersion};
pub use panic_guard::PanicGuard;
pub use planted::PlantedBug;
pub use recover::RecoveryReport;
pub use roots::{Roots, read_roots, read_superblock};
pub use store::{
    Appended, Class, PayloadCheck, Pinned, ReadFailure, Spaces, Store, Version, VersionId,
    VolumeSpace,
};
pub use table::{Check, Entry, RANK_UNKNOWN};
