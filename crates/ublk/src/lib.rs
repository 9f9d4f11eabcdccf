//! ublk front end: each volume as a block device of the kernel, whose requests the lanes serve.
//!
//! - [`wire`]: numbers and structures of the driver
//! - [`request`]: converts a descriptor of the kernel to a request; pure
//! - `queue`: one queue of a device on a lane; `server`: begins and ends queues
//! - `board`: messages to the lanes
//! - `control`: commands about devices; [`helper`]: commands that wait for the lanes, in a separate
//!   process
//! - `device`: a device that is served; `queues`: its queues on the lanes
//! - `recovery`: takes a device over
//! - [`front_end`]: the driver of [`forebay_export::volume_devices`]
//! - `errors`: errors for operators
#![forbid(unsafe_code)]

mod board;
mod control;
mod device;
mod errors;
pub mod front_end;
pub mod helper;
mod queue;
mod queues;
mod recovery;
pub mod request;
mod server;
pub mod wire;

pub use front_end::claim;
