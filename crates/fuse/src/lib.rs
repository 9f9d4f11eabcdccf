//! FUSE front end: each volume is a file that the lanes serve, with a loop device of the kernel on
//! top. It provides a block device on machines without ublk.
//!
//! - [`wire`]: numbers and structures of the protocol
//! - [`request`], [`answer`]: parses a request; decides how it is answered. Both do no I/O
//! - `channel`: serves a file on a lane; `server`: begins and ends channels
//! - `board`: messages to the lanes
//! - `export`: the file, the loop device and the link of a volume
//! - [`helper`]: the steps that run in a separate process
//! - `marks`: identifies the loop device of a volume
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
