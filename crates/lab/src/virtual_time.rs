//! A world in which time is what an event loop says: the real engine on modelled devices, at full
//! size. The same seed gives the same run on every machine.
//!
//! - `access`, `clients`, `cpu`: what clients ask for, when, and what software costs
//! - `timing`, `device`: how long devices take, and what they hold
//! - `flushed`: clients that flush after each write
//! - `world`, `raw`: a cache, and a bare device, that clients can ask
//! - `tally`: what is counted

pub(crate) mod access;
pub(crate) mod clients;
pub(crate) mod cpu;
pub(crate) mod device;
pub(crate) mod flushed;
pub(crate) mod raw;
pub(crate) mod tally;
pub(crate) mod timing;
pub(crate) mod world;
