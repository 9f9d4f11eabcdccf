//! Test support: a lane in virtual time, and devices in RAM with scripted faults.
//!
//! - [`world`]: a lane that the test runs
//! - [`faults`]: the rules for a faulty device
//! - `faulty`: the device that applies the faults
//! - [`disk`]: a disk in RAM whose content a test can read and damage
//! - `seen`: devices with other sectors, or opened for reading only
//! - [`temp_dir`]: directories that are removed together with their content
//! - [`void`]: a device of any size that stores nothing
//! - [`guise`]: devices that report another size or identity, or record which volume uses them
//!
//! Failures are reported by panics.
#![forbid(unsafe_code)]

pub mod disk;
pub mod faults;
mod faulty;
pub mod guise;
mod seen;
pub mod temp_dir;
pub mod void;
pub mod world;

pub use disk::{Disk, open_queue, peek, poke, ram};
pub use faults::{ANYWHERE, Faults, OpKind};
pub use faulty::faulty;
pub use guise::{
    Holder, shortened, with_endless_claims, with_evidence, with_holder, with_inode, with_serial,
};
pub use seen::{for_reading, with_sectors};
pub use temp_dir::TempDir;
pub use void::void;
pub use world::LaneWorld;
