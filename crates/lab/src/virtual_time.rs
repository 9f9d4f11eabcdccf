//! A world in which an event loop sets the time: the real engine on modelled devices, at full
//! size. The same seed gives the same run on every machine.
//!
//! - `access`, `clients`, `cpu`: requests of clients, their times, and the CPU time of software
//! - `timing`, `device`: duration of operations, and content of devices
//! - `flushed`: clients that flush after each write
//! - `world`, `raw`: a cache, and a bare device, as targets of clients
//! - `tally`: counts and latencies

pub(crate) mod access;
pub(crate) mod clients;
pub(crate) mod cpu;
pub(crate) mod device;
pub(crate) mod flushed;
pub(crate) mod raw;
pub(crate) mod tally;
pub(crate) mod timing;
pub(crate) mod world;
