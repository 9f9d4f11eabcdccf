//! What front ends share: those that make block devices of this machine, and those that listen at unix sockets.
//!
//! - [`users`]: who uses a device; [`mounts`]: what is mounted; [`clients`]: who is connected
//! - [`link`]: links with the names of volumes
//! - [`notes`]: by which the next daemon knows a device
//! - [`board`]: messages to the lanes
//! - [`helper`]: steps in a process of their own
//! - [`sync`]: one of these steps: has file systems write what they have in memory
//! - [`errors`]: what operators read
//! - [`unix_socket`]: a listening socket whose path is made again
#![forbid(unsafe_code)]

pub mod board;
pub mod clients;
pub mod errors;
pub mod helper;
pub mod link;
pub mod mounts;
pub mod notes;
pub mod sync;
pub mod unix_socket;
pub mod users;

/// Returns what tells a served volume from others of its name; `None` if there is no such volume. Waits for nothing.
pub type Identify = Box<dyn Fn(&str) -> Option<Identity> + Send + Sync>;

/// What tells a served volume from others of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Equal for the same volume, as long as the process lives.
    pub text: String,
    /// It is equal in the next process too, and the volume does not keep in RAM what it acknowledges as durable.
    pub lasts: bool,
}

impl Identity {
    /// Returns the text if another process can go on for the volume.
    pub fn lasting(self) -> Option<String> {
        self.lasts.then_some(self.text)
    }
}

pub use board::Board;
pub use notes::{Note, Notes};
pub use users::Users;
