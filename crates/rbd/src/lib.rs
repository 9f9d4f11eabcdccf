//! Images of Ceph clusters (RBD) as devices, so that an image can be a volume's origin.
//!
//! - [`device`]: the device and its queues
//! - `thread`: one thread for each image, which opens it, holds its lock, watches it and closes it
//! - `unattended`: images that are being opened or closed in the background
//! - `shared`: the state of an image that the lanes and its thread share
//! - `library`: librbd and librados, loaded when the first image is opened
//! - `handle`: the calls of the libraries that may block; `flight`: operations in flight
//!
//! All unsafe code of this crate is in `library`, `handle` and `flight`.
#![deny(unsafe_code)]

mod claim;
pub mod device;
mod flight;
mod handle;
mod library;
mod opening;
mod shared;
mod thread;
mod unattended;

pub use device::RbdDevice;
pub use unattended::{exit, wait_closed};
