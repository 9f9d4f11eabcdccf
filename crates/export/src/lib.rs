//! Code shared by front ends, mainly by those that provide block devices on this machine.
//!
//! - [`clients`]: connected clients
//! - [`volume_devices`]: the life of devices that outlive the daemon, independent of their driver
//! - [`link`]: links with the names of volumes; [`names`]: those for udev
//! - [`notes`]: device notes, by which the next daemon finds a device
//! - [`board`]: messages to the lanes; [`served`]: the part of a lane
//! - [`helper`]: steps in a separate process
//! - [`sync`]: one of these steps, which makes file systems write their cached data
//! - [`errors`]: errors with the operator's remedies
#![forbid(unsafe_code)]

pub mod board;
pub mod clients;
pub mod errors;
pub mod helper;
pub mod link;
pub mod names;
pub mod notes;
pub mod served;
pub mod sync;
pub mod volume_devices;

/// Returns the identity of a served volume; `None` if there is no such volume. Does not wait.
pub type Identify = Box<dyn Fn(&str) -> Option<VolumeIdentity> + Send + Sync>;

/// Identity of a served volume, which differs for another volume of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// Equal for the same volume, as long as the process lives.
    pub text: String,
    /// Whether the text is the same in the next process, and the volume has no durably acknowledged
    /// data only in RAM.
    pub lasts: bool,
}

impl VolumeIdentity {
    /// Returns the text if another process can serve the same volume, and `None` otherwise.
    pub fn lasting(self) -> Option<String> {
        self.lasts.then_some(self.text)
    }
}

pub use board::Board;
pub use names::Names;
pub use notes::{Note, Notes};
