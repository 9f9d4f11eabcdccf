//! What front ends share that make block devices of this machine.
//!
//! - [`users`]: who uses a device
//! - [`link`]: links with the names of volumes
//! - [`board`]: messages to the lanes
//! - [`helper`]: steps in a process of their own
//! - [`sync`]: one of these steps: has file systems write what they have in memory
//! - [`errors`]: what operators read
#![forbid(unsafe_code)]

pub mod board;
pub mod errors;
pub mod helper;
pub mod link;
pub mod sync;
pub mod users;

pub use board::Board;
pub use users::Users;
