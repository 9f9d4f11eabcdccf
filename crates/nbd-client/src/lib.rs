//! Exports of NBD servers as devices, so that a volume's origin can be on another machine.
//!
//! - [`device`]: the device and its queues; `remote`: the state of a device that lanes share
//! - `connect`, [`handshake`]: a connection up to the first request, in a thread that may wait
//! - `link`: a connection on a lane
//! - `requests`: operations and the requests that they consist of; `replies`: headers of replies
//! - `reply`, `port`: results for, and work from, other lanes
//! - `samples`: recognises a server after a reconnect
//!
//! Everything that comes from the server is checked: a server can fail requests, but it cannot
//! affect anything beyond the export.
#![forbid(unsafe_code)]

mod connect;
pub mod device;
pub mod handshake;
mod link;
mod port;
mod remote;
mod replies;
mod reply;
mod requests;
mod samples;

pub use device::NbdDevice;
