//! Front end that uses the kernel's NBD client: each volume is a block device `/dev/nbdN`, whose
//! requests come to the daemon's own NBD server through a unix socket.
//!
//! - [`message`]: messages of generic netlink; pure
//! - `control`: commands about devices; [`helper`]: commands that wait for the lanes, in a separate
//!   process
//! - [`handshake`]: the client's part of the handshake, before the kernel gets the socket
//! - `sysfs`: the kernel's data about its devices
//! - `device`: how a device is set up, and connected again
//! - `watch`: reconnects devices whose connections have ended
//! - `lanes`: the lanes' part
//! - [`front_end`]: the driver of [`forebay_export::volume_devices`]
//! - `errors`: errors with the operator's remedies
//!
//! **One connection.** With several connections the kernel would move a request that takes long to
//! another one. The daemon could still be about to execute the first copy, and this write would
//! then overwrite a later one. With one connection and no time limit, the kernel sends a request
//! again only after it has a new connection.
#![forbid(unsafe_code)]

mod control;
mod device;
mod errors;
pub mod front_end;
pub mod handshake;
pub mod helper;
mod lanes;
pub mod message;
mod sysfs;
mod watch;

pub use device::NbdServer;
pub use front_end::claim;
