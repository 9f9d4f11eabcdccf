//! vhost-user-blk front end: serves volumes to virtual machines through queues in their memory.
//!
//! - [`message`]: the control messages, parsed and checked; `wire`: sends and receives them
//! - [`features`], [`config`]: the offered features, and the properties of the device
//! - [`memory`]: the client's memory, by the guest's and by the client's addresses
//! - [`chain`], [`virtqueue`]: split virtqueues
//! - [`request`]: requests of virtio-blk
//! - [`inflight`]: the record of requests in progress that outlives the daemon
//! - `queue`: a queue that a lane serves; `lane_queues`: the queues of a lane
//! - `session`, `control`: a client, and its control messages
//! - `export`, [`front_end`]: sockets, volumes at them, and the interface to the daemon
//!
//! One task on the first lane follows the control messages of a client. Each queue is a task of one
//! lane, where its requests run to their ends.
#![forbid(unsafe_code)]

mod answer;
pub mod chain;
pub mod config;
mod control;
mod export;
pub mod features;
pub mod front_end;
pub mod inflight;
mod lane_queues;
pub mod memory;
pub mod message;
mod queue;
pub mod request;
mod session;
#[cfg(test)]
mod testing;
pub mod virtqueue;
mod wire;

pub use front_end::VhostUserFrontEnd;
