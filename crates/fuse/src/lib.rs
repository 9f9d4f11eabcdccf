//! FUSE front end: each volume as a file that the lanes serve, with a loop device of the kernel on
//! top: a block device for machines without ublk.
//!
//! - [`wire`]: numbers and structures of the protocol
//! - [`request`], [`answer`]: parses a request; decides how it is answered. Both are pure
//! - `channel`: serves a file on a lane; `server`: begins and ends channels
//! - `board`: messages to the lanes
//! - `export`: the file, the loop device and the link of a volume
//! - [`helper`]: the steps of that in a process of their own
//! - `marks`: by which the loop device of a volume is known
//! - `stale`: the remains of a killed daemon; `inherited`: the parts that the next program takes
//!   over
//! - [`front_end`]: the interface to the daemon; `errors`: errors for operators
#![forbid(unsafe_code)]

pub mod answer;
mod board;
mod channel;
mod errors;
mod export;
pub mod front_end;
pub mod helper;
mod inherited;
mod keeping;
mod marks;
pub mod request;
mod server;
mod stale;
pub mod wire;

pub use front_end::FuseFrontEnd;
