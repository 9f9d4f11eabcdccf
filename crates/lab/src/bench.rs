//! What this machine does in real time, on devices in RAM: one file for each subcommand, and beside
//! them what they share.
//!
//! - `driver`: requests one after the other, and caches filled with many blocks
//! - `device`: devices that count, and devices that keep little of what is written
//! - `pattern`: which blocks are asked for
//! - `fio_client`: fio as the client
//! - `measure`: time on the wall and on the CPU

pub(crate) mod amplification;
pub(crate) mod block;
pub(crate) mod commands;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod fio_client;
pub(crate) mod measure;
pub(crate) mod memory;
pub(crate) mod nbd;
pub(crate) mod observing;
pub(crate) mod pattern;
pub(crate) mod recovery;
pub(crate) mod vhost_user;
