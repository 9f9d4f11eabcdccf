//! What front ends share: those that make block devices of this machine, and those that listen at unix sockets.
//!
//! - [`users`]: who uses a device; [`mounts`]: what is mounted
//! - [`link`]: links with the names of volumes
//! - [`notes`]: by which the next daemon knows a device
//! - [`board`]: messages to the lanes
//! - [`helper`]: steps in a process of their own
//! - [`sync`]: one of these steps: has file systems write what they have in memory
//! - [`errors`]: what operators read
//! - [`unix_socket`]: a listening socket whose path is made again
#![forbid(unsafe_code)]

pub mod board;
pub mod errors;
pub mod helper;
pub mod link;
pub mod mounts;
pub mod notes;
pub mod sync;
pub mod unix_socket;
pub mod users;

/// Returns a text that tells a served volume from others of its name; `None` if the volume keeps in RAM what
/// it acknowledges as durable.
pub type Identify = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub use board::Board;
pub use notes::{Note, Notes};
pub use users::Users;
